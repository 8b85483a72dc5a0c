"""What the container of `verify_precision` does."""

from __future__ import annotations

from components.numbers import headline_metrics
from components.outputs import Outputs
from components.planned import open_planned
from eval_core.reduce import load_shards, reduce_run
from eval_core.report.headline import headline
from eval_core.report.markdown import render_checks, render_markdown
from eval_core.report.reused import reused_of
from eval_core.run import exit_code, say_checks
from eval_core.say import say
from eval_core.verify.run import verify_run


def verify_precision(*, run: str, plan_digest: str) -> Outputs:
    """Reduce the committed shards to the numbers, and check them. Exit code 1 when a check fails.

    Raises:
        RunMismatchError: the run holds another plan.
        IncompleteRunError: shards are missing.
        StorageError: the run's storage is out of reach.
    """
    store, plan = open_planned(run, plan_digest)
    loaded = load_shards(store, plan)
    reduction = reduce_run(store, plan, loaded)
    say(f"reduced {len(reduction.shards)} shards: {reduction.digest}")
    verification = verify_run(store, plan, loaded, reduction)
    say_checks(verification)
    page = render_markdown(
        plan, reduction, verification, headline(plan, reduction, verification), reused_of(plan, loaded)
    )
    return Outputs(
        parameters={"verdict": verification.verdict},
        metrics={"metrics": headline_metrics(plan, reduction, verification)},
        files={"checks": page + b"\n" + render_checks(verification)},
        exit_code=exit_code(verification),
    )
