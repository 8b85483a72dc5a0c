"""The pipeline on one machine, without Kubernetes: kfp's DockerRunner with the built images."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.types import Mount
from kfp import local

from eval_core.reduce import load_reduction
from eval_core.storage import Store
from eval_core.verify.types import load_verification
from pipelines.distributed_evaluation import build_pipeline


@pytest.fixture
def container_arguments(docker_host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """How every container is started: as this user, with the tests' folder, a read-only root and no network."""
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    folder = str(tmp_path.parent)
    return {
        "mounts": [Mount(target=folder, source=folder, type="bind")],
        "user": f"{os.getuid()}:{os.getgid()}",
        "network_mode": "none",
        "read_only": True,
        "tmpfs": {"/tmp": "mode=1777"},
    }


@pytest.fixture
def start(container_arguments: dict[str, Any], images: dict[str, str], tmp_path: Path) -> Callable[..., None]:
    """Run the pipeline: `start(spec="...", run="...")`."""

    def run(**inputs: object) -> None:
        local.init(runner=local.DockerRunner(**container_arguments), pipeline_root=str(tmp_path / "outputs"))
        build_pipeline("local")(**inputs)

    return run


def test_the_images_give_the_bits_of_concord_run(
    start: Callable[..., None],
    images: dict[str, str],
    container_arguments: dict[str, Any],
    tiny_spec: Callable[..., Path],
    tmp_path: Path,
) -> None:
    spec, alone, run = tiny_spec(), tmp_path / "alone", tmp_path / "run"
    client = docker.from_env()
    command = ["concord", "run", str(spec), "--run", str(alone), "--nproc", "1"]
    client.containers.run(images["worker"], command, remove=True, **container_arguments)
    start(spec=spec.read_text(encoding="utf-8"), run=str(run), processes=2)
    assert load_reduction(Store(str(run))).digest == load_reduction(Store(str(alone))).digest
    assert (run / "results.json").read_bytes() == (alone / "results.json").read_bytes()
    (report,) = tmp_path.glob("outputs/*/generate-report/report")
    assert report.read_bytes() == (run / "report.html").read_bytes()


def test_the_exit_task_reports_a_failed_check(
    start: Callable[..., None], tiny_spec: Callable[..., Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    spec = tiny_spec(dtype="bfloat16", tokens=2048).read_text(encoding="utf-8")
    # kfp removes a container when it ends, and where it comes too late to ask for the exit code it takes it for 0: whether
    # the pipeline is red is therefore asserted in tests/integration/test_pipeline.py.
    with suppress(RuntimeError):
        start(spec=spec.replace("micro_batches: 4", "micro_batches: 99"), run=str(run), tolerance=1e-12)
    assert load_verification(Store(str(run))).verdict == "failed"
    (summary,) = tmp_path.glob("outputs/*/generate-report/summary")
    assert "✗ no" in summary.read_text(encoding="utf-8")
