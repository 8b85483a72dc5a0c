"""What the container of `generate_report` does: end the run's jobs, then report whatever the run has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from components.namespace import own_namespace
from components.numbers import headline_metrics
from components.outputs import Outputs, Scalar
from eval_core.errors import ConcordError
from eval_core.plan.files import HEAD_KEY, load_plan
from eval_core.plan.types import Plan, shard_id
from eval_core.reduce import Loaded, load_shards, reduce_run
from eval_core.report.markdown import escape
from eval_core.report.unfinished import Planned, Unfinished, render_unfinished, summarize_unfinished
from eval_core.report.write import write_report
from eval_core.run import say_checks
from eval_core.say import say
from eval_core.storage import Store
from eval_core.verify.run import verify_run


def generate_report(*, run: str, backend: str, status: dict[str, Any] | None = None) -> Outputs:
    """Report a run: nothing planned, incomplete, or complete.

    Jobs that can't be deleted, or a run that can't be read, are said in the report; the exit code is the error's.
    """
    errors: list[ConcordError] = []
    notes = _ending(status or {})
    try:
        if backend == "pytorchjob":
            _delete_jobs(run)
    except ConcordError as error:
        errors.append(error)
        notes.append(f"Jobs of this run may still be there: {error}")
    for note in notes:
        say(note)
    try:
        parts = _report(run, notes)
    except ConcordError as error:
        errors.append(error)
        parts = _of_unfinished(Unfinished(uri=run, problem=str(error), notes=notes), {"state": "unreadable"})
    for met in errors:
        say(f"error: {met}")
    page, summary, metrics = parts
    return Outputs(
        metrics={"metrics": metrics},
        files={"report": page, "summary": summary},
        exit_code=errors[0].exit_code if errors else 0,
    )


_Parts = tuple[bytes, bytes, Mapping[str, Scalar]]
"""Page, summary and metrics."""


def _report(run: str, notes: Sequence[str]) -> _Parts:
    store = Store(run)
    if store.get(HEAD_KEY) is None:
        return _of_unfinished(Unfinished(uri=run, notes=notes), {"state": "nothing planned"})
    plan = load_plan(store)
    loaded = load_shards(store, plan)
    if not loaded.missing(shard_id("main", i) for i in range(plan.n_shards)):
        return _of_complete(store, plan, loaded, notes)
    planned = Planned(plan=plan, loaded=loaded)
    again = "To go on, start the pipeline again with the same spec and the same run, or use the command below."
    return _of_unfinished(
        Unfinished(uri=run, planned=planned, notes=[*notes, again]),
        {"state": "incomplete", "shards committed": planned.committed, "shards": plan.n_shards},
    )


def _of_complete(store: Store, plan: Plan, loaded: Loaded, notes: Sequence[str]) -> _Parts:
    """Reduced and verified here once more: the pipeline may have ended before its own step came to that."""
    reduction = reduce_run(store, plan, loaded)
    verification = verify_run(store, plan, loaded, reduction)
    say_checks(verification)
    paths = write_report(store, plan, loaded, reduction, verification)
    page, summary = (store.require(key, "it was written a moment ago") for key in (paths.html, paths.markdown))
    listed = "".join(f"- {escape(note)}\n" for note in notes).encode("utf-8", "replace")
    metrics = headline_metrics(plan, reduction, verification)
    return page, summary + b"\n" + listed if listed else summary, metrics


def _of_unfinished(unfinished: Unfinished, metrics: Mapping[str, Scalar]) -> _Parts:
    say(f"{unfinished.word}: {unfinished.sentence}")
    for when, command in unfinished.commands:
        say(f"{when}:\n  {command}")
    return render_unfinished(unfinished), summarize_unfinished(unfinished), metrics


def _ending(status: Mapping[str, Any]) -> list[str]:
    """How the steps before ended, where they did not succeed."""
    state = status.get("state", "SUCCEEDED")
    if state == "SUCCEEDED":
        return []
    message = (status.get("error") or {}).get("message", "")
    return [f"The steps before ended as {state}{': ' if message else ''}{message.rstrip('.')}."]


def _delete_jobs(run: str) -> None:
    """Delete the run's PyTorchJobs; nothing outside a cluster, or in one that knows no such jobs."""
    namespace = own_namespace()
    if namespace is None:
        return
    from components.evaluate.cluster import OperatorMissingError, delete_run_jobs

    with suppress(OperatorMissingError):
        for name in delete_run_jobs(run, namespace):
            say(f"deleted the job {name}")
