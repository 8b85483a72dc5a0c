"""What the API says about a run, and what follows from it. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pipelines.variants import STEPS

if TYPE_CHECKING:
    from eval_core.verify.types import Status

_NO_STATE = frozenset({"", "RUNTIME_STATE_UNSPECIFIED"})
FINISHED = frozenset({"SUCCEEDED", "FAILED", "CANCELED", "SKIPPED"})

Outcome = Literal["verified", "verification failed", "failed", "cancelled"]

EXIT_CODES: Mapping[Outcome, int] = {"verified": 0, "verification failed": 1, "failed": 3, "cancelled": 4}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as the API shows it at one moment.

    Attributes:
        id, name: of the run.
        state: PENDING, RUNNING, SUCCEEDED, SKIPPED, FAILED, CANCELING, CANCELED, PAUSED.
        history: the states that it had, the present one last.
        created: when, as text that sorts by time.
        description: what its creator wrote.
        parameters: the inputs that were given.
        steps: step -> its state, of those that have begun.
    """

    id: str
    name: str
    state: str
    history: tuple[str, ...]
    created: str
    description: str
    parameters: Mapping[str, Any]
    steps: Mapping[str, str]

    @property
    def finished(self) -> bool:
        """Whether it will not change any more."""
        return self.state in FINISHED


def read_run(data: Mapping[str, Any]) -> Run:
    """A run from the API's JSON, which leaves out what is empty."""
    return Run(
        id=data["run_id"],
        name=data.get("display_name", ""),
        state=_state(data),
        history=tuple(_state(entry) for entry in data.get("state_history", [])),
        created=data.get("created_at", ""),
        description=data.get("description", ""),
        parameters=data.get("runtime_config", {}).get("parameters", {}),
        steps=_steps(data.get("run_details", {}).get("task_details", [])),
    )


def _steps(tasks: list[Mapping[str, Any]]) -> dict[str, str]:
    """The state of each step that has begun.

    The backend lists everything that it makes pods for, before each step its driver `STEP-driver`, and gives no state to
    what it left out. A step whose driver failed never starts.
    """
    states: dict[str, str] = {}
    for task in sorted(tasks, key=lambda t: str(t.get("start_time", ""))):
        if (state := str(task.get("state", ""))) not in _NO_STATE:
            states[str(task.get("display_name", ""))] = state
    steps = {}
    for step in STEPS:
        if step in states:
            steps[step] = states[step]
        elif (driver := states.get(f"{step}-driver")) is not None:
            steps[step] = "FAILED" if driver == "FAILED" else "PENDING"
    return steps


def _state(data: Mapping[str, Any]) -> str:
    state = str(data.get("state", ""))
    return "PENDING" if state in _NO_STATE else state


def cancelled(run: Run, *, seen_canceling: bool) -> bool:
    """Whether a finished run was ended by someone.

    A backend with Argo shows a terminated run as CANCELING until its exit task is done, and then as FAILED. CANCELING as
    the state before the last tells it from a run that failed by itself; before a retry it would stand further back. Where
    the backend didn't write it to the history, `seen_canceling` says whether it was the last state that we saw.
    """
    if run.state == "CANCELED":
        return True
    return run.state == "FAILED" and (seen_canceling or run.history[-2:-1] == ("CANCELING",))


def outcome(run: Run, *, seen_canceling: bool, verdict: Status | None) -> Outcome:
    """What a finished run came to.

    Args:
        verdict: of the verification in the run's storage; None where it can't be seen from here. It may be an older one, of
            an earlier run with the same storage: it counts only where this run's own verification has ended.
    """
    if cancelled(run, seen_canceling=seen_canceling):
        return "cancelled"
    verification = run.steps.get("verify-precision")
    if run.state == "SUCCEEDED" and verification != "FAILED":
        return "verification failed" if verdict == "failed" else "verified"
    if verification == "FAILED" and run.steps.get("evaluate") == "SUCCEEDED":
        return "verification failed" if verdict in ("failed", None) else "failed"
    return "failed"
