"""The step evaluate with its backend `local`, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eval_core.plan.files import load_plan
from eval_core.reduce import load_shards
from eval_core.storage import Store

ROOT = Path(__file__).resolve().parent.parent.parent.parent


def shards_of(run: Path) -> tuple[int, int]:
    """Committed and planned, audit included."""
    store = Store(str(run))
    plan = load_plan(store)
    return len(load_shards(store, plan).files), len(plan.shard_ids())


def local(run: Path, plan_digest: str, **inputs: Any) -> dict[str, Any]:
    return {"run": str(run), "plan_digest": plan_digest, "backend": "local", **inputs}


def test_outputs(chain: Any) -> None:
    committed, planned = shards_of(chain.run)
    assert committed == planned
    metrics = chain.evaluated.metadata("metrics")
    assert metrics["shards"] == planned
    assert metrics["committed before"] == 0
    assert chain.evaluated.text("job") == ""
    ranks = list((chain.run / "attempts").glob("*/rank-*.json"))
    assert len(ranks) == 2


def test_what_is_committed_is_not_computed_again(step: Callable[..., Any], chain: Any) -> None:
    again = step("evaluate", local(chain.run, chain.plan_digest))
    assert again.code == 0
    metrics = again.metadata("metrics")
    assert metrics["committed before"] == metrics["shards"]
    assert len(list((chain.run / "attempts").iterdir())) == 1


def test_another_plan_is_refused(step: Callable[..., Any], chain: Any) -> None:
    done = step("evaluate", local(chain.run, "0" * 64))
    assert done.code == 2
    assert "holds another plan" in done.error


def test_a_run_without_a_plan(step: Callable[..., Any], tmp_path: Path) -> None:
    done = step("evaluate", local(tmp_path / "run", "0" * 64))
    assert done.code == 1
    assert "make the plan first" in done.error


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        ({"backend": "pytorch"}, "input 'backend' must be one of pytorchjob, local, not 'pytorch'"),
        ({"backend": "pytorchjob"}, "backend 'pytorchjob' works inside a cluster only"),
        ({"processes_per_worker": 0}, "input 'processes_per_worker' must be 1 or more, not 0"),
        ({"workers": 1.5}, "input 'workers' must be a whole number, not 1.5"),
        ({"run": None}, "input 'run' is missing"),
    ],
)
def test_bad_inputs(inputs: dict[str, Any], wanted: str, step: Callable[..., Any], chain: Any) -> None:
    done = step("evaluate", local(chain.run, chain.plan_digest) | inputs)
    assert done.code == 2
    assert wanted in done.error


def test_sigterm_ends_the_ranks(
    step: Callable[..., Any], spec_text: str, executor_input: Callable[..., str], tmp_path: Path
) -> None:
    """As a pod is ended: what was committed stays, and no process is left behind."""
    run = tmp_path / "run"
    many = spec_text.replace("limit: 10", "limit: 24").replace("shard_cost: 50000000", "shard_cost: 1000000")
    planned = step("shard_data", {"spec": many, "run": str(run)})
    inputs = local(run, planned.text("plan_digest"), processes_per_worker=2)
    started = subprocess.Popen(
        [sys.executable, "-m", "components.evaluate", "--executor-input", executor_input("evaluate", tmp_path, inputs)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        deadline = time.monotonic() + 120
        while not list((run / "shards" / "main").glob("*.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        started.send_signal(signal.SIGTERM)
        stderr = started.communicate(timeout=60)[1]
    finally:
        started.kill()
    assert started.returncode == 130
    assert "interrupted; what is committed is kept" in stderr
    assert "Traceback" not in stderr
    assert not ranks_of(run)
    committed, planned_shards = shards_of(run)
    assert 0 < committed < planned_shards


def ranks_of(run: Path) -> list[str]:
    """Processes that work on `run`."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            except OSError:
                continue
            if str(run) in words:
                found.append(entry.name)
    return found
