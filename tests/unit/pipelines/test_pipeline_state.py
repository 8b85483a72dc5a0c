"""What a run's JSON means."""

from __future__ import annotations

from typing import Any

import pytest

from pipelines.state import EXIT_CODES, Run, cancelled, outcome, read_run
from pipelines.variants import STEPS

DONE = dict.fromkeys(STEPS, "SUCCEEDED")


def run(state: str = "FAILED", *history: str, **steps: str) -> Run:
    return Run(
        id="r",
        name="",
        state=state,
        history=(*history, state),
        created="",
        description="",
        parameters={},
        steps={name.replace("_", "-"): s for name, s in steps.items()},
    )


def task(name: str, state: str | None, second: int = 0) -> dict[str, Any]:
    shown = {"display_name": name, "start_time": f"2026-01-01T00:00:{second:02}Z"}
    return shown if state is None else shown | {"state": state}


def test_an_almost_empty_run_is_pending() -> None:
    bare = read_run({"run_id": "r"})
    assert (bare.state, bare.finished, bare.history, bare.steps) == ("PENDING", False, (), {})
    assert read_run({"run_id": "r", "state": "RUNTIME_STATE_UNSPECIFIED"}).state == "PENDING"


@pytest.mark.parametrize(
    ("tasks", "steps"),
    [
        ([task("shard-data-driver", "RUNNING")], {"shard-data": "PENDING"}),
        ([task("shard-data-driver", "SUCCEEDED")], {"shard-data": "PENDING"}),
        ([task("shard-data-driver", "FAILED"), task("shard-data", None)], {"shard-data": "FAILED"}),
        ([task("shard-data-driver", "SUCCEEDED"), task("shard-data", "RUNNING")], {"shard-data": "RUNNING"}),
        ([task("evaluate", "RUNNING", 9), task("evaluate", "FAILED", 1)], {"evaluate": "RUNNING"}),
        (
            [task("verify-precision", "RUNTIME_STATE_UNSPECIFIED"), task("executor", "FAILED"), task("root", "FAILED")],
            {},
        ),
    ],
)
def test_steps_from_what_the_backend_makes_pods_for(tasks: list[dict[str, Any]], steps: dict[str, str]) -> None:
    assert read_run({"run_id": "r", "run_details": {"task_details": tasks}}).steps == steps


def test_steps_come_in_the_order_in_which_they_run() -> None:
    tasks = [task(name, "SUCCEEDED") for name in reversed(STEPS)]
    assert tuple(read_run({"run_id": "r", "run_details": {"task_details": tasks}}).steps) == STEPS


@pytest.mark.parametrize(
    ("ended", "seen", "expected"),
    [
        (run("CANCELED"), False, True),
        (run("FAILED", "RUNNING", "CANCELING"), False, True),
        (run("FAILED", "RUNNING"), True, True),
        (run("FAILED", "RUNNING"), False, False),
        (run("FAILED", "CANCELING", "FAILED", "PENDING", "RUNNING"), False, False),
        (run("SUCCEEDED", "RUNNING", "CANCELING"), True, False),
    ],
)
def test_cancelled(ended: Run, seen: bool, expected: bool) -> None:
    assert cancelled(ended, seen_canceling=seen) is expected


@pytest.mark.parametrize(
    ("ended", "verdict", "expected"),
    [
        (run("SUCCEEDED", verify_precision="SUCCEEDED"), "passed", "verified"),
        (run("SUCCEEDED", verify_precision="SUCCEEDED"), "undecided", "verified"),
        (run("SUCCEEDED", verify_precision="SUCCEEDED"), None, "verified"),
        (run("SUCCEEDED"), None, "verified"),
        (run("SUCCEEDED", verify_precision="SUCCEEDED"), "failed", "verification failed"),
        (run("SUCCEEDED", evaluate="SUCCEEDED", verify_precision="FAILED"), None, "verification failed"),
        (run(evaluate="SUCCEEDED", verify_precision="FAILED"), "failed", "verification failed"),
        (run(evaluate="SUCCEEDED", verify_precision="FAILED"), None, "verification failed"),
        (run(evaluate="SUCCEEDED", verify_precision="FAILED"), "passed", "failed"),
        (run(evaluate="FAILED"), "failed", "failed"),
        (run(evaluate="FAILED"), "passed", "failed"),
        (run(), None, "failed"),
        (run("SKIPPED"), None, "failed"),
        (run("CANCELED", evaluate="SUCCEEDED", verify_precision="FAILED"), "failed", "cancelled"),
    ],
)
def test_outcome(ended: Run, verdict: Any, expected: str) -> None:
    assert outcome(ended, seen_canceling=False, verdict=verdict) == expected


def test_exit_codes_are_those_of_the_help() -> None:
    assert EXIT_CODES == {"verified": 0, "verification failed": 1, "failed": 3, "cancelled": 4}
