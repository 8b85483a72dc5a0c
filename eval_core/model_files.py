"""A model as files: where they are, what is in them and what a forward pass costs. Loads no weights."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_core.canonical import digest_json
from eval_core.errors import ModelError, first_line

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
_PICKLES = ("pytorch_model*.bin", "*.pt", "*.pth", "*.ckpt")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
_HEADS = ("lm_head.weight", "embed_out.weight")
TREE_TYPES = frozenset(
    [
        "cohere",
        "cohere2",
        "gemma",
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "gptj",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "opt",
        "phi",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "stablelm",
        "starcoder2",
    ]
)
"""`model_type` of the architectures that compute a tree of requests when they are given its mask and positions; each is
proved by a test, and again on the weights at hand when they are loaded."""
_READ_BYTES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What of a model's config the plan needs.

    Attributes:
        body_parameters: parameters of all layers, without the embedding and the head.
        hidden_size, num_layers, vocab_size: of the architecture; vocab_size is the rows of the embedding.
        max_positions: tokens that the positions reach, or None where the config doesn't say.
        total_parameters: all of them.
        model_type: the config's name for the architecture.
        sliding_window: tokens that an attention layer sees back, or None for all.
        bfloat16: whether most of its weights are stored so.
    """

    body_parameters: int
    hidden_size: int
    num_layers: int
    vocab_size: int
    max_positions: int | None
    total_parameters: int
    model_type: str
    sliding_window: int | None
    bfloat16: bool

    def takes_trees(self, max_length: int) -> bool:
        """Whether requests of up to `max_length` tokens can share a row: positions and mask are then given, and a
        sliding window would not be seen."""
        return self.model_type in TREE_TYPES and (self.sliding_window is None or self.sliding_window >= max_length)

    def cost(self, rows: int, length: int, scored: int) -> int:
        """FLOPs of one forward pass of int[rows, length] tokens whose head runs on `scored` positions.

        Two for each parameter and token, 4 * length * hidden for each layer and token in attention.
        """
        linear = 2 * self.body_parameters * rows * length
        attention = 4 * rows * length * length * self.hidden_size * self.num_layers
        return linear + attention + 2 * self.vocab_size * self.hidden_size * scored


def resolve_model(model: str, revision: str, base: Path) -> Path:
    """The folder of `model`: a path (relative to `base`) or a hub name, which is fetched.

    Raises:
        ModelError: there is no such folder, and no such model on the hub or no way to reach it.
    """
    folder = (base / model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or model.startswith("."):
        raise ModelError(f"model '{model}': there is no folder {folder}, and it is no hub name (OWNER/MODEL)")
    from huggingface_hub import snapshot_download

    try:
        patterns = [*_WEIGHTS, *_PICKLES, "*.json", "*.model", "*.txt", "*.jinja"]
        return Path(snapshot_download(model, revision=revision, allow_patterns=patterns))
    except Exception as error:
        raise ModelError(
            f"model '{model}': there is no folder {folder}, and it can't be fetched from the hub ({first_line(error)}); "
            "give the path of a local copy"
        ) from error


def weight_files(folder: Path, *, allow_pickle: bool) -> list[Path]:
    """The weights in `folder`, by name.

    Raises:
        ModelError: there are none, or only pickles and those are not allowed.
    """
    safe = _glob(folder, _WEIGHTS)
    if any(f.suffix == ".safetensors" for f in safe):
        return safe
    pickles = _glob(folder, _PICKLES)
    if not pickles:
        raise ModelError(f"{folder}: no weights here (no *.safetensors)")
    if not allow_pickle:
        raise ModelError(
            f"{folder}: only pickle weights ({pickles[0].name}), which can run code when they are loaded; convert them to "
            "safetensors, or say `allow_pickle: true` if you trust their source"
        )
    return pickles


def manifest(folder: Path, files: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """name -> {size in bytes, sha256} of the weights and the config."""
    wanted = sorted({*files, folder / "config.json"})
    return {f.name: {"size": f.stat().st_size, "sha256": hash_file(f)} for f in wanted}


def hash_file(path: Path) -> str:
    """SHA-256 of the file's bytes."""
    state = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            state.update(block)
    return state.hexdigest()


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of `folder`.

    Raises:
        ModelError: it is missing or isn't JSON.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{folder}: no config.json, so this is no model folder") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: can't be read: {error}") from error
    return config if isinstance(config, dict) else {}


def read_shape(folder: Path, files: Iterable[Path]) -> ModelShape:
    """Sizes of the model in `folder`, from its config and the headers of its weights.

    Raises:
        ModelError: a size is missing, or the embedding doesn't have the rows that the config promises.
    """
    config = read_config(folder)
    text_config = config.get("text_config", config)

    def size(*names: str) -> int | None:
        found = [text_config[name] for name in names if isinstance(text_config.get(name), int)]
        return found[0] if found else None

    hidden = size("hidden_size", "n_embd", "d_model")
    layers = size("num_hidden_layers", "n_layer", "num_layers")
    vocab = size("vocab_size")
    if hidden is None or layers is None or vocab is None:
        raise ModelError(f"{folder}/config.json: hidden_size, num_hidden_layers or vocab_size is missing")
    tensors = _tensors(files)
    shapes = {name: shape for name, (shape, _) in tensors.items()}
    embedding = next((s for name, s in shapes.items() if name.endswith(_EMBEDDINGS)), None)
    if embedding is not None and embedding[0] != vocab:
        raise ModelError(
            f"{folder}: config.json says vocab_size {vocab}, the weights have {embedding[0]} embeddings; "
            "take the config that belongs to these weights"
        )
    outside = sum(math.prod(s) for name, s in shapes.items() if name.endswith(_EMBEDDINGS + _HEADS))
    total = sum(math.prod(s) for s in shapes.values())
    body = total - outside if shapes else 12 * layers * hidden * hidden
    half = sum(math.prod(shape) for shape, dtype in tensors.values() if dtype == "BF16")
    return ModelShape(
        body_parameters=body,
        hidden_size=hidden,
        num_layers=layers,
        vocab_size=vocab,
        max_positions=size("max_position_embeddings", "n_positions", "max_seq_len"),
        total_parameters=total or body + vocab * hidden,
        model_type=str(text_config["model_type"]) if "model_type" in text_config else "",
        sliding_window=size("sliding_window") if text_config.get("use_sliding_window") is not False else None,
        bfloat16=2 * half > total,
    )


def tokenizer_digest(folder: Path) -> str:
    """One digest over the tokenizer's files."""
    return digest_json({f.name: hash_file(f) for f in _glob(folder, _TOKENIZER_FILES)})


def _tensors(files: Iterable[Path]) -> dict[str, tuple[list[int], str]]:
    """Name -> shape and dtype of every tensor in the safetensors files, from their headers alone."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, tuple[list[int], str]] = {}
    for path in files:
        try:
            path.open("rb").close()  # safetensors says of a file that this user may not read that there is none
        except OSError as error:
            raise ModelError(f"{path}: can't be read: {error.strerror}") from error
        if path.suffix != ".safetensors":
            continue
        try:
            with safe_open(path, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118
                    header = opened.get_slice(name)
                    tensors[name] = (header.get_shape(), header.get_dtype())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: not a whole safetensors file ({error}); fetch it again") from error
    return tensors


def _glob(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted({f for pattern in patterns for f in folder.glob(pattern)})
