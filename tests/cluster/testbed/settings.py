"""Where everything lies and which addresses it has."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
MODULES = Path(__file__).resolve().parent / "go"
# One cluster a machine: its sockets and process records lie here, whichever folder it was started from. Short, because
# a socket's path has 107 characters at most.
RUN = Path("/run/concord-cluster")
KUBERNETES_VERSION = "1.34.4"
SERVICE_ADDRESSES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
HOST_ADDRESS = "10.88.0.1"
API_PORT = 6443
API_URL = f"https://{HOST_ADDRESS}:{API_PORT}"
BRIDGE = "concord0"
BASE_IMAGE = "concord-testbed/base:bookworm"
INIT_IMAGE = "alpine:3.10"
PAUSE_IMAGE = "concord-testbed/pause:1"


def cache() -> Path:
    """The folder of all that is built, and of the logs. It takes some 30 GB with the images, so all checkouts share one."""
    given = os.environ.get("CONCORD_CLUSTER_CACHE")
    return Path(given).resolve() if given else Path.home() / ".cache" / "concord-cluster"


def binary(name: str) -> Path:
    return cache() / "bin" / name


def state() -> Path:
    """What one start of the cluster leaves: the API server's data, keys, the kubelets' and containerds' roots."""
    return cache() / "state"


def logs() -> Path:
    return cache() / "logs"


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    """One node; `namespace` is the name of its network namespace, or None on the host itself."""

    name: str
    address: str
    pod_addresses: str
    namespace: str | None

    @property
    def root(self) -> Path:
        return state() / self.name

    @property
    def containerd_root(self) -> Path:
        """Outlives a stop of the cluster: the images are in it."""
        return cache() / "containerd" / self.name

    @property
    def run(self) -> Path:
        return RUN / self.name

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def cgroup(self) -> str:
        return f"concord-{self.name}"


NODES = (
    NodeSettings(name="node-1", address=HOST_ADDRESS, pod_addresses="10.88.1.0/24", namespace=None),
    NodeSettings(name="node-2", address="10.88.0.2", pod_addresses="10.88.2.0/24", namespace="concord-node-2"),
)
