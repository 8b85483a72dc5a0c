"""Text to token ids, in batches and in parallel; the BOS token explicit and never doubled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

from eval_core.errors import ModelError


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer and what it says of its special tokens.

    Attributes:
        bos, eos: their ids, or None where the tokenizer has none.
        adds_bos: whether it puts BOS before a text by itself.
    """

    fast: FastTokenizer
    bos: int | None
    eos: int | None
    adds_bos: bool

    @property
    def first(self) -> int | None:
        """What the first token of a text is conditioned on: BOS, or else EOS."""
        return self.bos if self.bos is not None else self.eos

    @cached_property
    def splits_before_space(self) -> bool:
        """Whether a space after another character always begins a piece that is encoded by itself.

        So it is with GPT-2's pattern, in which a space stands only at a piece's beginning or among white space, where
        nothing changes the text before it is split and no added token can reach over the space.
        """
        splitter, model = self.fast.pre_tokenizer, self.fast.model
        return (
            self.fast.normalizer is None
            and isinstance(splitter, pre_tokenizers.ByteLevel)
            and bool(splitter.use_regex and not splitter.add_prefix_space)
            and isinstance(model, models.BPE)
            and model.dropout is None
            and not any(
                token.lstrip or token.rstrip or token.single_word or " " in token.content
                for token in self.fast.get_added_tokens_decoder().values()
            )
        )

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, without special tokens of the tokenizer's own."""
        return [encoding.ids for encoding in self.fast.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, tokens: list[int], *, special: bool = False) -> str:
        """The text of `tokens`, with or without what special tokens are written as."""
        return str(self.fast.decode(tokens, skip_special_tokens=not special))

    def vocab_size(self) -> int:
        """Entries, added tokens included."""
        return int(self.fast.get_vocab_size(with_added_tokens=True))


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in `folder`.

    Raises:
        ModelError: there is no tokenizer.json, or it can't be read.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: no tokenizer.json; load the tokenizer with transformers (AutoTokenizer) and save_pretrained() it here"
        )
    try:
        fast = FastTokenizer.from_file(str(path))
    except Exception as error:
        raise ModelError(f"{path}: can't be read: {error}") from error
    fast.no_padding()
    fast.no_truncation()
    config = tokenizer_config(folder)
    bos = _special_id(fast, config, "bos_token")
    said = config.get("add_bos_token")
    adds = bos is not None and fast.encode("a", add_special_tokens=True).ids[:1] == [bos]
    return Tokenizer(
        fast=fast,
        bos=bos,
        eos=_special_id(fast, config, "eos_token"),
        adds_bos=adds if said is None else bool(said) and bos is not None,
    )


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """What the configs beside the tokenizer in `folder` say.

    Raises:
        ModelError: one of them can't be read.
    """
    config: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            config |= _read_json(folder / name)
    return config


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: can't be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: must be a JSON object")
    return content


def _special_id(fast: FastTokenizer, config: dict[str, Any], name: str) -> int | None:
    token = config.get(name)
    content = token.get("content") if isinstance(token, dict) else token
    return fast.token_to_id(content) if isinstance(content, str) else None
