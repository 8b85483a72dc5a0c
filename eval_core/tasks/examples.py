"""What a task's examples become: the one shape that every kind of task is planned in."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """How a text is generated.

    Attributes:
        max_new: tokens at most.
        until: texts at whose first occurrence it ends; they don't belong to it.
        eos: token ids that end it.
        temperature: what logits are divided by; 0: greedy, the most likely token is taken each time.
        top_k, top_p: draw from so many of the most likely tokens, from the fewest that have this probability together.
        draw: number of the draw from this prompt; each has a seed of its own.
    """

    max_new: int
    until: tuple[str, ...]
    eos: tuple[int, ...]
    temperature: float
    top_k: int | None
    top_p: float | None
    draw: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Tokens of which the last `n_scored` are scored, each given those before it; or a prompt to go on from.

    Attributes:
        tokens: at most max_length + 1 ids; the model reads all but the last. Of a prompt: all.
        n_scored: how many, from the end; at least 1. Of a prompt: 0.
        characters, bytes: length of the scored text where a metric needs it (answers of a multiple choice).
        generation: how to go on from a prompt.
    """

    tokens: list[int]
    n_scored: int
    characters: int = 0
    bytes: int = 0
    generation: Generation | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One document of a task, with everything that its metrics and its sample need.

    Attributes:
        fields: the document as it was read.
        prompt: what the model was given as context (empty for rolling log-likelihood).
        targets: the texts that are scored; of a harness's task the arguments of its requests.
        gold: index of the right answer, or -1.
        seed: what was drawn for this example came from this.
        words, bytes: size of the document (perplexity only).
        truncated: tokens cut from the left because they did not fit.
        rejoined: answers encoded by themselves, because a token spans the join with the prompt.
        items: the requests, grouped: a metric counts an item when all its requests are done. A window
            is an item of its own; the answers of a multiple choice are one item together.
    """

    fields: dict[str, Any]
    prompt: str
    targets: list[Any]
    gold: int
    seed: int
    words: int
    bytes: int
    truncated: int
    rejoined: int
    items: list[list[Request]]


@dataclass
class RequestBuffer:
    """Requests in flat columns, for a million of them."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    lengths: array[int] = field(default_factory=lambda: array("i"))
    scored: array[int] = field(default_factory=lambda: array("i"))
    generation: array[int] = field(default_factory=lambda: array("i"))
    generations: dict[Generation, int] = field(default_factory=dict)

    def append(self, request: Request) -> None:
        self.tokens.extend(request.tokens)
        self.lengths.append(len(request.tokens))
        self.scored.append(request.n_scored)
        way = request.generation
        self.generation.append(-1 if way is None else self.generations.setdefault(way, len(self.generations)))


def example_seed(seed: int, task: str, index: int) -> int:
    """A seed for one example, of 63 bits: depends on the task's name and the index, on nothing else."""
    data = f"{seed}\0{task}\0{index}".encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little") >> 1
