"""What the overlays are made of, and what a user's own overlay changes in them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from objects import find, pod_templates

from components.images import image
from eval_core.spec_yaml import load_spec
from eval_core.work.metrics_port import PORT

Document = dict[str, Any]
Build = Callable[[str | Path], list[Document]]
ROOT = Path(__file__).resolve().parents[3]
STEPS = {
    "setup": {
        "Namespace",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "NetworkPolicy",
        "PersistentVolumeClaim",
        "PodMonitor",
    },
    "plan": {"ConfigMap", "Job"},
    "work": {"PyTorchJob"},
    "report": {"Job"},
}


def test_every_object_belongs_to_one_step(overlay: list[Document]) -> None:
    for document in overlay:
        assert document["kind"] in STEPS[document["metadata"]["labels"]["concord-eval/step"]]
        assert document["metadata"]["labels"]["app.kubernetes.io/name"] == "concord"


def test_everything_is_in_the_namespace(overlay: list[Document]) -> None:
    for document in overlay:
        if document["kind"] != "Namespace":
            assert document["metadata"]["namespace"] == "concord"


def test_the_images_are_those_of_this_version(overlay: list[Document]) -> None:
    images = {name: t["spec"]["containers"][0]["image"] for name, t in pod_templates(overlay).items()}
    assert images == {
        "concord-plan": image("shard_data"),
        "concord-work-Master": image("worker"),
        "concord-work-Worker": image("worker"),
        "concord-report": image("generate_report"),
    }


def test_the_operator_accepts_the_job(overlay: list[Document]) -> None:
    """What its webhook checks, and the length of names, which it doesn't."""
    job = find(overlay, "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", job["metadata"]["name"])
    assert len(f"{job['metadata']['name']}-worker-9999") <= 63
    assert replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        assert [c["name"] for c in replica["template"]["spec"]["containers"]] == ["pytorch"]
        assert replica["restartPolicy"] == "OnFailure"


def test_no_job_runs_or_stays_for_ever(overlay: list[Document]) -> None:
    policies = [d["spec"] for d in overlay if d["kind"] == "Job"] + [find(overlay, "PyTorchJob")["spec"]["runPolicy"]]
    for policy in policies:
        assert policy["activeDeadlineSeconds"] > 0
        assert policy["ttlSecondsAfterFinished"] > 0
        assert policy["backoffLimit"] > 0


def test_all_steps_get_the_same_run_and_credentials(overlay: list[Document]) -> None:
    (settings,) = [d for d in overlay if d["kind"] == "ConfigMap" and "CONCORD_RUN" in d["data"]]
    for template in pod_templates(overlay).values():
        assert template["spec"]["containers"][0]["envFrom"] == [
            {"configMapRef": {"name": settings["metadata"]["name"]}},
            {"secretRef": {"name": "concord-storage", "optional": True}},
        ]


def test_a_volume_is_mounted_where_the_run_is(build: Build) -> None:
    for name in ("pvc", "gpu", "restricted", "monitoring"):
        documents = build(f"manifests/overlays/{name}")
        assert find(documents, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteMany"]
        for template in pod_templates(documents).values():
            mounts = {m["mountPath"]: m["name"] for m in template["spec"]["containers"][0]["volumeMounts"]}
            volumes = {v["name"]: v for v in template["spec"]["volumes"]}
            assert volumes[mounts["/runs"]]["persistentVolumeClaim"] == {"claimName": "concord-runs"}
        assert _setting(documents).startswith("/runs/")


def test_an_object_store_needs_no_volume(build: Build) -> None:
    documents = build("manifests/overlays/s3")
    assert not [d for d in documents if d["kind"] == "PersistentVolumeClaim"]
    assert _setting(documents).startswith("s3://")


def test_gpu_workers_have_one_gpu_each(build: Build) -> None:
    documents = build("manifests/overlays/gpu")
    for role in ("Master", "Worker"):
        spec = pod_templates(documents)[f"concord-work-{role}"]["spec"]
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]


def test_prometheus_scrapes_the_port_that_the_master_serves(build: Build) -> None:
    documents = build("manifests/overlays/monitoring")
    monitor = find(documents, "PodMonitor")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    master, worker = (pod_templates(documents)[f"concord-work-{role}"] for role in ("Master", "Worker"))
    assert monitor["selector"]["matchLabels"].items() <= master["metadata"]["labels"].items()
    (container,) = master["spec"]["containers"]
    (port,) = [p["containerPort"] for p in container["ports"] if p["name"] == endpoint["port"]]
    assert {"name": PORT, "value": str(port)} in container["env"]
    assert endpoint["port"] not in {p["name"] for p in worker["spec"]["containers"][0]["ports"]}


def test_only_the_overlay_restricted_enforces_the_profile(build: Build) -> None:
    enforced = {}
    for name in ("pvc", "s3", "gpu", "restricted"):
        labels = find(build(f"manifests/overlays/{name}"), "Namespace")["metadata"]["labels"]
        enforced[name] = labels["pod-security.kubernetes.io/enforce"]
        assert labels["pod-security.kubernetes.io/audit"] == labels["pod-security.kubernetes.io/warn"] == "restricted"
    assert enforced == {"pvc": "baseline", "s3": "baseline", "gpu": "baseline", "restricted": "restricted"}


@pytest.mark.parametrize(
    "folder", ["manifests/overlays/pvc", "manifests/overlays/s3", "manifests/overlays/gpu", "examples/kubernetes"]
)
def test_the_spec_that_is_planned_is_one(folder: str, build: Build, tmp_path: Path) -> None:
    documents = build(folder)
    (container,) = pod_templates(documents)["concord-plan"]["spec"]["containers"]
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "spec"]
    (volume,) = [v for v in pod_templates(documents)["concord-plan"]["spec"]["volumes"] if v["name"] == "spec"]
    data = find(documents, "ConfigMap", volume["configMap"]["name"])["data"]
    (path,) = [part for part in container["command"] if part.startswith(mount["mountPath"])]
    (tmp_path / "spec.yaml").write_text(data[Path(path).name], encoding="utf-8")
    spec = load_spec(tmp_path / "spec.yaml")
    assert spec.compute.device == ("cuda" if folder.endswith("gpu") else "cpu")
    assert all(task.data.startswith("/") for task in spec.tasks)


def test_an_overlay_of_ones_own_sets_spec_run_images_and_workers(build: Build) -> None:
    documents = build("examples/kubernetes")
    job = find(documents, "PyTorchJob")
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 7
    assert job["spec"]["nprocPerNode"] == "2"
    assert job["spec"]["runPolicy"]["backoffLimit"] == 1 + 7 + 3
    assert _setting(documents) == "/runs/nightly"
    for template in pod_templates(documents).values():
        assert template["spec"]["containers"][0]["image"].startswith("registry.example.com/concord/")
    (spec,) = [d["data"]["spec.yaml"] for d in documents if d["kind"] == "ConfigMap" and "spec.yaml" in d["data"]]
    assert yaml.safe_load(spec)["name"] == "nightly"
    (settings,) = [d for d in documents if d["kind"] == "ConfigMap" and "CONCORD_RUN" in d["data"]]
    for template in pod_templates(documents).values():
        assert {"configMapRef": {"name": settings["metadata"]["name"]}} in template["spec"]["containers"][0]["envFrom"]


def test_another_namespace_is_one_line(tmp_path: Path, build: Build) -> None:
    where = Path(ROOT, "manifests/overlays/restricted")
    own = Path(_relative(tmp_path, where))
    (tmp_path / "kustomization.yaml").write_text(f"namespace: team-a\nresources: [{own}]\n", encoding="utf-8")
    documents = build(tmp_path)
    assert find(documents, "Namespace")["metadata"]["name"] == "team-a"
    assert find(documents, "RoleBinding")["subjects"][0]["namespace"] == "team-a"
    assert {d["metadata"]["namespace"] for d in documents if d["kind"] != "Namespace"} == {"team-a"}


@pytest.mark.parametrize(
    ("reduce", "verify", "code", "called"),
    [
        (0, 0, 0, ["reduce", "verify", "report"]),
        (0, 1, 1, ["reduce", "verify", "report"]),
        (1, 0, 1, ["reduce"]),
    ],
)
def test_a_failed_check_fails_the_report_step_after_the_report(
    reduce: int, verify: int, code: int, called: list[str], build: Build, tmp_path: Path
) -> None:
    (container,) = pod_templates(build("manifests/overlays/pvc"))["concord-report"]["spec"]["containers"]
    concord = tmp_path / "concord"
    concord.write_text(
        f"#!/bin/sh\necho $1 >> {tmp_path}/called\ncase $1 in reduce) exit {reduce};; verify) exit {verify};; esac\n",
        encoding="utf-8",
    )
    concord.chmod(0o755)
    done = subprocess.run(container["command"], check=False, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.returncode == code
    assert (tmp_path / "called").read_text(encoding="utf-8").split() == called


def _setting(documents: list[Document]) -> str:
    (settings,) = [d["data"] for d in documents if d["kind"] == "ConfigMap" and "CONCORD_RUN" in d["data"]]
    return str(settings["CONCORD_RUN"])


def _relative(start: Path, target: Path) -> str:
    import os

    return os.path.relpath(target, start)
