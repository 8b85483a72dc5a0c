"""The exit task as a pod: it deletes the run's job, which no signal would have ended, and reports what is there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launching import Space, make_space
from testbed import docker
from testbed.cluster import Cluster

from components.evaluate.job import build_job
from components.evaluate.pod_template import parse_pod_template
from components.evaluate.request import LaunchRequest
from components.images import image

NOWHERE = {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}
TERMINATED = {"state": "FAILED", "error": {"code": 1, "message": "Task evaluate failed."}}


@pytest.fixture(scope="module")
def report_image(cluster: Cluster) -> str:
    tag = image("generate_report")
    if cluster.own:
        docker.start()
        docker.build("generate_report", tag, {})
        cluster.load_image(tag)
    return tag


@pytest.fixture
def space(cluster: Cluster, tmp_path: Path) -> Iterator[Space]:
    """A namespace with the shipped accounts and Role."""
    made = make_space(cluster, "restricted", tmp_path)
    yield made
    cluster.kubectl("delete", "namespace", made.name, "--wait=false")


@pytest.fixture
def run(cluster: Cluster) -> Iterator[str]:
    """A run with nothing in it, where the pods have the shared folder."""
    folder = cluster.shared_folder / "exit-task"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o777)
    yield "/runs/exit-task"
    shutil.rmtree(folder)


@pytest.fixture
def job(space: Space, run: str) -> str:
    """A job of the run, whose pods wait for a node that never comes."""
    request = LaunchRequest(
        run=run,
        plan_digest="0" * 64,
        namespace=space.name,
        image=image("worker"),
        workers=2,
        processes_per_worker=1,
        gpus_per_worker=0,
        pod_template=json.dumps(NOWHERE),
        timeout=600,
        patience=600,
    )
    manifest = build_job(request, parse_pod_template(request.pod_template), 1, None)
    space.create(manifest)
    name: str = manifest["metadata"]["name"]
    space.until(lambda: len(space.pods_of(name)) == 2, "the job has its pods")
    return name


def exit_task(space: Space, tag: str, run: str) -> tuple[str, str]:
    """(phase, log) of the step as a pipeline's pod."""
    outputs = {
        name: {"artifacts": [{"name": name, "uri": f"/tmp/outputs/{name}"}]}
        for name in ("report", "summary", "metrics")
    }
    given = {
        "inputs": {"parameterValues": {"run": run, "backend": "pytorchjob", "status": TERMINATED}},
        "outputs": {"artifacts": outputs, "outputFile": "/tmp/outputs/executor_output.json"},
    }
    container: dict[str, Any] = {
        "name": "main",
        "image": tag,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-m", "components.generate_report", "--executor-input", json.dumps(given)],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shared", "mountPath": "/runs"},
        ],
    }
    space.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "exit-task", "labels": {"app.kubernetes.io/name": "concord"}},
            "spec": {
                "serviceAccountName": "concord-launcher",
                "restartPolicy": "Never",
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [container],
                "volumes": [
                    {"name": "tmp", "emptyDir": {}},
                    {"name": "shared", "persistentVolumeClaim": {"claimName": "concord-runs"}},
                ],
            },
        }
    )
    return space.await_launcher("exit-task", 120)


def test_the_job_goes_and_the_report_comes(space: Space, job: str, run: str, report_image: str) -> None:
    phase, log = exit_task(space, report_image, run)
    assert phase == "Succeeded", log
    assert f"deleted the job {job}\n" in log
    assert f"Nothing planned: There is no plan at {run}, so nothing was evaluated." in log
    space.until(lambda: space.jobs() == [] and space.pods_of(job) == {}, "job and pods are gone")


def test_without_the_right_to_delete_it_reports_and_fails(space: Space, job: str, run: str, report_image: str) -> None:
    role = space.get("role", "concord-launcher")
    for rule in role["rules"]:
        if "pytorchjobs" in rule["resources"]:
            rule["verbs"].remove("delete")
    space.kubectl("replace", "--filename=-", input=json.dumps(role))
    phase, log = exit_task(space, report_image, run)
    assert phase == "Failed"
    assert f"lacks the verb 'delete' on 'pytorchjobs' in namespace {space.name}" in log
    assert "Nothing planned" in log
    assert "Traceback" not in log
    assert space.jobs() == [job]
