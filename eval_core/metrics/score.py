"""From the scored tokens to the metric states: the one definition that workers, reduction and verification share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eval_core.exact import ExactSum, segment_sums
from eval_core.metrics.states import STATE_KINDS, ChoiceState, LikelihoodState, PerplexityState, State
from eval_core.plan.types import Int64, Plan, offsets_of, ranges, take_ranges

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

NOT_ASKED = np.empty(0, dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A text that was written on from a prompt.

    Attributes:
        tokens: all that were written, the last one included that ended it.
        text: up to the first stop text.
    """

    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Token negative log-likelihoods of consecutive requests, and the texts written on from those that are prompts.

    Attributes:
        first: the first request.
        nll: the scored tokens of all these requests, one after the other, in nats (float32, or float64
            of the reference).
        offsets: int64[number of requests + 1], where each request's tokens begin in `nll`.
        greedy: bool[number of requests], whether each scored token is the most likely one; empty where the plan doesn't ask.
        generated: request -> its text.
    """

    first: int
    nll: Float32 | Float64
    offsets: Int64
    greedy: Bools
    generated: Mapping[int, Generated]

    @classmethod
    def of(
        cls,
        plan: Plan,
        requests: range,
        nll: Float32 | Float64,
        greedy: Bools = NOT_ASKED,
        generated: Sequence[Generated] = (),
    ) -> Scores:
        """The scores of `requests`, whose tokens are `nll` and whose texts, in the order of the prompts, `generated`."""
        counts = plan.requests.n_scored[requests.start : requests.stop]
        offsets = offsets_of(counts)
        assert offsets[-1] == len(nll)
        prompts = requests.start + np.flatnonzero(plan.requests.is_prompt[requests.start : requests.stop])
        texts = dict(zip(prompts.tolist(), generated, strict=bool(generated)))
        return cls(first=requests.start, nll=nll, offsets=offsets, greedy=greedy, generated=texts)

    def of_request(self, request: int) -> Float32 | Float64:
        """The tokens of one request."""
        i = request - self.first
        return self.nll[self.offsets[i] : self.offsets[i + 1]]

    def tokens_of(self, requests: Int64) -> Float32 | Float64:
        """The tokens of `requests`, one request after the other."""
        i = requests - self.first
        return take_ranges(self.nll, self.offsets[i], self.offsets[i + 1] - self.offsets[i])

    def log_likelihoods(self, requests: Int64) -> Float64:
        """float64[n]: `log_likelihood` of each of `requests`."""
        i = requests - self.first
        counts = self.offsets[i + 1] - self.offsets[i]
        return -segment_sums(self.tokens_of(requests), offsets_of(counts))

    def log_likelihood(self, request: int) -> float:
        """Of a request, in nats: the sum over its tokens, rounded once."""
        return self.total_log_likelihood([request])

    def total_log_likelihood(self, requests: list[int]) -> float:
        """Of several requests, in nats: the sum over all their tokens, rounded once."""
        try:
            return -math.fsum(token for request in requests for token in self.of_request(request).tolist())
        except ValueError:  # fsum refuses +Inf beside -Inf
            return math.nan


def initial_states(plan: Plan) -> dict[str, State]:
    """Zero for every task, in the spec's order."""
    return {task.name: STATE_KINDS[task.type].zero() for task in plan.spec.tasks}


def score_items(plan: Plan, items: Int64, scores: Scores) -> dict[str, State]:
    """The states of `items`, all of whose requests are in `scores`."""
    states = initial_states(plan)
    tasks = plan.examples.task[plan.items.example[items]]
    for number, task in enumerate(plan.spec.tasks):
        chosen = items[tasks == number]
        if task.type == "perplexity":
            states[task.name] = _perplexity(plan, chosen, scores)
        elif task.type == "multiple_choice":
            states[task.name] = _choices(plan, chosen, scores)
        else:
            states[task.name] = _likelihood(plan, chosen, scores)
    return states


def links_of(plan: Plan, items: Int64) -> Int64:
    """int64: the links of `items`, item after item."""
    offsets = plan.items.link_offsets
    return ranges(offsets[items], offsets[items + 1] - offsets[items])


def _perplexity(plan: Plan, items: Int64, scores: Scores) -> PerplexityState:
    tokens = scores.tokens_of(plan.items.link_request[plan.items.link_offsets[items]])
    opening = plan.items.example[items[plan.items.first[items] == 1]]
    return PerplexityState(
        nll=ExactSum.of(tokens),
        tokens=len(tokens),
        documents=len(opening),
        words=int(plan.examples.words[opening].sum(dtype=np.int64)),
        bytes=int(plan.examples.bytes[opening].sum()),
    )


def _likelihood(plan: Plan, items: Int64, scores: Scores) -> LikelihoodState:
    tokens = scores.tokens_of(plan.items.link_request[links_of(plan, items)])
    return LikelihoodState(
        nll=ExactSum.of(tokens),
        tokens=len(tokens),
        documents=int(plan.items.first[items].sum()),
    )


def _choices(plan: Plan, items: Int64, scores: Scores) -> ChoiceState:
    state = ChoiceState()
    for answers in choose_answers(plan, items, scores):
        state = state.merge(
            ChoiceState(
                examples=len(answers.items),
                correct=int(answers.correct("acc").sum()),
                correct_norm=int(answers.correct("acc_norm").sum()),
                correct_bytes=int(answers.correct("acc_bytes").sum()),
                nonfinite=int((answers.chosen["acc"] < 0).sum()),
            )
        )
    return state


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Questions that have equally many answers.

    Attributes:
        items: int64[n].
        gold: int64[n], the right answer.
        scores: metric (acc, acc_norm, acc_bytes) -> float64[n, answers]: log-likelihood in nats, per character,
            per byte of UTF-8.
        chosen: metric -> int64[n], the first answer with the highest score; -1 where a log-likelihood is not
            finite.
    """

    items: Int64
    gold: Int64
    scores: Mapping[str, Float64]
    chosen: Mapping[str, Int64]

    def correct(self, metric: str) -> npt.NDArray[np.bool_]:
        """bool[n]: whether the right answer was chosen by `metric`."""
        right: npt.NDArray[np.bool_] = self.chosen[metric] == self.gold
        return right


def choose_answers(plan: Plan, items: Int64, scores: Scores) -> list[Answers]:
    """Score multiple-choice `items`, grouped by their number of answers.

    An answer of no characters has -Inf per character, so it is never chosen by acc_norm.
    """
    table = plan.items
    counts = table.link_offsets[items + 1] - table.link_offsets[items]
    groups = []
    for count in np.unique(counts).tolist():
        chosen = items[counts == count]
        links = table.link_offsets[chosen][:, None] + np.arange(count)
        values = scores.log_likelihoods(table.link_request[links].ravel()).reshape(links.shape)
        finite = np.isfinite(values).all(axis=1)
        scored = {
            "acc": values,
            "acc_norm": _per(values, table.link_characters[links]),
            "acc_bytes": _per(values, table.link_bytes[links]),
        }
        groups.append(
            Answers(
                items=chosen,
                gold=plan.examples.gold[table.example[chosen]].astype(np.int64),
                scores=scored,
                chosen={
                    metric: np.where(finite, array.argmax(axis=1), -1).astype(np.int64)
                    for metric, array in scored.items()
                },
            )
        )
    return groups


def _per(values: Float64, sizes: npt.NDArray[np.int32]) -> Float64:
    return np.where(sizes > 0, values / np.maximum(sizes, 1), -np.inf)
