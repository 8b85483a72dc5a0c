"""Watch a run until it is over."""

from __future__ import annotations

import time
from dataclasses import dataclass

from eval_core.say import say
from pipelines.api import Api
from pipelines.errors import ApiError, WaitError
from pipelines.retry import persist
from pipelines.state import Run, read_run

_SHORTEST_PAUSE = 1.0
_LONGEST_PAUSE = 15.0
_GROWTH = 1.5


@dataclass(frozen=True, kw_only=True)
class End:
    """How a run ended.

    Attributes:
        run: its last state.
        seen_canceling: whether it was being cancelled when we looked last before that.
    """

    run: Run
    seen_canceling: bool


def wait(api: Api, run_id: str, timeout: float | None, patience: float) -> End:
    """Look again and again, at growing distances while nothing changes, and say what changed.

    Args:
        timeout: seconds to wait; None for ever.
        patience: seconds that the API may be out of reach at a stretch.

    Raises:
        WaitError: the time is over, the run is not.
        ApiError: the API is out of reach, or refuses.
        UsageError: there is no such run.
    """
    started = time.monotonic()
    give_up_at = started + timeout if timeout is not None else float("inf")
    pause = _SHORTEST_PAUSE
    before: Run | None = None
    while True:
        try:
            run = persist(lambda: read_run(api.get(f"/runs/{run_id}")), patience, give_up_at)
        except ApiError as error:
            if time.monotonic() < give_up_at:
                raise
            raise WaitError(
                f"run {run_id}: not over after {timeout:g} s, and the last try to look failed: {error}"
            ) from error
        changed = _say_changes(before, run, time.monotonic() - started)
        if run.finished:
            return End(run=run, seen_canceling=before is not None and before.state == "CANCELING")
        before = run
        pause = _SHORTEST_PAUSE if changed else min(pause * _GROWTH, _LONGEST_PAUSE)
        left = give_up_at - time.monotonic()
        if left <= 0:
            raise WaitError(f"run {run_id}: not over after {timeout:g} s ({run.state.lower()}); it goes on")
        time.sleep(min(pause, left))


def _say_changes(before: Run | None, run: Run, elapsed: float) -> bool:
    """One line for each step, and for the run, whose state is a new one."""
    clock = f"{int(elapsed) // 3600}:{int(elapsed) // 60 % 60:02}:{int(elapsed) % 60:02}"
    known = before.steps if before else {}
    changes = [(step, state) for step, state in run.steps.items() if known.get(step) != state]
    if before is None or before.state != run.state:
        changes.append(("run", run.state))
    for name, state in changes:
        say(f"{clock}  {name:<16}  {state.lower()}")
    return bool(changes)
