"""What NetworkPolicies allow, by the rules of the API: no policy for a pod allows all, several add up."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One end of a connection.

    Attributes:
        labels: of the pod; None for an address outside the cluster's pods.
        namespace: its name, and the value of its label kubernetes.io/metadata.name.
        address: where there is no pod.
    """

    labels: Mapping[str, str] | None = None
    namespace: str = "concord"
    address: str = "10.88.0.9"


@dataclass(frozen=True, kw_only=True)
class Network:
    """The policies of a namespace."""

    policies: list[Document] = field(default_factory=list)

    def allows(self, source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
        """Whether `source` may connect to `target`: its way out and the other's way in."""
        return self._one_way("Egress", source, target, port, protocol) and self._one_way(
            "Ingress", target, source, port, protocol
        )

    def _one_way(self, direction: str, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
        mine = [p["spec"] for p in self.policies if direction in p["spec"]["policyTypes"] and _selects(p, pod)]
        key, side = ("egress", "to") if direction == "Egress" else ("ingress", "from")
        rules = [rule for spec in mine for rule in spec.get(key, [])]
        return not mine or any(_rule(rule, side, pod, other, port, protocol) for rule in rules)


def _selects(policy: Document, pod: Peer) -> bool:
    same = policy["metadata"]["namespace"] == pod.namespace
    return same and pod.labels is not None and _matches(policy["spec"]["podSelector"], pod.labels)


def _matches(selector: Document, labels: Mapping[str, str]) -> bool:
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        if labels.get(expression["key"]) not in expression["values"]:
            return False
    return True


def _rule(rule: Document, side: str, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    fits = ports is None or any(p.get("protocol", "TCP") == protocol and p["port"] == port for p in ports)
    return fits and (side not in rule or any(_peer(entry, pod, other) for entry in rule[side]))


def _peer(entry: Document, pod: Peer, other: Peer) -> bool:
    if "ipBlock" in entry:
        address = ipaddress.ip_address(other.address)
        block = entry["ipBlock"]
        inside = address in ipaddress.ip_network(block["cidr"])
        return inside and not any(address in ipaddress.ip_network(net) for net in block.get("except", []))
    if other.labels is None:
        return False
    if "namespaceSelector" in entry:
        if not _matches(entry["namespaceSelector"], {"kubernetes.io/metadata.name": other.namespace}):
            return False
    elif other.namespace != pod.namespace:
        return False
    return _matches(entry.get("podSelector", {}), other.labels)
