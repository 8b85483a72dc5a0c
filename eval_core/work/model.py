"""Load a causal language model so that its head can be run on chosen positions only."""

from __future__ import annotations

import contextlib
import gc
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from eval_core.errors import ModelError, first_line
from eval_core.spec import Compute
from eval_core.work.attention import in_blocks
from eval_core.work.cache import Beginning, TextCache
from eval_core.work.heap import keep_freed_memory
from eval_core.work.products import use_onednn, vocabulary_logits

_PROBE_TOKENS = 8
_PROBE_TOLERANCE = 2e-2
_PROBE_MARGIN = 4


@dataclass(frozen=True, kw_only=True)
class Tree:
    """Rows in which requests that begin alike share their first tokens.

    Attributes:
        position: int64[B, L], place of each token on its path, from 0.
        sees: bool[B, L, L], [b, i, j]: token i of row b sees token j, which is itself or before it on its path.
    """

    position: torch.Tensor
    sees: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model in two parts.

    Attributes:
        body: (int64[B, L] token ids, Tree or None) -> hidden states [B, L, hidden]. None: causal, without a mask: what
            stands right of a token, padding included, can't reach it.
        decode: (int64[B, L] token ids, int64[B, before + L] 1 where a token is real, int64[B, L] positions, the `store` of a
            `cache.TextCache`, which is written) -> the last token's hidden states [B, hidden].
        head: (hidden states [N, hidden], logits that are no longer needed or None) -> logits [N, vocab] in float32 (float64 for a
            float64 model), which may lie where those lay.
        device: where both run.
    """

    body: Callable[[torch.Tensor, Tree | None], torch.Tensor]
    decode: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], torch.Tensor]
    head: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
    device: torch.device


def set_up_compute(compute: Compute, local_rank: int) -> torch.device:
    """Fix everything that could change bits behind the spec's back; returns this rank's device.

    Raises:
        ModelError: the spec says cuda and there is none for this rank.
    """
    torch.set_num_threads(compute.threads)
    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    if compute.device == "cpu":
        keep_freed_memory()
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ModelError(
            f"compute.device is cuda, but this node has {torch.cuda.device_count()} GPUs and local rank {local_rank} needs its own; "
            "start fewer processes, or say `device: cpu`"
        )
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def load_model(
    folder: Path,
    compute: Compute,
    dtype: str,
    device: torch.device,
    *,
    allow_pickle: bool,
    trees: bool = False,
    generates: bool = False,
) -> Model:
    """The model in `folder`, in `dtype`; `trees`: it will be given some; `generates`: it will write texts.

    Raises:
        ModelError: transformers can't load it, its logits are not its head applied to its last hidden states, or it
            doesn't compute a tree, or with a cache, as it should.
    """
    import transformers

    quiet: Any = transformers.utils.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    blocked = compute.attention == "blocked"
    wide = dtype == "float64"
    ours = device.type == "cpu" and not wide
    onednn = ours and (blocked or compute.cpu_products == "onednn")
    if onednn and not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise ModelError(
            "this PyTorch is built without oneDNN; say `compute: {cpu_products: native, attention: sdpa}`, which makes a new plan"
        )
    try:
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, dtype),
            attn_implementation="sdpa" if blocked else compute.attention,
            use_safetensors=None if allow_pickle else True,
            local_files_only=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as error:
        raise ModelError(f"{folder}: can't be loaded: {first_line(error)}") from error
    loaded = loaded.to(device).eval()
    if ours and compute.cpu_products == "onednn":
        use_onednn(loaded)
    attention = in_blocks if ours and blocked else contextlib.nullcontext

    def body(tokens: torch.Tensor, tree: Tree | None) -> torch.Tensor:
        given = {} if tree is None else {"position_ids": tree.position, "attention_mask": _additive(tree, loaded.dtype)}
        with torch.inference_mode(), _widened(wide), attention():
            hidden: torch.Tensor = loaded.base_model(input_ids=tokens, use_cache=False, **given).last_hidden_state
            return hidden

    named = inspect.signature(loaded.base_model.forward).parameters
    cache_name = "cache" if "cache" in named else "past_key_values"  # the older name in transformers

    def decode(tokens: torch.Tensor, mask: torch.Tensor, position: torch.Tensor, store: Any) -> torch.Tensor:
        with torch.inference_mode(), _widened(wide):
            given = {"attention_mask": mask, "position_ids": position, "use_cache": True, cache_name: store}
            hidden: torch.Tensor = loaded.base_model(input_ids=tokens, **given).last_hidden_state[:, -1]
            return hidden

    embeddings = loaded.get_output_embeddings()
    if embeddings is None:
        raise ModelError(f"{folder}: this architecture has no language-model head")
    adjust = _logit_adjustment(loaded.config)

    def head(hidden: torch.Tensor, room: torch.Tensor | None) -> torch.Tensor:
        with torch.inference_mode():
            logits = vocabulary_logits(hidden, embeddings, room)
            return adjust(logits if wide else logits.float())

    model = Model(body=body, decode=decode, head=head, device=device)
    _probe(loaded, model, wide, folder)
    if trees:
        _probe_tree(loaded, model, folder)
    if generates:
        _probe_cache(loaded, model, folder)
    return model


def free(device: torch.device) -> None:
    """Give back the memory of models that are no longer referenced."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _logit_adjustment(config: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What an architecture does to its logits after the head, by its config (Gemma 2, Cohere, Granite)."""
    settings = config.to_dict()
    cap = settings.get("final_logit_softcapping")
    factor = settings.get("logit_scale")
    divisor = settings.get("logits_scaling")

    def adjust(logits: torch.Tensor) -> torch.Tensor:
        if factor:
            logits = logits * factor
        if divisor:
            logits = logits / divisor
        return cap * torch.tanh(logits / cap) if cap else logits

    return adjust


def _probe(loaded: Any, model: Model, wide: bool, folder: Path) -> None:
    """Prove on a few tokens that head(body(x)) is what the whole model computes."""
    tokens = torch.arange(1, 1 + _PROBE_TOKENS, device=model.device)[None] % int(
        loaded.config.get_text_config().vocab_size
    )
    with torch.inference_mode(), _widened(wide):
        whole = loaded(input_ids=tokens, use_cache=False).logits[0].double()
    parts = model.head(model.body(tokens, None)[0], None).double()
    if parts.shape != whole.shape or not torch.allclose(
        parts, whole, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE, equal_nan=True
    ):
        raise ModelError(
            f"{folder}: the logits of this architecture ({type(loaded).__name__}) are not its head applied to its last hidden "
            "states; it is not supported yet"
        )


def _probe_tree(loaded: Any, model: Model, folder: Path) -> None:
    """Prove that of two requests in one row each is computed as if it were alone.

    The second must come out far nearer to itself alone than to what it is after the first, tree or no tree.
    """
    half = _PROBE_TOKENS
    ids = torch.arange(1, 1 + 3 * half, device=model.device) % int(loaded.config.get_text_config().vocab_size)
    path = torch.cat([torch.arange(half), torch.arange(2 * half, 3 * half)]).to(model.device)
    sees = torch.tril(torch.ones(3 * half, 3 * half, dtype=torch.bool, device=model.device))
    sees[2 * half :, half : 2 * half] = False
    position = torch.cat([torch.arange(2 * half), torch.arange(half, 2 * half)]).to(model.device)
    try:
        packed = model.head(model.body(ids[None], Tree(position=position[None], sees=sees[None]))[0, path], None)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_trees(loaded, folder) from error
    alone = model.head(model.body(ids[None, path], None)[0], None)
    after = model.head(model.body(ids[None], None)[0, path], None)
    if not (packed - alone).abs().max() * _PROBE_MARGIN <= (after - alone).abs().max():
        raise _no_trees(loaded, folder)


@torch.inference_mode()
def _probe_cache(loaded: Any, model: Model, folder: Path) -> None:
    """Prove that two prompts of different length, the second read after a beginning that it has of the first, are gone on
    from together as if each were computed whole."""
    vocabulary = int(loaded.config.get_text_config().vocab_size)
    ids = torch.arange(1, 1 + _PROBE_TOKENS, device=model.device) % vocabulary
    lengths, shared = (_PROBE_TOKENS - 1, _PROBE_TOKENS // 2 + 1), _PROBE_TOKENS // 4
    cache = TextCache(len(lengths), lengths[0], 1)
    beginning: Beginning = []
    try:
        for length in lengths:
            known = cache.enter(length, beginning)
            read = torch.arange(known, length, device=model.device)
            model.decode(ids[None, read], torch.ones_like(ids[None, :length]), read[None], cache.store)
            beginning = beginning or cache.beginning(shared)
        mask, position = (part.to(model.device) for part in cache.step())
        stepped = model.decode(ids[torch.tensor(lengths, device=model.device), None], mask, position, cache.store)
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise _no_cache(loaded, folder) from error
    whole = model.body(ids[None], None)[0, list(lengths)]
    left, right = (model.head(hidden, None).double() for hidden in (stepped, whole))
    if not torch.allclose(left, right, rtol=_PROBE_TOLERANCE, atol=_PROBE_TOLERANCE * float(right.abs().max())):
        raise _no_cache(loaded, folder)


def _no_cache(loaded: Any, folder: Path) -> ModelError:
    return ModelError(
        f"{folder}: this architecture ({type(loaded).__name__}) doesn't go on from prompts of different length with a cache as it "
        "computes them whole; tasks that generate text are not supported for it yet"
    )


def _no_trees(loaded: Any, folder: Path) -> ModelError:
    return ModelError(
        f"{folder}: this architecture ({type(loaded).__name__}) doesn't compute requests that share a row as it computes "
        "them alone; say `batch: {share_prefixes: false}`, which makes a new plan"
    )


def _additive(tree: Tree, dtype: torch.dtype) -> torch.Tensor:
    """[B, 1, L, L] to be added to attention scores: 0 where a token is seen."""
    mask = torch.full(tree.sees.shape, torch.finfo(dtype).min, dtype=dtype, device=tree.sees.device)
    return mask.masked_fill_(tree.sees, 0.0)[:, None]


class _Widened(TorchFunctionMode):
    """Reads every float32 that a model's code asks for as float64, so that the reference is float64 throughout.

    Norms and rotary embeddings of many architectures compute in float32 whatever the dtype of the model.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widen(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is torch.Tensor.float:
            func = torch.Tensor.double
        named = {name: widen(value) for name, value in (kwargs or {}).items()}
        return func(*map(widen, args), **named)


def _widened(wide: bool) -> Any:
    return _Widened() if wide else contextlib.nullcontext()
