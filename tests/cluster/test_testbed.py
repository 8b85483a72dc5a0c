"""The cluster itself: what the other tests in this folder take for granted."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from obstore.exceptions import AlreadyExistsError
from obstore.store import S3Store
from testbed import processes
from testbed.cluster import Cluster
from testbed.s3 import S3
from testbed.shell import TestbedError, wait_until

# The Master adds up what each worker sends it: the pods find each other by name and reach each other on any port.
ADD_UP = """
import os, socket, sys
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank:
    socket.create_connection(address, timeout=60).sendall(bytes([rank]))
else:
    listener = socket.create_server(("", address[1]))
    print("sum", sum(listener.accept()[0].recv(1)[0] for _ in range(world - 1)), flush=True)
"""
# Asks the API server by its service's name, as the pod's own account.
ASK = """
import json, ssl, urllib.error, urllib.request
folder = "/var/run/secrets/kubernetes.io/serviceaccount"
request = urllib.request.Request(
    "https://kubernetes.default.svc.cluster.local/api/v1/namespaces/default/pods",
    headers={"Authorization": "Bearer " + open(folder + "/token").read()},
)
try:
    urllib.request.urlopen(request, context=ssl.create_default_context(cafile=folder + "/ca.crt"))
    print("allowed")
except urllib.error.HTTPError as error:
    print(json.load(error)["message"])
"""
TICK = (
    "import pathlib, time\nwhile True:\n  pathlib.Path('/shared/tick').write_text(str(time.time()))\n  time.sleep(0.2)"
)


def pod(name: str, image: str, program: str, *, node: str | None = None, claim: str | None = None) -> str:
    """A pod that runs a Python program once."""
    container: dict[str, object] = {"name": "main", "image": image, "command": ["python3", "-c", program]}
    # Without a share of its own it would wait for every pod that asked for one.
    container["resources"] = {"requests": {"cpu": "100m"}}
    spec: dict[str, object] = {
        "containers": [container],
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
            for key in ("unreachable", "not-ready")
        ],
    }
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if claim:
        container["volumeMounts"] = [{"name": "shared", "mountPath": "/shared"}]
        spec["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}]
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def shared_claim(cluster: Cluster, namespace: str) -> str:
    cluster.offer_shared_folder(namespace, "shared")
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "shared"}, "spec": spec}
    cluster.kubectl("create", f"--namespace={namespace}", "-f", "-", input=json.dumps(claim))
    return "shared"


def result_of(cluster: Cluster, namespace: str, name: str, timeout: int = 60) -> str:
    """The output of a pod that must succeed."""
    cluster.kubectl(
        "wait",
        f"--namespace={namespace}",
        f"pod/{name}",
        "--for=jsonpath={.status.phase}=Succeeded",
        f"--timeout={timeout}s",
    )
    return cluster.kubectl("logs", f"--namespace={namespace}", name)


def is_ready(cluster: Cluster, node: str) -> bool:
    path = '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
    return cluster.kubectl("get", "node", node, path) == "True"


def test_a_record_that_another_process_has_inherited_is_not_ended() -> None:
    own = processes.start_time(os.getpid())
    words = Path("/proc/self/cmdline").read_text().split("\0")[:-1]
    itself = processes.Record(name="itself", pid=os.getpid(), started=own, command=words)
    assert processes.alive(itself)
    assert not processes.alive(replace(itself, started=own - 1))
    assert not processes.alive(replace(itself, command=["/usr/bin/containerd"]))


def test_every_node_is_ready(cluster: Cluster) -> None:
    assert cluster.nodes
    assert all(is_ready(cluster, node) for node in cluster.nodes)


def test_a_powerless_account_reaches_the_api_by_name_and_is_refused(
    cluster: Cluster, namespace: Callable[..., str], python_image: str
) -> None:
    space = namespace()
    for number, node in enumerate(cluster.nodes):
        body = pod(f"ask-{number}", python_image, ASK, node=node)
        cluster.kubectl("create", f"--namespace={space}", "-f", "-", input=body)
    for number, _ in enumerate(cluster.nodes):
        answer = result_of(cluster, space, f"ask-{number}")
        assert f'User "system:serviceaccount:{space}:default" cannot list resource "pods"' in answer


def test_a_job_of_three_pods_succeeds_across_the_nodes(
    cluster: Cluster, namespace: Callable[..., str], python_image: str
) -> None:
    space = namespace()
    container = {"name": "pytorch", "image": python_image, "command": ["python3", "-c", ADD_UP]}
    pods = [
        {"spec": {"containers": [container], "nodeSelector": {"kubernetes.io/hostname": node}}}
        for node in (cluster.nodes[0], cluster.nodes[-1])
    ]
    replicas = {
        "Master": {"replicas": 1, "restartPolicy": "Never", "template": pods[0]},
        "Worker": {"replicas": 2, "restartPolicy": "Never", "template": pods[1]},
    }
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "adds-up"},
        "spec": {"pytorchReplicaSpecs": replicas},
    }
    cluster.kubectl("create", f"--namespace={space}", "-f", "-", input=json.dumps(job))
    cluster.kubectl("wait", f"--namespace={space}", "pytorchjob/adds-up", "--for=condition=Succeeded", "--timeout=90s")
    assert cluster.kubectl("logs", f"--namespace={space}", "adds-up-master-0") == "sum 3\n"


def test_the_webhook_refuses_a_job_without_its_container(cluster: Cluster, namespace: Callable[..., str]) -> None:
    template = {"spec": {"containers": [{"name": "other", "image": "none"}]}}
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "refused"},
        "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": template}}},
    }
    with pytest.raises(TestbedError, match=r"admission webhook .* denied the request"):
        cluster.kubectl("create", f"--namespace={namespace()}", "-f", "-", input=json.dumps(job))


def test_put_if_absent_has_one_winner_and_the_pods_reach_the_server(
    cluster: Cluster, namespace: Callable[..., str], python_image: str, s3: S3
) -> None:
    s3.make_bucket("testbed")
    store = S3Store(
        "testbed",
        endpoint=s3.endpoint,
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        region=s3.region,
        client_options={"allow_http": True},
    )
    store.put("once", b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("once", b"second", mode="create")
    assert bytes(store.get("once").bytes()) == b"first"

    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{s3.endpoint}/testbed/once")
    space = namespace()
    program = f"import urllib.request\ntry: urllib.request.urlopen('{s3.endpoint}/testbed/once')\nexcept Exception as error: print(error)"
    cluster.kubectl(
        "create", f"--namespace={space}", "-f", "-", input=pod("reach", python_image, program, node=cluster.nodes[-1])
    )
    assert "403" in result_of(cluster, space, "reach")


def test_a_zombie_runs_on_and_a_lost_node_does_not(
    losable_cluster: Cluster, namespace: Callable[..., str], python_image: str
) -> None:
    cluster, space = losable_cluster, namespace()
    claim = shared_claim(cluster, space)
    tick = cluster.shared_folder / "tick"
    tick.unlink(missing_ok=True)
    body = pod("ticks", python_image, TICK, node="node-2", claim=claim)
    cluster.kubectl("create", f"--namespace={space}", "-f", "-", input=body)
    wait_until(tick.exists, "the pod ticks", 60)

    cluster.zombie_node("node-2")
    wait_until(lambda: not is_ready(cluster, "node-2"), "node-2 is seen to be lost", 60)
    wait_until(lambda: is_deleted(cluster, space, "ticks"), "the pod is given up", 30)
    assert ticks(tick)

    cluster.kill_node("node-2")
    assert not ticks(tick)

    cluster.revive_node("node-2")
    body = pod("after", python_image, "print('back')", node="node-2")
    cluster.kubectl("create", f"--namespace={space}", "-f", "-", input=body)
    assert result_of(cluster, space, "after") == "back\n"


def is_deleted(cluster: Cluster, namespace: str, name: str) -> bool:
    """Whether the pod is to be deleted, or gone: a kubelet that is not there cannot confirm the end of its pods."""
    path = "--output=jsonpath={.metadata.deletionTimestamp}"
    try:
        return cluster.kubectl("get", "pod", f"--namespace={namespace}", name, path) != ""
    except TestbedError:
        return True


def ticks(file: Path) -> bool:
    """Whether the file changes within some seconds; a pod beside busy ones may be late."""
    before, deadline = file.read_text(), time.monotonic() + 5
    while time.monotonic() < deadline:
        if file.read_text() not in (before, ""):
            return True
        time.sleep(0.1)
    return False
