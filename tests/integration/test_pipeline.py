"""The pipeline through kfp's own local orchestrator, with the steps' real processes.

In the place of Docker a process starts each step's command, so that no daemon and no images are needed; `tests/cluster` has
the same with the images.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import pytest
from kfp import local
from kfp.local import docker_task_handler

from components.images import image
from eval_core.reduce import load_reduction
from eval_core.storage import Store
from eval_core.verify.types import load_verification
from pipelines.distributed_evaluation import build_pipeline

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Step:
    """A container that kfp started: its image, its exit code, and what it was given."""

    image: str
    returncode: int
    executor_input: dict[str, Any]


class _NoDaemon:
    def info(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Step]:
    """What kfp starts, in order; each is run as a process here."""
    started: list[Step] = []

    def run(client: object, image: str, command: list[str], volumes: object, **arguments: object) -> int:
        assert command[:2] == ["python", "-m"]
        done = subprocess.run([sys.executable, *command[1:]], cwd=ROOT, check=False)
        given = json.loads(command[command.index("--executor-input") + 1])
        started.append(Step(image=image, returncode=done.returncode, executor_input=given))
        return done.returncode

    monkeypatch.setattr(docker_task_handler, "run_docker_container", run)
    monkeypatch.setattr(docker, "from_env", _NoDaemon)
    local.init(runner=local.DockerRunner(), pipeline_root=str(tmp_path / "outputs"))
    return started


def inline(path: Path) -> str:
    """A spec as a person pastes it into the UI."""
    return path.read_text(encoding="utf-8")


def test_the_pipeline_has_the_bits_of_one_process(
    steps: list[Step], tiny_spec: Callable[..., Path], concord: Callable[..., Any], tmp_path: Path
) -> None:
    spec = tiny_spec()
    alone = concord("run", spec, "--run", tmp_path / "alone")
    assert alone.returncode == 0, alone.stderr
    run = tmp_path / "run"
    build_pipeline("local")(spec=inline(spec), run=str(run), processes=2)
    images = [image("shard_data"), image("worker"), image("verify_precision"), image("generate_report")]
    assert [(step.image, step.returncode) for step in steps] == [(name, 0) for name in images]
    assert load_reduction(Store(str(run))).digest == load_reduction(Store(str(tmp_path / "alone"))).digest
    assert (run / "results.json").read_bytes() == (tmp_path / "alone" / "results.json").read_bytes()
    assert len(list(tmp_path.glob("outputs/*/generate-report/report"))) == 1


def test_a_failed_check_fails_the_pipeline_and_is_reported(
    steps: list[Step], tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    audited_in_full = inline(tiny_spec(dtype="bfloat16", tokens=2048)).replace("micro_batches: 4", "micro_batches: 99")
    with pytest.raises(RuntimeError, match="FAILURE"):
        build_pipeline("local")(spec=audited_in_full, run=str(run), tolerance=1e-12)
    assert [step.returncode for step in steps] == [0, 0, 1, 0]
    assert load_verification(Store(str(run))).verdict == "failed"
    assert steps[-1].executor_input["inputs"]["parameterValues"]["status"]["state"] == "FAILED"
    (summary,) = tmp_path.glob("outputs/*/generate-report/summary")
    assert "FAILED" in summary.read_text()
    assert (run / "report.html").is_file()


def test_a_bad_spec_stops_the_pipeline_and_the_exit_task_says_so(
    steps: list[Step], tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="FAILURE"):
        build_pipeline("local")(spec=inline(tiny_spec()).replace("tasks:", "taks:"), run=str(tmp_path / "run"))
    assert [(step.image, step.returncode) for step in steps] == [
        (image("shard_data"), 2),
        (image("generate_report"), 0),
    ]
    (summary,) = tmp_path.glob("outputs/*/generate-report/summary")
    assert "planned" in summary.read_text()
