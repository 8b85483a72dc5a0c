"""The PyTorchJob as a value: what a restricted namespace, the operator and the API server ask of it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from types import SimpleNamespace
from typing import Any

import pytest
from kubeflow.training import KubeflowOrgV1PyTorchJob
from kubeflow.training.api_client import ApiClient

from components.evaluate.job import build_job, check_names
from components.evaluate.names import attempt_of, job_name, run_key
from components.evaluate.pod_template import parse_pod_template
from components.evaluate.request import LaunchRequest
from eval_core.errors import UsageError

RUN = "s3://evaluations/mine"
REQUEST = LaunchRequest(
    run=RUN,
    plan_digest="d" * 64,
    namespace="concord",
    image="concord/worker:0.1.0",
    workers=4,
    processes_per_worker=2,
    gpus_per_worker=0,
    pod_template="{}",
    timeout=3600,
    patience=300,
)
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "launcher", "uid": "1234"}


def build(
    template: str = "{}", attempt: int = 1, owner: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
    return build_job(dataclasses.replace(REQUEST, **changes), parse_pod_template(template), attempt, owner)


def pod_of(job: dict[str, Any], role: str = "Master") -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
    return spec


def test_the_name_says_which_run_and_which_attempt() -> None:
    key = hashlib.sha256(RUN.encode()).hexdigest()[:16]
    job = build(attempt=12)
    assert job["metadata"]["name"] == f"concord-{key}-12" == job_name(RUN, 12)
    assert (run_key(RUN), attempt_of(job["metadata"]["name"]), attempt_of("someone-elses")) == (key, 12, 0)
    assert job["metadata"]["labels"]["concord-eval/run"] == key
    assert job["metadata"]["annotations"] == {"concord-eval/plan": "d" * 64, "concord-eval/run-uri": RUN}


def test_the_operators_own_model_knows_every_key() -> None:
    """What the typed model drops, the API server would drop or refuse."""
    template = (
        '{"nodeSelector": {"pool": "gpu"}, "affinity": {"nodeAffinity": {}}, "runtimeClassName": "nvidia", '
        '"imagePullSecrets": [{"name": "registry"}], "resources": {"limits": {"memory": "8Gi"}}}'
    )
    job = build(template, owner=OWNER, run="/runs/mine", gpus_per_worker=1)
    client = ApiClient()
    typed = client.deserialize(SimpleNamespace(data=json.dumps(job)), KubeflowOrgV1PyTorchJob)
    assert prune(client.sanitize_for_serialization(typed)) == prune(job)


def prune(value: Any) -> Any:
    """Without empty members, which the models leave out."""
    if isinstance(value, dict):
        return {key: prune(member) for key, member in value.items() if member not in ({}, [], None)}
    return [prune(member) for member in value] if isinstance(value, list) else value


def test_replicas_and_the_policy_that_ends_the_job() -> None:
    job = build()
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in replicas.items()} == {"Master": 1, "Worker": 3}
    assert {spec["restartPolicy"] for spec in replicas.values()} == {"OnFailure"}
    assert replicas["Master"]["template"] == replicas["Worker"]["template"]
    assert job["spec"]["nprocPerNode"] == "2"
    assert job["spec"]["runPolicy"] == {
        "cleanPodPolicy": "Running",
        "backoffLimit": 7,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": 86400,
    }
    assert set(build(workers=1)["spec"]["pytorchReplicaSpecs"]) == {"Master"}


def test_pods_meet_the_restricted_standard_and_have_no_token() -> None:
    pod = pod_of(build())
    (container,) = pod["containers"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["serviceAccountName"] == "concord-worker"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/tmp"]] == {"name": "tmp", "emptyDir": {}}
    assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
    for variable in container["env"]:
        if variable["name"] in ("HOME", "HF_HOME", "TMPDIR"):
            assert variable["value"].startswith("/tmp")


def test_pods_leave_a_node_that_is_gone_after_half_a_minute() -> None:
    tolerations = pod_of(build('{"tolerations": [{"operator": "Exists"}]}'))["tolerations"]
    assert {t["key"]: (t["effect"], t["tolerationSeconds"]) for t in tolerations[:2]} == {
        "node.kubernetes.io/not-ready": ("NoExecute", 30),
        "node.kubernetes.io/unreachable": ("NoExecute", 30),
    }
    assert tolerations[2:] == [{"operator": "Exists"}]


def test_istio_stays_out() -> None:
    metadata = build()["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]
    assert metadata["labels"]["sidecar.istio.io/inject"] == "false"
    assert metadata["annotations"]["sidecar.istio.io/inject"] == "false"


def test_labels_of_the_template_are_the_jobs_and_the_pods() -> None:
    job = build('{"labels": {"kueue.x-k8s.io/queue-name": "q", "concord-eval/run": "forged"}}')
    pods = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["metadata"]["labels"]
    for labels in (job["metadata"]["labels"], pods):
        assert labels["kueue.x-k8s.io/queue-name"] == "q"
        assert labels["concord-eval/run"] == run_key(RUN)


def test_the_owner_is_the_launchers_pod_where_there_is_one() -> None:
    assert build(owner=OWNER)["metadata"]["ownerReferences"] == [OWNER]
    assert build()["metadata"]["ownerReferences"] == []


def test_the_users_environment_replaces_ours_and_secrets_pass() -> None:
    secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
    proxy = {"configMapRef": {"name": "proxy"}}
    (container,) = pod_of(
        build(json.dumps({"env": [{"name": "HF_HOME", "value": "/models/hf"}, secret], "envFrom": [proxy]}))
    )["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert names == ["CONCORD_RUN", "HOME", "TMPDIR", "HF_HOME", "HF_TOKEN"]
    assert container["env"][0]["value"] == RUN
    assert container["env"][-1] == secret
    assert container["envFrom"] == [{"secretRef": {"name": "concord-storage", "optional": True}}, proxy]


def test_gpus_are_limits() -> None:
    (container,) = pod_of(build('{"resources": {"limits": {"memory": "8Gi"}}}', gpus_per_worker=2))["containers"]
    assert container["resources"] == {"limits": {"memory": "8Gi", "nvidia.com/gpu": "2"}}
    assert pod_of(build('{"resources": {"limits": {"nvidia.com/gpu": 2}}}', gpus_per_worker=2))
    with pytest.raises(UsageError, match=r"gpus_per_worker is 2, but .*nvidia.com/gpu is 1"):
        build('{"resources": {"limits": {"nvidia.com/gpu": 1}}}', gpus_per_worker=2)


@pytest.mark.parametrize("run", ["s3://bucket/run", "gs://bucket/run", "az://bucket/run"])
def test_an_object_store_needs_no_volume(run: str) -> None:
    assert {volume["name"] for volume in pod_of(build(run=run))["volumes"]} == {"tmp", "shm"}


def test_a_path_below_runs_is_on_the_claim_of_the_manifests() -> None:
    pod = pod_of(build(run="/runs/mine"))
    assert {"name": "runs", "persistentVolumeClaim": {"claimName": "concord-runs"}} in pod["volumes"]
    assert {"name": "runs", "mountPath": "/runs"} in pod["containers"][0]["volumeMounts"]


def test_a_path_that_the_template_mounts_needs_nothing_else() -> None:
    template = '{"volumes": [{"name": "nfs"}], "volumeMounts": [{"name": "nfs", "mountPath": "/data"}]}'
    assert {volume["name"] for volume in pod_of(build(template, run="/data/mine"))["volumes"]} == {"tmp", "shm", "nfs"}


@pytest.mark.parametrize("run", ["/data/mine", "runs/mine", "/runs", "/runs/../data", "/database/mine"])
def test_a_path_that_the_pods_do_not_share_is_refused(run: str) -> None:
    template = '{"volumes": [{"name": "nfs"}], "volumeMounts": [{"name": "nfs", "mountPath": "/database/other"}]}'
    with pytest.raises(UsageError, match="which the pods don't share"):
        build(template, run=run)


def test_a_volume_named_runs_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match="the volume 'runs' isn't mounted at /runs"):
        build('{"volumes": [{"name": "runs"}]}', run="/runs/mine")


def test_names_that_the_operator_would_break_on_are_refused() -> None:
    check_names("c" * 54, 2)
    with pytest.raises(UsageError, match="would have 64 characters"):
        check_names("c" * 54, 12)
    with pytest.raises(UsageError, match="can't name a job"):
        check_names("1-concord", 2)
