"""The machine's side of the network: a bridge with the nodes' addresses, a namespace for every node but the host.

Each pod hangs on its node by a link of its own (the CNI plugin `ptp`), so all traffic is routed, and the packet filter rules
of the services see both directions of it.
"""

from __future__ import annotations

from pathlib import Path

from . import settings
from .settings import NodeSettings
from .shell import run, succeeds

LINK = "concord-{}"
FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


def up() -> None:
    """Make the bridge, the namespaces, and the routes between the nodes' pods."""
    FORWARD.write_text("1")
    run("ip", "link", "add", settings.BRIDGE, "type", "bridge")
    run("ip", "address", "add", f"{settings.HOST_ADDRESS}/24", "dev", settings.BRIDGE)
    run("ip", "link", "set", settings.BRIDGE, "up")
    # The host reaches services with the bridge's address, and without a default route of its own.
    run("ip", "route", "add", settings.SERVICE_ADDRESSES, "dev", settings.BRIDGE)
    for node in settings.NODES:
        if node.namespace:
            _add_namespace(node)


def down() -> None:
    """Undo `up`, whatever of it is there; and the packet filter rules of the services."""
    for node in settings.NODES:
        if node.namespace:
            succeeds("ip", "netns", "delete", node.namespace)
            succeeds("ip", "link", "delete", LINK.format(node.name))
    succeeds("ip", "link", "delete", settings.BRIDGE)
    for family in ("ip", "ip6"):
        succeeds("nft", "delete", "table", family, "kube-proxy")


def cut(node: NodeSettings) -> None:
    """Take the node's wire out: its peers hear nothing more of it, not even that a connection was closed."""
    run("ip", "link", "set", LINK.format(node.name), "down")


def mend(node: NodeSettings) -> None:
    """Put the wire back in, and the route to the node's pods, which went with it."""
    run("ip", "link", "set", LINK.format(node.name), "up")
    run("ip", "route", "replace", node.pod_addresses, "via", node.address)


def _add_namespace(node: NodeSettings) -> None:
    inside = ("nsenter", f"--net=/run/netns/{node.namespace}", "--")
    link = LINK.format(node.name)
    run("ip", "netns", "add", node.namespace)
    run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", node.namespace)
    run("ip", "link", "set", link, "master", settings.BRIDGE)
    run(*inside, "ip", "address", "add", f"{node.address}/24", "dev", "eth0")
    run(*inside, "ip", "link", "set", "lo", "up")
    run(*inside, "ip", "link", "set", "eth0", "up")
    run(*inside, "ip", "route", "add", "default", "via", settings.HOST_ADDRESS)
    run(*inside, "sh", "-c", f"echo 1 > {FORWARD}")
    mend(node)
