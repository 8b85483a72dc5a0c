"""Who may talk to whom. The policies are read as a network plugin that enforces them would read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from network import Network, Peer
from objects import pod_templates

Document = dict[str, Any]

DNS = Peer(labels={"k8s-app": "kube-dns"}, namespace="kube-system")
NODE_DNS = Peer(address="169.254.20.10")
API_SERVER = Peer(address="10.96.0.1")
STRANGER = Peer(labels={"app": "other"})
FAR_STRANGER = Peer(
    labels={"app.kubernetes.io/name": "concord", "app.kubernetes.io/component": "worker"}, namespace="x"
)
STORE = Peer(address="52.216.1.1")
METADATA = Peer(address="169.254.169.254")


def _network(documents: list[Document]) -> tuple[Network, dict[str, Peer]]:
    policies = [d for d in documents if d["kind"] == "NetworkPolicy"]
    pods = {name: Peer(labels=t["metadata"]["labels"]) for name, t in pod_templates(documents).items()}
    return Network(policies=policies), pods


@pytest.mark.parametrize("port", [23456, 29500, 40123])
def test_workers_reach_each_other_on_every_port(overlay: list[Document], port: int) -> None:
    network, pods = _network(overlay)
    assert network.allows(pods["concord-work-Worker"], pods["concord-work-Master"], port)
    assert network.allows(pods["concord-work-Master"], pods["concord-work-Worker"], port)


def test_nobody_else_reaches_a_pod(overlay: list[Document]) -> None:
    network, pods = _network(overlay)
    for pod in pods.values():
        for other in (STRANGER, FAR_STRANGER, pods["concord-plan"], pods["concord-report"], DNS):
            assert not network.allows(other, pod, 23456)


def test_every_pod_resolves_names(overlay: list[Document]) -> None:
    network, pods = _network(overlay)
    for pod in pods.values():
        for server in (DNS, NODE_DNS):
            assert network.allows(pod, server, 53, "UDP")
            assert network.allows(pod, server, 53, "TCP")
            assert not network.allows(pod, server, 8080)


def test_no_pod_reaches_the_api_server_or_a_stranger(overlay: list[Document]) -> None:
    network, pods = _network(overlay)
    for pod in pods.values():
        assert not network.allows(pod, STRANGER, 443 if not _store(overlay) else 8443)
        assert not network.allows(pod, METADATA, 80)
        assert not network.allows(pod, METADATA, 443)
        assert not network.allows(pod, API_SERVER, 6443)


def test_storage_is_reached_where_it_is_an_object_store(build: Callable[[str], list[Document]]) -> None:
    for name, reached in (("pvc", False), ("s3", True), ("gpu", False), ("restricted", False), ("monitoring", False)):
        network, pods = _network(build(f"manifests/overlays/{name}"))
        for pod in pods.values():
            assert network.allows(pod, STORE, 443) is reached
            assert not network.allows(pod, STORE, 80)


def test_prometheus_reaches_the_metrics_and_nothing_else(build: Callable[[str], list[Document]]) -> None:
    prometheus = Peer(labels={"app.kubernetes.io/name": "prometheus"}, namespace="monitoring")
    network, pods = _network(build("manifests/overlays/monitoring"))
    assert network.allows(prometheus, pods["concord-work-Master"], 9400)
    assert not network.allows(prometheus, pods["concord-work-Master"], 23456)
    assert not network.allows(STRANGER, pods["concord-work-Master"], 9400)
    assert not network.allows(prometheus, pods["concord-plan"], 9400)


def test_without_policies_all_is_allowed() -> None:
    assert Network().allows(STRANGER, FAR_STRANGER, 1)


def _store(documents: list[Document]) -> bool:
    return any(d["metadata"]["name"] == "concord-storage" for d in documents if d["kind"] == "NetworkPolicy")
