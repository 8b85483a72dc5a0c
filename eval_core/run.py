"""The chain: plan, work, reduce, verify, report; each step also a function of its own."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from eval_core.errors import ConcordError, SpecError
from eval_core.plan.build import build_plan
from eval_core.plan.files import load_plan, save_plan
from eval_core.plan.types import Plan
from eval_core.reduce import Loaded, Reduction, load_reduction, load_shards, reduce_run
from eval_core.report.headline import headline, print_headline
from eval_core.report.write import write_report
from eval_core.say import say
from eval_core.spec import EvalSpec, LmEvalTask
from eval_core.storage import Store
from eval_core.verify.run import verify_run
from eval_core.verify.types import Verification, load_verification
from eval_core.work.launch import Ranks
from eval_core.work.takeover import open_run

_INTERRUPTED = 130


def plan_spec(spec: EvalSpec, base: Path, uri: str | None) -> tuple[Plan, Store]:
    """Plan `spec`, whose relative paths start at `base`, and write the plan to `uri` (None: `runs/NAME-DIGEST`).

    Raises:
        UsageError: data or model can't be used, or `uri` holds another plan.
    """
    started = time.monotonic()
    plan = build_plan(spec, base)
    store = Store(uri or f"runs/{spec.name}-{plan.digest[:8]}")
    new = save_plan(plan, store)
    say(describe_plan(plan, store, new=new, seconds=time.monotonic() - started))
    return plan, store


def describe_plan(plan: Plan, store: Store, *, new: bool, seconds: float) -> str:
    """One line on a plan that was written to `store`, or found there."""
    duplicates = plan.n_requested - len(plan.requests)
    return (
        f"plan {plan.digest[:16]} {'written to' if new else 'found at'} {store.uri} in {seconds:.1f} s: "
        f"{len(plan.examples)} examples, {len(plan.requests)} requests ({duplicates} duplicates removed), "
        f"{len(plan.micro_batches)} micro-batches in {plan.n_shards} shards"
    )


def run_spec(spec: EvalSpec, base: Path, uri: str | None, nproc: int, reuse: Sequence[str]) -> int:
    """All steps; what the runs `reuse` have is not computed again. Returns the exit code: 0, or 1 where a check fails."""
    for other in reuse:
        open_run(other)  # a mistake is said before the plan is made
    with Ranks() as ranks:
        plan, store = plan_spec(spec, base, uri)
        done = _work(ranks, plan, store, nproc, reuse)
    return _finish(plan, store) if done else _INTERRUPTED


def resume_run(uri: str, nproc: int) -> int:
    """All steps after the plan, on what is missing. Returns the exit code of `run_spec`."""
    with Ranks() as ranks:
        store = Store(uri)
        plan = load_plan(store)
        done = _work(ranks, plan, store, nproc, ())
    return _finish(plan, store) if done else _INTERRUPTED


def reduce_step(uri: str) -> None:
    """Reduce a run and say its digest."""
    store = Store(uri)
    plan = load_plan(store)
    reduction = reduce_run(store, plan, load_shards(store, plan))
    say(f"reduced {len(reduction.shards)} shards: {reduction.digest}")


def verify_step(uri: str) -> int:
    """Verify a run and list the checks. Returns the exit code: 0, or 1 where one fails."""
    store = Store(uri)
    plan = load_plan(store)
    verification = verify_run(store, plan, load_shards(store, plan), load_reduction(store))
    say_checks(verification)
    return exit_code(verification)


def rescore_run(uri: str, include_path: Path | None) -> int:
    """Score the answers of a run again, by the harness's tasks as they are now: other filters, other metrics, no model.

    `include_path` is the folder of task files to take instead of the one that the run was planned with. Returns the exit
    code of `run_spec`.

    Raises:
        SpecError: the run has no task of the harness, or there is no such task any more.
        DataError: the tasks' documents are no longer those of the plan.
    """
    store = Store(uri)
    plan = load_plan(store)
    if not any(isinstance(task, LmEvalTask) for task in plan.spec.tasks):
        raise SpecError(
            f"{uri} has no task of the lm-evaluation-harness; the others are scored again by: concord reduce"
        )
    if include_path is not None:
        folder = str(include_path.resolve())
        tasks = tuple(
            replace(task, include_path=folder) if isinstance(task, LmEvalTask) else task for task in plan.spec.tasks
        )
        plan = replace(plan, spec=replace(plan.spec, tasks=tasks))
    return _finish(plan, store)


def report_step(uri: str) -> None:
    """Write the report of a run that is reduced and verified."""
    store = Store(uri)
    plan = load_plan(store)
    _report(plan, store, load_shards(store, plan), load_reduction(store), load_verification(store))


def compare_runs(left: str, right: str) -> int:
    """Compare two reduced runs bit by bit. Returns the exit code: 0 where they are equal, else 1."""
    one, other = load_reduction(Store(left)), load_reduction(Store(right))
    if one.digest == other.digest:
        print(f"identical: {len(one.shards)} shards and every number, to the bit ({one.digest})")
        return 0
    if one.plan != other.plan:
        print(f"different plans: {one.plan[:16]} and {other.plan[:16]}")
    shards = [s for s in one.shards if other.shards.get(s) != one.shards[s]]
    print(f"{len(shards)} of {len(one.shards)} shards differ" + (f", first {shards[0]}" if shards else ""))
    for task, metrics in one.metrics.items():
        for name, metric in metrics.items():
            twin = other.metrics.get(task, {}).get(name)
            if twin is None or twin.value.hex() != metric.value.hex():
                print(f"{task} {name}: {metric.value!r} and {twin.value if twin else None!r}")
    return 1


def say_checks(verification: Verification) -> None:
    """A line for each check, and its details."""
    for check in verification.checks:
        say(f"{check.status:>9}  {check.name}: {check.found}")
        for line in check.details:
            say(f"           {line}")


def exit_code(verification: Verification) -> int:
    """0, or 1 where a check failed."""
    return 1 if verification.verdict == "failed" else 0


def _work(ranks: Ranks, plan: Plan, store: Store, nproc: int, reuse: Sequence[str]) -> bool:
    """Compute what is missing. Returns whether all is done; else the user has interrupted, and knows how to go on."""
    resume = f"concord resume --run {shlex.quote(store.uri)} --nproc {nproc}"
    try:
        ranks.run(store.uri, nproc, reuse, device=plan.spec.compute.device)
    except KeyboardInterrupt:
        say(f"\ninterrupted; what is committed is kept. Resume with:\n  {resume}")
        return False
    except ConcordError as error:
        error.args = (f"{error}. What is committed is kept; resume with: {resume}",)
        raise
    return True


def _finish(plan: Plan, store: Store) -> int:
    loaded = load_shards(store, plan)
    reduction = reduce_run(store, plan, loaded)
    verification = verify_run(store, plan, loaded, reduction)
    _report(plan, store, loaded, reduction, verification)
    return exit_code(verification)


def _report(plan: Plan, store: Store, loaded: Loaded, reduction: Reduction, verification: Verification) -> None:
    write_report(store, plan, loaded, reduction, verification)
    print_headline(headline(plan, reduction, verification), Console())
    failed = [check for check in verification.checks if check.status == "failed"]
    for check in failed:
        say(f"FAILED {check.name}: expected {check.expected}; found {check.found}")
        for line in check.details:
            say(f"       {line}")
    passed = sum(check.status == "passed" for check in verification.checks)
    say(f"verification: {verification.verdict}, {passed} of {len(verification.checks)} checks passed")
    say(f"report: {_location(store, 'report.html')}")


def _location(store: Store, key: str) -> str:
    folder = store.local_path
    return str(folder / key) if folder else f"{store.uri.rstrip('/')}/{key}"
