"""What a cluster needs beyond Kubernetes itself: names of services, and the training operator with its webhooks."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any
from urllib.request import urlopen

from . import certificates, parts, processes, settings
from .shell import TestbedError, wait_until

Kubectl = Callable[..., str]
READY = "127.0.0.1:18181"
COREFILE = """\
.:53 {{
    bind {address}
    ready {ready}
    errors
    cache 5
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
    }}
}}
"""
DNS_RIGHTS = """\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: concord-testbed-dns}
rules:
- {apiGroups: [""], resources: [endpoints, services, pods, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: concord-testbed-dns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: concord-testbed-dns}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:coredns"}
"""
# The container that the operator adds to a worker has no security context, so a namespace with the restricted standard
# refuses the pod. This template, read by the operator from a file, is what we ship for the operator of such a cluster.
INIT_CONTAINER = settings.REPOSITORY / "manifests" / "operator" / "initContainer.yaml"
# The webhook answers when a job passes it; nothing is created.
HARMLESS_JOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "webhook-answers", "namespace": "default"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Master": {"replicas": 1, "template": {"spec": {"containers": [{"name": "pytorch", "image": "none"}]}}}
        }
    },
}


def start_dns(kubectl: Kubectl) -> None:
    """Start CoreDNS on the host."""
    kubectl("apply", "-f", "-", input=DNS_RIGHTS)
    corefile = settings.state() / "Corefile"
    values = {"address": settings.HOST_ADDRESS, "ready": READY, "kubeconfig": certificates.kubeconfig("dns")}
    corefile.write_text(COREFILE.format(**values), encoding="utf-8")
    processes.start("coredns", [settings.binary("coredns"), "-conf", corefile])


def await_dns() -> None:
    def answers() -> bool:
        processes.check_running("coredns")
        try:
            return bool(urlopen(f"http://{READY}/ready", timeout=2).status == 200)
        except OSError:
            return False

    wait_until(answers, "CoreDNS is ready", 60)


def install_operator(kubectl: Kubectl) -> None:
    """Apply the operator's own manifests, on node 1, with the image that was made here."""
    documents = [_adapted(document) for document in parts.operator_documents()]
    template = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "training-operator-init-container", "namespace": "kubeflow"},
        "data": {"initContainer.yaml": INIT_CONTAINER.read_text(encoding="utf-8")},
    }
    everything = {"apiVersion": "v1", "kind": "List", "items": [*documents, template]}
    # Client-side apply keeps the whole object in an annotation, and these definitions are too large for one.
    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=json.dumps(everything))


def await_operator(kubectl: Kubectl) -> None:
    """Wait until the operator is available and its webhook lets a job pass."""
    kubectl("rollout", "status", "--namespace=kubeflow", "deployment/training-operator", "--timeout=120s")
    job = json.dumps(HARMLESS_JOB)

    def passes() -> bool:
        try:
            kubectl("create", "--dry-run=server", "-f", "-", input=job)
        except TestbedError:
            return False
        return True

    wait_until(passes, "the training operator's webhook lets a job pass", 60)


def _adapted(document: dict[str, Any]) -> dict[str, Any]:
    """The operator's deployment with its init container's template, no pull, on node 1, and quicker probes."""
    if document["kind"] != "Deployment":
        return document
    adapted = copy.deepcopy(document)
    pod = adapted["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["imagePullPolicy"] = "IfNotPresent"
    container["readinessProbe"] |= {"initialDelaySeconds": 1, "periodSeconds": 1}
    container["volumeMounts"].append({"name": "init-container", "mountPath": "/etc/config", "readOnly": True})
    pod["volumes"].append({"name": "init-container", "configMap": {"name": "training-operator-init-container"}})
    pod["nodeName"] = settings.NODES[0].name
    return adapted
