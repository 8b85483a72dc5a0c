"""What a metric remembers: integers and exact sums only, so that merging is associative and loses nothing.

Every state has zero / merge / value, and travels as JSON (canonical) or as an int64 vector whose
element-by-element sum over ranks is the merged state.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Protocol, TypeVar

import numpy as np

from eval_core.exact import VECTOR_LENGTH, ExactSum, IntArray

_CONTEXT = decimal.Context(prec=60, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])
_LN2 = _CONTEXT.ln(Decimal(2))

_NOTHING = ExactSum()

S = TypeVar("S", bound="MetricState")


class MetricState(Protocol):
    """The contract of every state."""

    @classmethod
    def zero(cls: type[S]) -> S: ...
    def merge(self: S, other: S) -> S: ...
    def value(self) -> dict[str, float]: ...
    def to_json(self) -> dict[str, Any]: ...
    @classmethod
    def from_json(cls: type[S], data: dict[str, Any]) -> S: ...
    def to_vector(self) -> IntArray: ...
    @classmethod
    def from_vector(cls: type[S], vector: IntArray) -> S: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PerplexityState:
    """Sums of a rolling log-likelihood.

    Attributes:
        nll: sum of the tokens' negative log-likelihoods, in nats.
        tokens: tokens scored.
        documents, words, bytes: of the documents, counted with their first window.
    """

    nll: ExactSum = _NOTHING
    tokens: int = 0
    documents: int = 0
    words: int = 0
    bytes: int = 0

    @classmethod
    def zero(cls) -> PerplexityState:
        return cls()

    def merge(self, other: PerplexityState) -> PerplexityState:
        return PerplexityState(
            nll=self.nll.merge(other.nll),
            tokens=self.tokens + other.tokens,
            documents=self.documents + other.documents,
            words=self.words + other.words,
            bytes=self.bytes + other.bytes,
        )

    def value(self) -> dict[str, float]:
        """loss, token_ppl, word_ppl, byte_ppl, bits_per_byte; see `perplexity_values`."""
        if self.nll.nonfinite:
            return dict.fromkeys(PERPLEXITY_METRICS, self.nll.value())
        return perplexity_values(self.nll.fraction(), self.tokens, self.words, self.bytes)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "perplexity",
            "nll": self.nll.to_json(),
            "tokens": self.tokens,
            "documents": self.documents,
            "words": self.words,
            "bytes": self.bytes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PerplexityState:
        counts = {name: data[name] for name in ("tokens", "documents", "words", "bytes")}
        return cls(nll=ExactSum.from_json(data["nll"]), **counts)

    def to_vector(self) -> IntArray:
        counts = np.array([self.tokens, self.documents, self.words, self.bytes], dtype=np.int64)
        return np.concatenate([self.nll.to_vector(), counts])

    @classmethod
    def from_vector(cls, vector: IntArray) -> PerplexityState:
        tokens, documents, words, size = (int(n) for n in vector[VECTOR_LENGTH:])
        nll = ExactSum.from_vector(vector[:VECTOR_LENGTH])
        return cls(nll=nll, tokens=tokens, documents=documents, words=words, bytes=size)


PERPLEXITY_METRICS = ("loss", "token_ppl", "word_ppl", "byte_ppl", "bits_per_byte")


def perplexity_values(nll: Fraction, tokens: int, words: int, size: int) -> dict[str, float]:
    """The metrics of a summed negative log-likelihood `nll` in nats, each rounded once.

    loss = nll / tokens (nats per token); token_ppl = exp(nll / tokens);
    word_ppl = exp(nll / words), words between runs of white space;
    byte_ppl = exp(nll / bytes), bytes of UTF-8; bits_per_byte = nll / bytes / ln 2.

    The loss is rounded from the exact ratio; exponential and logarithm are taken with 60 decimal digits, so no C library's last bit
    shows. A denominator of zero gives NaN.
    """

    def ratio(count: int) -> Decimal:
        if not count:
            return Decimal("NaN")
        part = nll / count
        return _CONTEXT.divide(Decimal(part.numerator), Decimal(part.denominator))

    return {
        "loss": _rounded(nll / tokens) if tokens else float("nan"),
        "token_ppl": float(_CONTEXT.exp(ratio(tokens))),
        "word_ppl": float(_CONTEXT.exp(ratio(words))),
        "byte_ppl": float(_CONTEXT.exp(ratio(size))),
        "bits_per_byte": float(_CONTEXT.divide(ratio(size), _LN2)),
    }


def _rounded(value: Fraction) -> float:
    """The nearest float64; infinite where `value` is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChoiceState:
    """Counts of a multiple choice.

    Attributes:
        examples: questions.
        correct, correct_norm, correct_bytes: those whose right answer had the highest log-likelihood,
            the highest per character, the highest per byte.
        nonfinite: questions with a NaN or infinite log-likelihood; they count as wrong.
    """

    examples: int = 0
    correct: int = 0
    correct_norm: int = 0
    correct_bytes: int = 0
    nonfinite: int = 0

    @classmethod
    def zero(cls) -> ChoiceState:
        return cls()

    def merge(self, other: ChoiceState) -> ChoiceState:
        return ChoiceState.from_vector(self.to_vector() + other.to_vector())

    def value(self) -> dict[str, float]:
        """acc, acc_norm (per character of the answer, as the harness), acc_bytes (per byte of UTF-8)."""
        hits = (self.correct, self.correct_norm, self.correct_bytes)
        return {
            name: n / self.examples if self.examples else float("nan")
            for name, n in zip(CHOICE_METRICS, hits, strict=True)
        }

    def to_json(self) -> dict[str, Any]:
        return {"kind": "multiple_choice", **{name: getattr(self, name) for name in self.__slots__}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ChoiceState:
        return cls(**{name: data[name] for name in cls.__slots__})

    def to_vector(self) -> IntArray:
        return np.array([getattr(self, name) for name in self.__slots__], dtype=np.int64)

    @classmethod
    def from_vector(cls, vector: IntArray) -> ChoiceState:
        return cls(**{name: int(n) for name, n in zip(cls.__slots__, vector, strict=True)})


CHOICE_METRICS = ("acc", "acc_norm", "acc_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class LikelihoodState:
    """Sums over the requests of a task whose metrics are the harness's.

    Attributes:
        nll: sum of the scored tokens' negative log-likelihoods, in nats.
        tokens: tokens scored.
        documents: counted with their first item.
    """

    nll: ExactSum = _NOTHING
    tokens: int = 0
    documents: int = 0

    @classmethod
    def zero(cls) -> LikelihoodState:
        return cls()

    def merge(self, other: LikelihoodState) -> LikelihoodState:
        return LikelihoodState(
            nll=self.nll.merge(other.nll),
            tokens=self.tokens + other.tokens,
            documents=self.documents + other.documents,
        )

    def value(self) -> dict[str, float]:
        """loss: nats per scored token, NaN without any."""
        if self.nll.nonfinite:
            return {"loss": self.nll.value()}
        return {"loss": float(self.nll.fraction() / self.tokens) if self.tokens else float("nan")}

    def to_json(self) -> dict[str, Any]:
        return {"kind": "lm_eval", "nll": self.nll.to_json(), "tokens": self.tokens, "documents": self.documents}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> LikelihoodState:
        return cls(nll=ExactSum.from_json(data["nll"]), tokens=data["tokens"], documents=data["documents"])

    def to_vector(self) -> IntArray:
        return np.concatenate([self.nll.to_vector(), np.array([self.tokens, self.documents], dtype=np.int64)])

    @classmethod
    def from_vector(cls, vector: IntArray) -> LikelihoodState:
        tokens, documents = (int(n) for n in vector[VECTOR_LENGTH:])
        return cls(nll=ExactSum.from_vector(vector[:VECTOR_LENGTH]), tokens=tokens, documents=documents)


State = PerplexityState | ChoiceState | LikelihoodState
STATE_KINDS: Mapping[str, type[PerplexityState] | type[ChoiceState] | type[LikelihoodState]] = {
    "perplexity": PerplexityState,
    "multiple_choice": ChoiceState,
    "lm_eval": LikelihoodState,
}

HIGHER_IS_BETTER: Mapping[str, bool] = {
    **dict.fromkeys(CHOICE_METRICS, True),
    **dict.fromkeys(PERPLEXITY_METRICS, False),
}


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number of the result.

    Attributes:
        value: rounded once from exact sums.
        stderr: its standard error, NaN where there is none.
        n: documents or questions behind it.
        higher_is_better: its direction; None where it has none, or nobody said.
    """

    value: float
    stderr: float
    n: int
    higher_is_better: bool | None


def state_from_json(data: dict[str, Any]) -> State:
    """The state of any kind that `to_json` wrote."""
    return STATE_KINDS[data["kind"]].from_json(data)


def merge_states(left: Mapping[str, State], right: Mapping[str, State]) -> dict[str, State]:
    """Merge two mappings of task -> state; a task that only one has is taken over."""
    merged: dict[str, Any] = dict(left)
    for task, state in right.items():
        merged[task] = merged[task].merge(state) if task in merged else state
    return merged


def states_to_json(states: Mapping[str, State]) -> dict[str, Any]:
    """Task -> state, as JSON."""
    return {task: state.to_json() for task, state in states.items()}


def states_from_json(data: Mapping[str, Any]) -> dict[str, State]:
    """Reverse of `states_to_json`."""
    return {task: state_from_json(state) for task, state in data.items()}
