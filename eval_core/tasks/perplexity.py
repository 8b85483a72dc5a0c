"""Rolling log-likelihood: each token of a document scored once, in windows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from eval_core.errors import DataError, ModelError
from eval_core.spec import PerplexityTask
from eval_core.tasks.documents import Document
from eval_core.tasks.examples import Example, Request, example_seed
from eval_core.tokenizer import Tokenizer

_CHUNK = 256


def build_perplexity(
    task: PerplexityTask, documents: Iterable[Document], tokenizer: Tokenizer, max_length: int, seed: int
) -> Iterator[Example]:
    """The examples of `task`, in the documents' order.

    Words are counted as the lm-evaluation-harness does: pieces of the text between runs of white
    space, an empty piece at either end included. Bytes are those of UTF-8.

    Raises:
        DataError: a document has no text, or its only token can't be scored.
        ModelError: `bos: always` and the tokenizer has no BOS token.
    """
    window = task.window or max_length
    stride = task.stride or window
    prefix = first_token(task, tokenizer)
    numbered = enumerate(documents)
    while chunk := list(islice(numbered, _CHUNK)):
        texts = [document.field(task.text, str) for _, document in chunk]
        for (index, document), text, tokens in zip(chunk, texts, tokenizer.encode_batch(texts), strict=True):
            sequence = tokens if prefix is None or tokens[:1] == [prefix] else [prefix, *tokens]
            if len(sequence) < 2:
                raise DataError(f"{document.where}: field '{task.text}' has no text to score; remove this line")
            yield Example(
                fields=document.fields,
                prompt="",
                targets=[text],
                gold=-1,
                seed=example_seed(seed, task.name, index),
                words=len(re.split(r"\s+", text)),
                bytes=len(text.encode("utf-8", "surrogatepass")),
                truncated=0,
                rejoined=0,
                items=[[request] for request in rolling_windows(sequence, window, stride)],
            )


def first_token(task: PerplexityTask, tokenizer: Tokenizer) -> int | None:
    """What the first token of a document is conditioned on, or None."""
    if task.bos == "never":
        return None
    if task.bos == "always" and tokenizer.bos is None:
        raise ModelError(f"task '{task.name}': bos is 'always', but this tokenizer has no BOS token; say auto or never")
    return tokenizer.first


def rolling_windows(sequence: list[int], window: int, stride: int) -> Iterator[Request]:
    """Cut `sequence` (its first token is context only) into windows of at most `window` input tokens.

    The first window scores its `window` tokens; each later one moves on by `stride` and scores the
    tokens that are new, so that a token has at least window - stride + 1 tokens of context, or all
    there are. With stride == window these are the harness's windows, with context_len 1.
    """
    last = len(sequence) - 1
    scored = 0
    while scored < last:
        end = min(scored + (stride if scored else window), last)
        yield Request(tokens=sequence[max(0, end - window) : end + 1], n_scored=end - scored)
        scored = end
