"""A job that the launcher makes and the one that kubectl applies are the same work in the same pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from objects import find

from components.evaluate.job import build_job
from components.evaluate.names import RUN_LABEL
from components.evaluate.pod_template import parse_pod_template
from components.evaluate.request import LaunchRequest
from components.images import image

Document = dict[str, Any]

CPU = {"requests": {"cpu": "1", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
GPU = {"requests": {"cpu": "4", "memory": "16Gi"}, "limits": {"memory": "64Gi"}}
TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("overlay", "run", "gpus", "template"),
    [
        ("pvc", "/runs/first", 0, {"resources": CPU}),
        ("s3", "s3://concord-runs/first", 0, {"resources": CPU}),
        ("gpu", "/runs/first", 1, {"resources": GPU, "tolerations": [TAINT]}),
        ("restricted", "/runs/first", 0, {"resources": CPU}),
    ],
)
def test_both_ways_make_the_same_job(
    overlay: str, run: str, gpus: int, template: Document, build: Callable[[str], list[Document]]
) -> None:
    request = LaunchRequest(
        run=run,
        plan_digest="0" * 64,
        namespace="concord",
        image=image("worker"),
        workers=4,
        processes_per_worker=1,
        gpus_per_worker=gpus,
        pod_template=json.dumps(template),
        timeout=86400,
        patience=300,
    )
    launched = build_job(request, parse_pod_template(request.pod_template), 1, None)
    documents = build(f"manifests/overlays/{overlay}")
    applied = find(documents, "PyTorchJob")
    assert applied["metadata"]["namespace"] == launched["metadata"]["namespace"]
    assert _comparable(applied, documents) == _comparable(launched, [])


def _comparable(job: Document, documents: list[Document]) -> Document:
    """The job's spec with what differs by intent made equal: the launcher knows the run, kustomize names it in a ConfigMap."""
    spec = json.loads(json.dumps(job["spec"]))
    for replica in spec["pytorchReplicaSpecs"].values():
        replica["template"]["metadata"]["labels"].pop(RUN_LABEL, None)
        (container,) = replica["template"]["spec"]["containers"]
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        sources = []
        for source in container["envFrom"]:
            if "configMapRef" in source:
                variables |= find(documents, "ConfigMap", source["configMapRef"]["name"])["data"]
            else:
                sources.append(source)
        container |= {"env": variables, "envFrom": sources}
    return dict(spec)
