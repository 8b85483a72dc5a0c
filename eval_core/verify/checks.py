"""The checks. Each recomputes from the committed rows and compares; none trusts a total that a worker wrote."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from eval_core.metrics.score import Scores, links_of, score_items
from eval_core.metrics.states import ChoiceState, State, merge_states, states_from_json
from eval_core.plan.types import Plan, shard_id
from eval_core.reduce import Loaded, Reduction
from eval_core.reuse import came_from, reuse_key
from eval_core.verify.precision import Audited, original_texts, original_tokens
from eval_core.verify.types import Check, Interval, Status, TaskPrecision

_SHOWN = 10
_BLOCK = 1 << 14


def check_coverage(plan: Plan, loaded: Loaded, reduction: Reduction) -> Check:
    """Every request in one committed shard, and every example in the totals once."""
    times = np.zeros(len(plan.requests), dtype=np.int64)
    for shard in loaded.files:
        if shard.startswith("main/"):
            requests = plan.shard_requests(shard)
            times[requests.start : requests.stop] += 1
    once = times[plan.items.link_request] == 1
    whole = np.logical_and.reduceat(once, plan.items.link_offsets[:-1])
    incomplete = np.unique(plan.items.example[~whole])
    counted = sum(s.examples if isinstance(s, ChoiceState) else s.documents for s in reduction.states.values())
    n = len(plan.examples)
    good = not len(incomplete) and counted == n and bool((times == 1).all())
    return Check(
        name="coverage",
        question="Is every example counted exactly once?",
        status=_status(good),
        expected=f"{n} examples, {len(plan.requests)} requests, each once",
        found=f"{counted} examples in the totals, {int((times == 1).sum())} requests once, {int((times != 1).sum())} otherwise",
        details=_some(f"{describe_example(plan, int(i))} is not whole" for i in incomplete),
    )


def check_digests(plan: Plan, loaded: Loaded, reduction: Reduction) -> Check:
    """Every file whole, and the totals made from these files."""
    wanted = plan.shard_ids()
    other = [s for s, digest in reduction.shards.items() if s in loaded.files and loaded.files[s].digest != digest]
    missing = [s for s in loaded.missing(wanted) if s not in loaded.damaged]
    details = [
        *loaded.damaged.values(),
        *(f"{s} is missing" for s in missing),
        *(f"{s} is not the file that was reduced" for s in other),
    ]
    return Check(
        name="digests",
        question="Is every shard file whole, and the one that was reduced?",
        status=_status(not details),
        expected=f"{len(wanted)} files that fit their digests",
        found=f"{len(loaded.files) - len(other)} fit, {len(loaded.damaged)} damaged, {len(missing)} missing, {len(other)} other",
        details=_some(details),
    )


def check_plan(plan: Plan, reduction: Reduction) -> Check:
    """The totals belong to this plan, whose digest fits its content (or it would not have loaded)."""
    return Check(
        name="plan",
        question="Do the numbers belong to this plan?",
        status=_status(plan.digest == reduction.plan),
        expected=f"plan {plan.digest[:16]}, recomputed from its columns",
        found=f"plan {reduction.plan[:16]} in the reduction",
    )


def check_exactness(plan: Plan, scores: Scores | None, reduction: Reduction) -> Check:
    """The totals, recomputed from all rows at once and by `math.fsum`, have the same bits."""
    question = "Do the rows, added up again in another way, give the same totals to the bit?"
    expected = f"the reduction's states, {len(reduction.states)} tasks"
    if scores is None:
        return _undecided("exactness", question, expected, "rows are missing")
    again = score_items(plan, np.arange(len(plan.items), dtype=np.int64), scores)
    wrong = [task for task, state in again.items() if state != reduction.states[task]]
    for number, task in enumerate(plan.spec.tasks):
        state = reduction.states[task.name]
        if isinstance(state, ChoiceState) or state.nll.nonfinite:
            continue
        items = np.flatnonzero(plan.examples.task[plan.items.example] == number)[::-1]
        requests = plan.items.link_request[links_of(plan, items)]
        blocks = (scores.tokens_of(requests[i : i + _BLOCK]).tolist() for i in range(0, len(requests), _BLOCK))
        if math.fsum(chain.from_iterable(blocks)) != state.nll.value():
            wrong.append(f"{task.name} (fsum)")
    return Check(
        name="exactness",
        question=question,
        status=_status(not wrong),
        expected=expected,
        found=f"{len(again) - len(set(wrong) & set(again))} equal, bit for bit"
        + (f"; not: {', '.join(wrong)}" if wrong else ""),
    )


def check_shard_states(plan: Plan, loaded: Loaded) -> tuple[Check, dict[int, Mapping[str, State]]]:
    """Each shard's own totals fit its rows. Also gives the states recomputed from the rows of each main shard."""
    again: dict[int, Mapping[str, State]] = {}
    wrong = []
    for number in range(plan.n_shards):
        shard = shard_id("main", number)
        file = loaded.files.get(shard)
        if file is None:
            continue
        scores = Scores.of(plan, plan.shard_requests(shard), file.result.nll, file.result.greedy, file.result.generated)
        again[number] = score_items(plan, plan.items_of(number), scores)
        if again[number] != file.result.states:
            wrong.append(f"{shard}: its totals don't fit its rows")
    check = Check(
        name="shard totals",
        question="Do each shard's totals fit its rows?",
        status=_status(not wrong),
        expected=f"{plan.n_shards} shards",
        found=f"{len(again) - len(wrong)} fit",
        details=_some(wrong),
    )
    return check, again


def check_all_reduce(
    plan: Plan, records: Sequence[Mapping[str, Any]], shard_states: Mapping[int, Mapping[str, State]]
) -> Check:
    """What the ranks summed over the network equals the reduction of the same shards' files."""
    wrong, covered = [], 0
    for record in records:
        shards = record["shards"]
        covered += len(shards)
        merged: dict[str, State] = {}
        for number in shards:
            merged = merge_states(merged, shard_states.get(number, {}))
        summed = states_from_json(record["states"])
        same = all(summed[task] == state for task, state in merged.items())
        empty = bool(shards) or all(s == type(s).zero() for s in summed.values())
        if not (same and empty and set(record["times_counted"]) <= {1}):
            wrong.append(
                f"attempt {record['attempt']}: the ranks' total differs from the files of its {len(shards)} shards"
            )
    question = "Does the total that the ranks all-reduced equal the files of the same shards?"
    expected = "equal, bit for bit, in every attempt that came to its end"
    if not records:
        return _undecided("all-reduce", question, expected, "no attempt came to its end")
    sizes = ", ".join(f"{r['world_size']} ranks: {len(r['shards'])} shards" for r in records)
    return Check(
        name="all-reduce",
        question=question,
        status=_status(not wrong),
        expected=expected,
        found=f"{len(records) - len(wrong)} of {len(records)} attempts equal, over {covered} of {plan.n_shards} shards ({sizes})",
        details=_some(wrong),
    )


def check_determinism(violations: Sequence[Mapping[str, Any]]) -> Check:
    """No shard was ever computed twice with different bits."""
    return Check(
        name="determinism",
        question="Did a shard that was computed twice ever give other bits?",
        status=_status(not violations),
        expected="0 violations",
        found=f"{len(violations)} violations",
        details=_some(
            f"{v['shard']}: {v['differing_tokens']} tokens differ between {v['committed']['by']} on {v['committed']['host']} "
            f"and {v['computed']['by']} on {v['computed']['host']}"
            for v in violations
        ),
    )


def check_replay(plan: Plan, loaded: Loaded) -> Check:
    """Audited micro-batches, computed a second time, have the same bits."""
    question = "Do micro-batches that were computed a second time have the same bits?"
    expected = f"{len(plan.audited)} replayed micro-batches, equal to the bit"
    same, elsewhere, wrong, absent = 0, 0, [], 0
    for batch in plan.audited.tolist():
        replay = loaded.files.get(shard_id("replay", batch))
        original = original_tokens(plan, loaded, batch)
        if replay is None or original is None:
            absent += 1
            continue
        author = loaded.files[shard_id("main", int(plan.main_shard_of_batch[batch]))].provenance
        elsewhere += replay.provenance.worker != author.worker
        if (replay.result.nll.tobytes(), replay.result.generated) == (
            original.tobytes(),
            original_texts(plan, loaded, batch),
        ):
            same += 1
        else:
            n = int((replay.result.nll != original).sum())
            of = f"{n} of {len(original)} tokens" if len(original) else "texts"
            reused = f" (reused from {author.origin.run})" if author.origin else ""
            wrong.append(
                f"micro-batch {batch}: {of} differ between {author.worker} on {author.host}{reused} "
                f"and {replay.provenance.worker} on {replay.provenance.host}"
            )
    found = f"{same} equal ({elsewhere} of the replays by another process), {len(wrong)} differ, {absent} missing"
    if not wrong and (absent or not len(plan.audited)):
        return _undecided("replay", question, expected, found)
    return Check(
        name="replay",
        question=question,
        status=_status(not wrong),
        expected=expected,
        found=found,
        details=_some(wrong),
    )


def check_reuse(plan: Plan, loaded: Loaded) -> Check | None:
    """What was taken over from other runs is the same work, and holds the rows that were committed there; None where nothing was.

    Whether the machine here would compute these bits, only a replay tells.
    """
    taken = {shard: file for shard, file in loaded.files.items() if file.provenance.origin is not None}
    if not taken:
        return None
    wrong = []
    for shard, file in taken.items():
        origin = file.provenance.origin
        assert origin is not None
        if not shard.startswith("main/") or origin.key != reuse_key(plan, shard):
            wrong.append(f"{shard}: {origin.shard} of {origin.run} is other work")
        elif not came_from(file.result, origin):
            wrong.append(f"{shard}: its rows are not those of {origin.shard} of {origin.run}")
    originals = [shard_id("main", int(plan.main_shard_of_batch[b])) for b in plan.audited.tolist()]
    replays = [shard_id("replay", b) for b in plan.audited.tolist()]
    replayed = sum(o in taken and r in loaded.files for o, r in zip(originals, replays, strict=True))
    return Check(
        name="reuse",
        question="Is what was taken over from other runs the same work, and did a replay here meet some of it?",
        status="undecided" if not wrong and not replayed else _status(not wrong),
        expected=f"{len(taken)} shards with the key and the rows of their origin, 1 or more of their micro-batches replayed",
        found=f"{len(taken) - len(wrong)} with key and rows, {replayed} micro-batches replayed",
        details=_some(wrong),
    )


def check_finite(plan: Plan, scores: Scores | None) -> Check:
    """No log-likelihood is NaN or infinite."""
    question = "Are all log-likelihoods finite?"
    if scores is None:
        return _undecided("finite", question, "0 NaN or infinite", "rows are missing")
    bad = np.flatnonzero(~np.isfinite(scores.nll))
    requests = np.unique(np.searchsorted(scores.offsets, bad, side="right") - 1)
    links = np.isin(plan.items.link_request, requests)
    items = np.repeat(np.arange(len(plan.items)), np.diff(plan.items.link_offsets))[links]
    examples = np.unique(plan.items.example[items])
    return Check(
        name="finite",
        question=question,
        status=_status(not len(bad)),
        expected="0 NaN or infinite",
        found=f"{len(bad)} tokens in {len(examples)} examples",
        details=_some(f"{describe_example(plan, int(i))} has a log-likelihood that is not finite" for i in examples),
    )


def check_log_likelihood(plan: Plan, audited: Audited, error: Interval) -> Check | None:
    """The relative error of the token-weighted log-likelihood against the reference; None where no token is scored."""
    if not plan.n_scored_batches:
        return None
    precision = plan.spec.precision
    run_dtype, reference = plan.spec.compute.dtype, plan.reference_dtype
    question = f"How far is {run_dtype} from {reference} in the summed log-likelihood?"
    expected = f"at most {precision.tolerance:.4%} relative error"
    low, high = sorted((abs(error.low), abs(error.high)))
    if error.low <= 0 <= error.high:
        low = 0.0
    found = (
        f"{error.estimate:+.2e} ({error.confidence:.0%} interval {error.low:+.2e} to {error.high:+.2e}), "
        f"from {len(audited.batches)} of {plan.n_scored_batches} micro-batches"
    )
    details = []
    if precision.reference == "auto" and reference != "float64":
        details.append(
            "a float64 copy of the model is above precision.reference_memory, so the audit was computed in float32"
        )
    status: Status = "undecided"
    if len(audited.batches) == 0:
        found = "no micro-batch was audited"
    elif reference == run_dtype and reference != "float64":
        details.append("the reference has the run's own dtype, so this says nothing about its precision")
    elif math.isnan(error.estimate):
        details.append("a log-likelihood in the audit is not finite")
    elif low > precision.tolerance:
        status = "failed"
    elif high <= precision.tolerance:
        status = "passed"
    else:
        details.append("the interval straddles the tolerance; more audit.micro_batches narrow it")
    return Check(
        name="precision/log-likelihood",
        question=question,
        status=status,
        expected=expected,
        found=found,
        details=tuple(details),
    )


def check_answers(plan: Plan, precision: Mapping[str, TaskPrecision]) -> Check | None:
    """Answers that the reference changes; judged only where the spec sets `precision.max_flips`."""
    judged = {task: p for task, p in precision.items() if p.flip_rate}
    if not judged:
        return None
    limit = plan.spec.precision.max_flips
    worst = max(sum(flip.metric == metric for flip in p.flipped) for p in judged.values() for metric in p.flip_rate)
    parts = [
        f"{task} {metric}: {sum(flip.metric == metric for flip in p.flipped)} of {p.examples} (at most {rate.high:.1%})"
        for task, p in judged.items()
        for metric, rate in p.flip_rate.items()
    ]
    return Check(
        name="precision/answers",
        question=f"Which answers would {plan.reference_dtype} change?",
        status=_status(limit is None or worst <= limit),
        expected="reported, not judged (precision.max_flips is not set)"
        if limit is None
        else f"at most {limit} of a task",
        found="; ".join(parts),
        details=_some(
            f"{task} example {f.example}, {f.metric}: answer {f.run} instead of {f.reference}, margin {f.margin:.2e}"
            for task, p in judged.items()
            for f in p.flipped
        ),
    )


def describe_example(plan: Plan, example: int) -> str:
    """`task example 12`, counted within its task."""
    task = int(plan.examples.task[example])
    return f"{plan.spec.tasks[task].name} example {example - int(np.searchsorted(plan.examples.task, task))}"


def read_records(data: Mapping[str, bytes]) -> list[Any]:
    """JSON records by key, in the keys' order; one that is damaged counts as absent."""
    records = []
    for key in sorted(data):
        try:
            records.append(json.loads(data[key]))
        except ValueError:
            continue
    return records


def _status(good: bool) -> Status:
    return "passed" if good else "failed"


def _undecided(name: str, question: str, expected: str, found: str) -> Check:
    return Check(name=name, question=question, status="undecided", expected=expected, found=found)


def _some(lines: Any) -> tuple[str, ...]:
    """The first lines, and how many more there are."""
    listed = list(lines)
    more = len(listed) - _SHOWN
    return tuple(listed[:_SHOWN]) + ((f"... and {more} more",) if more > 0 else ())
