"""From the scored tokens to the metric states: the one definition that workers, reduction and verification share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eval_core.exact import ExactSum
from eval_core.metrics.states import STATE_KINDS, ChoiceState, PerplexityState, State
from eval_core.plan.types import Int64, Plan

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Token negative log-likelihoods of consecutive requests.

    Attributes:
        first: the first request.
        nll: the scored tokens of all these requests, one after the other, in nats (float32, or float64
            of the reference).
        offsets: int64[number of requests + 1], where each request's tokens begin in `nll`.
    """

    first: int
    nll: Float32 | Float64
    offsets: Int64

    @classmethod
    def of(cls, plan: Plan, requests: range, nll: Float32 | Float64) -> Scores:
        """The scores of `requests`, whose tokens are `nll`."""
        counts = plan.requests.n_scored[requests.start : requests.stop]
        offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        assert offsets[-1] == len(nll)
        return cls(first=requests.start, nll=nll, offsets=offsets)

    def of_request(self, request: int) -> Float32 | Float64:
        """The tokens of one request."""
        i = request - self.first
        return self.nll[self.offsets[i] : self.offsets[i + 1]]

    def log_likelihood(self, request: int) -> float:
        """Of a request, in nats: the sum over its tokens, rounded once."""
        try:
            return -math.fsum(self.of_request(request).tolist())
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
        else:
            states[task.name] = _choices(plan, chosen, scores)
    return states


def _perplexity(plan: Plan, items: Int64, scores: Scores) -> PerplexityState:
    requests = plan.items.link_request[plan.items.link_offsets[items]]
    parts = [scores.of_request(r) for r in requests.tolist()]
    opening = plan.items.example[items[plan.items.first[items] == 1]]
    return PerplexityState(
        nll=ExactSum.of(np.concatenate(parts)) if parts else ExactSum(),
        tokens=sum(map(len, parts)),
        documents=len(opening),
        words=int(plan.examples.words[opening].sum(dtype=np.int64)),
        bytes=int(plan.examples.bytes[opening].sum()),
    )


def _choices(plan: Plan, items: Int64, scores: Scores) -> ChoiceState:
    state = ChoiceState()
    for answers in choose_answers(plan, items, scores):
        state = state.merge(
            ChoiceState(
                examples=len(answers.items),
                correct=int((answers.chosen == answers.gold).sum()),
                correct_norm=int((answers.chosen_norm == answers.gold).sum()),
                correct_bytes=int((answers.chosen_bytes == answers.gold).sum()),
                nonfinite=int((answers.chosen < 0).sum()),
            )
        )
    return state


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Questions that have equally many answers.

    Attributes:
        items: int64[n].
        gold: int64[n], the right answer.
        log_likelihood: float64[n, answers], in nats.
        chosen, chosen_norm, chosen_bytes: int64[n], the first answer with the highest log-likelihood, the
            highest per character, per byte; -1 where a log-likelihood is not finite.
    """

    items: Int64
    gold: Int64
    log_likelihood: Float64
    chosen: Int64
    chosen_norm: Int64
    chosen_bytes: Int64


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
        flat = [scores.log_likelihood(r) for r in table.link_request[links].ravel().tolist()]
        values = np.array(flat, dtype=np.float64).reshape(links.shape)
        finite = np.isfinite(values).all(axis=1)

        def best(array: Float64, finite: npt.NDArray[np.bool_] = finite) -> Int64:
            return np.where(finite, array.argmax(axis=1), -1).astype(np.int64)

        groups.append(
            Answers(
                items=chosen,
                gold=plan.examples.gold[table.example[chosen]].astype(np.int64),
                log_likelihood=values,
                chosen=best(values),
                chosen_norm=best(_per(values, table.link_characters[links])),
                chosen_bytes=best(_per(values, table.link_bytes[links])),
            )
        )
    return groups


def _per(values: Float64, sizes: npt.NDArray[np.int32]) -> Float64:
    return np.where(sizes > 0, values / np.maximum(sizes, 1), -np.inf)
