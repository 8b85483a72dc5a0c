"""The images by themselves: what they hold and don't hold, and the whole chain in them with a read-only root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from testbed import docker

from components.images import TARGETS, image
from eval_core.reduce import load_reduction
from eval_core.storage import Store

THIN = tuple(target for target in TARGETS if target != "worker")
LARGEST = 700_000_000
LAUNCHERS = ("evaluate", "generate_report")
CONFINED = ("--network=none", "--read-only", "--tmpfs=/tmp", "--cap-drop=ALL", "--security-opt=no-new-privileges")

SPEC = """
name: images
model: /evaluation/model
tasks:
  - {name: docs, type: perplexity, data: /evaluation/data/documents.jsonl, window: 64, stride: 48, limit: 10}
  - {name: quiz, type: multiple_choice, data: /evaluation/data/questions.jsonl, prompt: "Q: {input}\\nA:", limit: 16}
batch: {tokens: 512, shard_cost: 50000000}
audit: {micro_batches: 3}
report: {bootstrap: 50}
"""


def in_image(host: str, tag: str, *command: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `command` in a container that may write to /tmp and to `folder`, which it sees as /evaluation, and nowhere else."""
    volume = [f"--volume={folder}:/evaluation"] if folder else []
    words = [docker.CLIENT, "--host", host, "run", "--rm", *CONFINED, *volume, tag, *command]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def images(docker_host: str) -> dict[str, str]:
    """The tag of each target's image, built; no node needs them."""
    tags = {target: image(target) for target in TARGETS}
    for target, tag in tags.items():
        docker.build(target, tag, {})
    return tags


@pytest.mark.parametrize("target", THIN)
def test_size(target: str, docker_host: str, images: dict[str, str]) -> None:
    size = int(docker.docker("image", "inspect", "--format={{.Size}}", images[target]))
    assert size < LARGEST, f"{images[target]} has {size / 1e6:.0f} MB"


@pytest.mark.parametrize("target", TARGETS)
def test_content(target: str, docker_host: str, images: dict[str, str]) -> None:
    names = ("torch", "transformers", "kubernetes", "kfp", "pipelines", "components", "eval_core", "pip")
    code = f"from importlib.util import find_spec; print([n for n in {names} if find_spec(n)])"
    expected = ["components", "eval_core"]
    if target == "worker":
        expected = ["torch", "transformers", *expected]
    if target in LAUNCHERS:
        expected = ["kubernetes", *expected]
    assert in_image(docker_host, images[target], "python", "-c", code).stdout == f"{expected}\n"
    script = "id -u; id -g; for p in cc gcc g++ ld make; do command -v $p; done; touch /new 2>&1"
    said = in_image(docker_host, images[target], "sh", "-c", script).stdout.splitlines()
    assert said[:2] == ["65532", "65532"]
    assert said[2:] == ["touch: cannot touch '/new': Read-only file system"]
    assert in_image(docker_host, images[target]).stdout.lstrip().startswith("Usage: concord")


def test_only_the_worker_computes_here(docker_host: str, images: dict[str, str]) -> None:
    values = {"run": "/tmp/run", "plan_digest": "0", "image": "", "backend": "local", "pod_template": "{}"}
    numbers = dict.fromkeys(("workers", "processes_per_worker", "gpus_per_worker", "timeout", "patience"), 1)
    given = json.dumps({"inputs": {"parameterValues": values | numbers}, "outputs": {"outputFile": "/tmp/out.json"}})
    done = in_image(docker_host, images["evaluate"], "python", "-m", "components.evaluate", "--executor-input", given)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: backend 'local' computes in this step's own container, whose image must be {images['worker']} then\n"
    )


@pytest.fixture
def folder(tiny_model: Path, small_data: Path, tmp_path: Path) -> Path:
    """What the containers see as /evaluation: a model, data, and room for a run, open to every user."""
    shutil.copytree(tiny_model, tmp_path / "model")
    shutil.copytree(small_data, tmp_path / "data")
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chmod(path, 0o777)
    return tmp_path


def test_the_chain_gives_the_bits_of_one_local_process(
    docker_host: str, images: dict[str, str], folder: Path, concord: Callable[..., Any]
) -> None:
    def step(name: str, target: str, inputs: dict[str, Any], outputs: tuple[str, ...], parameter: str = "") -> Path:
        made = Path("/evaluation/outputs") / name
        given = {
            "inputs": {"parameterValues": inputs},
            "outputs": {
                "parameters": {parameter: {"outputFile": f"{made}/{parameter}"}} if parameter else {},
                "artifacts": {o: {"artifacts": [{"name": o, "uri": f"{made}/{o}"}]} for o in outputs},
                "outputFile": f"{made}/executor_output.json",
            },
        }
        command = ("python", "-m", f"components.{name}", "--executor-input", json.dumps(given))
        done = in_image(docker_host, images[target], *command, folder=folder)
        assert done.returncode == 0, done.stderr
        return folder / "outputs" / name

    run = {"run": "/evaluation/run"}
    planned = step(
        "shard_data", "shard_data", {**run, "spec": SPEC, "tolerance": 0}, ("plan", "metrics"), "plan_digest"
    )
    digest = (planned / "plan_digest").read_text()
    planned_run = {**run, "plan_digest": digest}
    sizes = {"workers": 1, "processes_per_worker": 2, "gpus_per_worker": 0, "timeout": 600, "patience": 10}
    how = {"backend": "local", "image": "", "pod_template": "{}", **sizes}
    step("evaluate", "worker", {**planned_run, **how}, ("metrics",), "job")
    verified = step("verify_precision", "verify_precision", planned_run, ("metrics", "checks"), "verdict")
    assert (verified / "verdict").read_text() == "passed"
    reported = step(
        "generate_report",
        "generate_report",
        {**run, "backend": "local", "status": {"state": "SUCCEEDED"}},
        ("report", "summary", "metrics"),
    )
    assert "Verified" in (reported / "report").read_text(encoding="utf-8")

    spec = folder / "spec.yaml"
    spec.write_text(SPEC.replace("/evaluation", str(folder)))
    here = concord("run", spec, "--run", folder / "here")
    assert here.returncode == 0, here.stderr
    assert load_reduction(Store(str(folder / "run"))).digest == load_reduction(Store(str(folder / "here"))).digest
