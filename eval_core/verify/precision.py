"""How far the run's dtype is from the reference, and its mode from the other, on the audited micro-batches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from eval_core.metrics.score import Answers, Float64, Generated, Scores, choose_answers
from eval_core.metrics.states import CHOICE_METRICS
from eval_core.plan.types import Int64, Plan, shard_id
from eval_core.reduce import Loaded
from eval_core.verify.intervals import proportion, relative_error
from eval_core.verify.types import Flip, Interval, TaskPrecision


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What was computed more than once.

    Attributes:
        batches: int64, audited micro-batches whose original and reference are both there.
        run, reference: scores of all requests; 0 outside of these micro-batches, memory that is never touched.
        alone: those of requests that were computed one by one; within these micro-batches NaN where they weren't.
    """

    batches: Int64
    run: Scores
    reference: Scores
    alone: Scores


def gather_audited(plan: Plan, loaded: Loaded) -> Audited:
    """Line up the references, and the requests that were computed alone, with their originals."""
    requests = range(len(plan.requests))
    n_tokens = int(plan.requests.n_scored.sum(dtype=np.int64))
    run, reference, alone = (Scores.of(plan, requests, np.zeros(n_tokens)) for _ in range(3))
    batches = []
    for batch in plan.audited.tolist():
        file = loaded.files.get(shard_id("reference", batch))
        original = original_tokens(plan, loaded, batch)
        if file is None or original is None:
            continue
        batches.append(batch)
        where = _tokens_of_batch(plan, run, batch)
        run.nll[where] = original
        reference.nll[where] = file.result.nll
        alone.nll[where] = np.nan
        if apart := loaded.files.get(shard_id("alone", batch)):
            taken = plan.shard_requests(shard_id("alone", batch))
            alone.nll[alone.offsets[taken.start] : alone.offsets[taken.stop]] = apart.result.nll
    return Audited(batches=np.array(batches, dtype=np.int64), run=run, reference=reference, alone=alone)


def original_tokens(plan: Plan, loaded: Loaded, batch: int) -> Float64 | None:
    """The tokens of a micro-batch as its main shard holds them; None where that shard is missing."""
    shard = shard_id("main", int(plan.main_shard_of_batch[batch]))
    file = loaded.files.get(shard)
    if file is None:
        return None
    requests = plan.shard_requests(shard)
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    counts = np.cumsum(np.concatenate([[0], plan.requests.n_scored[requests.start : requests.stop]]), dtype=np.int64)
    tokens: Float64 = file.result.nll[counts[first - requests.start] : counts[last - requests.start]]  # type: ignore[assignment]
    return tokens


def original_texts(plan: Plan, loaded: Loaded, batch: int) -> tuple[Generated, ...]:
    """The texts of a micro-batch as its main shard, which must be there, holds them."""
    shard = shard_id("main", int(plan.main_shard_of_batch[batch]))
    start = plan.shard_requests(shard).start
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    before, until = (int(np.count_nonzero(plan.requests.is_prompt[start:at])) for at in (first, last))
    return loaded.files[shard].result.generated[before:until]


def overall_error(plan: Plan, audited: Audited) -> Interval:
    """Relative error of the summed log-likelihood over all audited tokens, clustered by micro-batch."""
    sums = [
        [math.fsum(scores.nll[_tokens_of_batch(plan, scores, b)].tolist()) for b in audited.batches.tolist()]
        for scores in (audited.run, audited.reference)
    ]
    run, reference = (np.array(s, dtype=np.float64) for s in sums)
    return relative_error(run, reference, plan.n_scored_batches, plan.spec.precision.confidence)


def task_precision(plan: Plan, audited: Audited) -> dict[str, TaskPrecision]:
    """What the audit found for each task."""
    batch_of_link = np.searchsorted(plan.micro_batches.first_request, plan.items.link_request, side="right") - 1
    inside = np.isin(batch_of_link, audited.batches)
    task_of_item = plan.examples.task[plan.items.example]
    task_of_link = np.repeat(task_of_item, np.diff(plan.items.link_offsets))
    whole = np.logical_and.reduceat(inside, plan.items.link_offsets[:-1])
    found = {}
    for number, task in enumerate(plan.spec.tasks):
        here = inside & (task_of_link == number)
        requests, batches = plan.items.link_request[here], batch_of_link[here]
        items = np.flatnonzero(whole & (task_of_item == number) & (task.type == "multiple_choice"))
        found[task.name] = _of_task(plan, audited, requests, batches, items)
    return found


def _of_task(plan: Plan, audited: Audited, requests: Int64, batches: Int64, items: Int64) -> TaskPrecision:
    confidence = plan.spec.precision.confidence
    largest, tokens = 0.0, 0
    between_modes: list[float] = []
    sums: dict[int, tuple[float, float]] = {}
    for request, batch in zip(requests.tolist(), batches.tolist(), strict=True):
        run, reference = audited.run.of_request(request), audited.reference.of_request(request)
        largest = max(largest, float(np.abs(run - reference).max()))
        between_modes.append(float(np.abs(run - audited.alone.of_request(request)).max()))
        tokens += len(run)
        before = sums.get(batch, (0.0, 0.0))
        sums[batch] = (before[0] + math.fsum(run.tolist()), before[1] + math.fsum(reference.tolist()))
    table = np.array(list(sums.values()), dtype=np.float64).reshape(-1, 2)
    everywhere = len(audited.batches) == plan.n_scored_batches
    population = len(table) if everywhere else plan.n_scored_batches
    error = relative_error(table[:, 0], table[:, 1], population, confidence) if len(table) else None
    flips, flipped = _flips(plan, audited, items)
    return TaskPrecision(
        tokens=tokens,
        examples=len(items),
        relative_error=error,
        largest_token_error=largest,
        largest_mode_difference=max((d for d in between_modes if not math.isnan(d)), default=None),
        flip_rate={metric: proportion(n, len(items), confidence) for metric, n in flips.items()},
        flipped=tuple(flipped),
    )


def _flips(plan: Plan, audited: Audited, items: Int64) -> tuple[Mapping[str, int], list[Flip]]:
    if not len(items):
        return {}, []
    flips: list[Flip] = []
    counts = dict.fromkeys(CHOICE_METRICS, 0)
    first_of_task = np.searchsorted(plan.examples.task, plan.examples.task[plan.items.example[items[0]]])
    pairs = zip(choose_answers(plan, items, audited.run), choose_answers(plan, items, audited.reference), strict=True)
    for run, reference in pairs:
        for metric in CHOICE_METRICS:
            ours, theirs = run.chosen[metric], reference.chosen[metric]
            margins = _margins(run, metric)
            for row in np.flatnonzero(ours != theirs).tolist():
                counts[metric] += 1
                example = int(plan.items.example[run.items[row]] - first_of_task)
                flips.append(
                    Flip(
                        example=example,
                        metric=metric,
                        run=int(ours[row]),
                        reference=int(theirs[row]),
                        margin=float(margins[row]),
                    )
                )
    return counts, flips


def _margins(answers: Answers, metric: str) -> Float64:
    ordered = np.sort(answers.scores[metric], axis=1)
    margins: Float64 = ordered[:, -1] - ordered[:, -2]
    return margins


def _tokens_of_batch(plan: Plan, scores: Scores, batch: int) -> slice:
    first, last = (int(i) for i in plan.micro_batches.first_request[batch : batch + 2])
    return slice(int(scores.offsets[first]), int(scores.offsets[last]))
