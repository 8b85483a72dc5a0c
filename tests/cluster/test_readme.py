"""The README's commands for kubectl, as they are written there, on a copy of the example that is edited as a user edits it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from testbed import settings
from testbed.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = "concord"


def commands(heading: str) -> str:
    """The first block of commands in the README below `heading`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text[text.index(heading) :].split("```sh\n", 1)[1].split("```", 1)[0]


@pytest.fixture
def example(cluster: Cluster, tiny_model: Path, small_data: Path, tmp_path: Path) -> Iterator[Path]:
    """A folder with the example in it as in a clone, for two pods of two ranks; its volume holds a model and data."""
    if not cluster.own:
        pytest.skip("the README's namespace may be in use on the cluster of KUBECONFIG")
    shared = cluster.shared_folder / "readme"
    shutil.rmtree(shared, ignore_errors=True)
    shutil.copytree(tiny_model, shared / "model")
    shutil.copytree(small_data, shared / "data")
    for path in shared.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shared.chmod(0o777)
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "manifests", clone / "manifests")
    mine = clone / "examples" / "kubernetes"
    shutil.copytree(ROOT / "examples" / "kubernetes", mine)
    (mine / "spec.yaml").write_text(
        (mine / "spec.yaml")
        .read_text(encoding="utf-8")
        .replace("/runs/models/checkpoint-1000", "/runs/readme/model")
        .replace("/runs/data/notes.jsonl", "/runs/readme/data/documents.jsonl")
        .replace("/runs/data/quiz.jsonl", "/runs/readme/data/questions.jsonl")
        .replace("{question}", "{input}"),
        encoding="utf-8",
    )
    edited = (
        (mine / "kustomization.yaml")
        .read_text(encoding="utf-8")
        .replace("registry.example.com/", "")
        .replace("/runs/nightly", "/runs/readme/nightly")
        .replace("replicas, value: 7", "replicas, value: 1")
        .replace("backoffLimit, value: 11", "backoffLimit, value: 5")
    )
    kustomization = yaml.safe_load(edited)
    at = {
        "Job": ["/spec/template"],
        "PyTorchJob": [f"/spec/pytorchReplicaSpecs/{r}/template" for r in ("Master", "Worker")],
    }
    for kind, templates in at.items():
        patch = [
            {
                "op": "replace",
                "path": f"{template}/spec/containers/0/resources/requests",
                "value": {"cpu": "50m", "memory": "256Mi"},
            }
            for template in templates
        ]
        kustomization["patches"].append({"target": {"kind": kind}, "patch": yaml.safe_dump(patch)})
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
    cluster.offer_shared_folder(NAMESPACE)
    yield clone
    cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout=180)


def test_the_commands_for_kubectl(
    cluster: Cluster, example: Path, images: dict[str, str], tiny_model: Path, small_data: Path, tmp_path: Path
) -> None:
    program = settings.binary("kubectl").parent
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{program}:{os.environ['PATH']}"}
    script = "set -eux\n" + commands("**A PyTorchJob by kubectl**")
    done = subprocess.run(
        ["bash", "-c", script], cwd=example, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    cluster.kubectl(
        "--namespace",
        NAMESPACE,
        "wait",
        "--for=condition=Complete",
        "--timeout=120s",
        "job/concord-report",
        timeout=150,
    )

    shared = cluster.shared_folder / "readme"
    spec = (example / "examples/kubernetes/spec.yaml").read_text(encoding="utf-8")
    (tmp_path / "spec.yaml").write_text(spec.replace("/runs/readme", str(shared)), encoding="utf-8")
    concord = [sys.executable, "-m", "eval_core.cli"]
    alone = subprocess.run(
        [*concord, "run", tmp_path / "spec.yaml", "--run", tmp_path / "alone"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    compared = subprocess.run(
        [*concord, "compare", shared / "nightly", tmp_path / "alone"], capture_output=True, text=True, check=False
    )
    assert compared.stdout.startswith("identical: "), compared.stdout + compared.stderr
    assert len(list((shared / "nightly").glob("attempts/*/rank-*.json"))) == 4
