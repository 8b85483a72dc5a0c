"""The PyTorchJob of a run, as a value: nothing here talks to a cluster."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Any

from components.evaluate.names import RUN_LABEL, job_name, run_key
from components.evaluate.pod_template import OWN_VOLUMES, PodTemplate
from components.evaluate.request import LaunchRequest
from eval_core.errors import UsageError

Json = dict[str, Any]

PLAN_ANNOTATION = "concord-eval/plan"
RUN_ANNOTATION = "concord-eval/run-uri"
CONTAINER = "pytorch"
GPU = "nvidia.com/gpu"
RUNS_CLAIM = "concord-runs"
RUNS_PATH = "/runs"
RUNS_VOLUME = "runs"
STORAGE_SECRET = "concord-storage"
WORKER_ACCOUNT = "concord-worker"
GRACE_SECONDS = 30

_USER = 65532
_PORT = 23456
_TTL_SECONDS = 24 * 3600
_RESTARTS = 3
_LONGEST_NAME = 63
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_ISTIO: Mapping[str, str] = {"sidecar.istio.io/inject": "false"}
_APP: Mapping[str, str] = {"app.kubernetes.io/name": "concord", "app.kubernetes.io/component": "worker"}


def build_job(request: LaunchRequest, template: PodTemplate, attempt: int, owner: Json | None) -> Json:
    """The manifest of attempt `attempt` at `request`; `owner`: an ownerReference.

    Raises:
        UsageError: names would be too long, `gpus_per_worker` contradicts the template, or the pods couldn't see the run.
    """
    name = job_name(request.run, attempt)
    check_names(name, request.workers)
    labels = {**template.labels, RUN_LABEL: run_key(request.run), **_APP}
    pods = _pods(request, template, labels)
    replicas = {"Master": {"replicas": 1, "restartPolicy": "OnFailure", "template": pods}}
    if request.workers > 1:
        replicas["Worker"] = {"replicas": request.workers - 1, "restartPolicy": "OnFailure", "template": pods}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {
            "name": name,
            "namespace": request.namespace,
            "labels": labels,
            "annotations": {PLAN_ANNOTATION: request.plan_digest, RUN_ANNOTATION: request.run},
            "ownerReferences": [owner] if owner else [],
        },
        "spec": {
            "nprocPerNode": str(request.processes_per_worker),
            "runPolicy": {
                "cleanPodPolicy": "Running",
                "backoffLimit": request.workers + _RESTARTS,
                "activeDeadlineSeconds": request.timeout,
                "ttlSecondsAfterFinished": _TTL_SECONDS,
            },
            "pytorchReplicaSpecs": replicas,
        },
    }


def check_names(name: str, workers: int) -> None:
    """See that the operator can name the pods and their Services after the job, which it doesn't check itself.

    Raises:
        UsageError: a name isn't a DNS label, or is too long.
    """
    longest = f"{name}-worker-{max(workers - 2, 0)}"
    if not _LABEL.fullmatch(name):
        raise UsageError(f"{name!r} can't name a job: small letters, digits and '-', starting with a letter")
    if len(longest) > _LONGEST_NAME:
        raise UsageError(
            f"{longest!r} would have {len(longest)} characters; the name of a pod's Service has {_LONGEST_NAME} at most"
        )


def _pods(request: LaunchRequest, template: PodTemplate, labels: Json) -> Json:
    volumes, mounts = _volumes(request.run, template)
    spec = {
        "serviceAccountName": WORKER_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [
            *(
                {
                    "key": f"node.kubernetes.io/{taint}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 30,
                }
                for taint in ("not-ready", "unreachable")
            ),
            *template.tolerations,
        ],
        "containers": [
            {
                "name": CONTAINER,
                "image": request.image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "eval_core.work.node"],
                "ports": [{"name": "pytorchjob-port", "containerPort": _PORT, "protocol": "TCP"}],
                "env": _environment(request.run, template),
                "envFrom": [{"secretRef": {"name": STORAGE_SECRET, "optional": True}}, *template.env_from],
                "resources": _resources(request.gpus_per_worker, template),
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    placement = {
        "nodeSelector": dict(template.node_selector),
        "affinity": template.affinity,
        "imagePullSecrets": list(template.image_pull_secrets),
        "runtimeClassName": template.runtime_class,
    }
    spec |= {key: value for key, value in placement.items() if value}
    return {"metadata": {"labels": {**labels, **_ISTIO}, "annotations": dict(_ISTIO)}, "spec": spec}


def _environment(run: str, template: PodTemplate) -> list[Json]:
    theirs = {variable["name"] for variable in template.env}
    folders = {"HOME": "/tmp", "HF_HOME": "/tmp/huggingface", "TMPDIR": "/tmp"}
    ours = [{"name": name, "value": value} for name, value in folders.items() if name not in theirs]
    return [{"name": "CONCORD_RUN", "value": run}, *ours, *template.env]


def _resources(gpus: int, template: PodTemplate) -> Json:
    limits = template.resources.get("limits", {})
    if not gpus:
        return template.resources
    if str(limits.get(GPU, gpus)) != str(gpus):
        raise UsageError(
            f"gpus_per_worker is {gpus}, but pod_template's resources.limits.{GPU} is {limits[GPU]}; give one of the two"
        )
    return {**template.resources, "limits": {**limits, GPU: str(gpus)}}


def _volumes(run: str, template: PodTemplate) -> tuple[list[Json], list[Json]]:
    """(volumes, mounts). A run on a path needs a mount that the pods share; below /runs it is the claim of the manifests."""
    volumes: list[Json] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        *template.volumes,
    ]
    mounts: list[Json] = [
        *({"name": name, "mountPath": path} for name, path in OWN_VOLUMES.items()),
        *template.volume_mounts,
    ]
    if "://" in run or any(_lies_below(run, mount["mountPath"]) for mount in template.volume_mounts):
        return volumes, mounts
    if not _lies_below(run, RUNS_PATH):
        raise UsageError(
            f"the run is at {run!r}, which the pods don't share: use {RUNS_PATH}/NAME (the claim {RUNS_CLAIM}), a URI such as "
            "s3://, or a volume and its volumeMount in pod_template"
        )
    if any(volume["name"] == RUNS_VOLUME for volume in template.volumes):
        raise UsageError(
            f"pod_template: the volume '{RUNS_VOLUME}' isn't mounted at {RUNS_PATH}; mount it there, or choose another name"
        )
    volumes.append({"name": RUNS_VOLUME, "persistentVolumeClaim": {"claimName": RUNS_CLAIM}})
    mounts.append({"name": RUNS_VOLUME, "mountPath": RUNS_PATH})
    return volumes, mounts


def _lies_below(path: str, folder: str) -> bool:
    """Whether `path` is a path inside `folder`."""
    return posixpath.normpath(path).startswith(posixpath.normpath(folder) + "/")
