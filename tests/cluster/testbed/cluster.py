"""The whole cluster: up, down, and what a test does with it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from . import addons, certificates, control_plane, docker, network, node, parts, processes, settings
from .shell import TestbedError, run, wait_until


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who started the cluster of this machine; `kept` when it outlives the process that did."""

    cache: str
    kept: bool
    pid: int
    started: int


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A running cluster; `own` when it is the testbed's, whose nodes can be lost and whose images can be set."""

    kubeconfig: Path
    nodes: tuple[str, ...]
    own: bool
    shared_folder: Path

    def kubectl(self, *words: object, input: str | None = None, timeout: float = 120) -> str:
        """Call kubectl as the admin and give back its output; raises TestbedError when it fails."""
        program = settings.binary("kubectl") if self.own else "kubectl"
        return run(program, f"--kubeconfig={self.kubeconfig}", *words, input=input, timeout=timeout)

    def load_image(self, tag: str) -> None:
        """Put an image of the testbed's dockerd into every node."""
        self._require_own("load an image")
        docker.load(tag)

    def offer_shared_folder(self, namespace: str, claim: str = "concord-runs") -> None:
        """Make the volume over `shared_folder` to which a claim (ReadWriteMany, no class) of that name will be bound."""
        self._require_own("offer a folder of the host")
        name = f"{namespace}-{claim}"
        self.kubectl("delete", "persistentvolume", name, "--ignore-not-found", "--wait=false")
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Ti"},
                "accessModes": ["ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(self.shared_folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": claim},
            },
        }
        self.kubectl("apply", "-f", "-", input=json.dumps(volume))

    def kill_node(self, name: str) -> None:
        """Lose a node: its wire, its kubelet, its containerd and the processes of its pods."""
        node.kill(self._losable(name))

    def zombie_node(self, name: str) -> None:
        """Stop a node's kubelet and nothing else: its pods run on, and nobody hears of them."""
        node.stop_kubelet(self._losable(name))

    def revive_node(self, name: str, timeout: float = 90) -> None:
        """Bring a lost node back, and wait until it is Ready; a node that is not lost is left alone."""
        settled = self._losable(name)
        if processes.is_running(f"{name}-containerd"):
            if not processes.is_running(f"{name}-kubelet"):
                node.start_kubelet(settled)
        else:
            network.mend(settled)
            node.start(settled)
        wait_until(lambda: self._is_ready(name), f"{name} is Ready", timeout)

    def _is_ready(self, name: str) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status} {.spec.taints[*].key}'
        status = self.kubectl("get", "node", name, f"--output=jsonpath={path}").split()
        return status == ["True"] and processes.is_running(f"{name}-kubelet")

    def _losable(self, name: str) -> settings.NodeSettings:
        self._require_own("lose a node")
        found = [known for known in settings.NODES if known.name == name and known.namespace]
        if not found:
            raise TestbedError(f"{name} cannot be lost: only a node in a network namespace of its own can")
        return found[0]

    def _require_own(self, what: str) -> None:
        if not self.own:
            raise TestbedError(f"cannot {what}: the cluster of KUBECONFIG is not the testbed's")


def given(kubeconfig: Path) -> Cluster:
    """The cluster of a kubeconfig: a user's own, or the one that `make cluster` left running."""
    if kubeconfig.resolve() == certificates.kubeconfig("admin"):
        return up(kept=True)
    probe = Cluster(kubeconfig=kubeconfig, nodes=(), own=False, shared_folder=Path("/nonexistent"))
    names = probe.kubectl("get", "nodes", "--output=jsonpath={.items[*].metadata.name}").split()
    return Cluster(kubeconfig=kubeconfig, nodes=tuple(names), own=False, shared_folder=probe.shared_folder)


def up(*, kept: bool) -> Cluster:
    """Build what is missing and start the cluster; one that `make cluster` left running is used as it is.

    Raises:
        TestbedError: it cannot be built or started here, or another folder's or another session's cluster runs.
    """
    _running_cluster()
    parts.build()
    with _lock():
        running = _running_cluster()
        if running:
            return running
        clear(find_owner())
        _write_owner(kept)
        _start()
        return _current()


def down() -> None:
    """Stop the cluster and undo what it left in the kernel: also one whose processes were killed."""
    with _lock():
        clear(find_owner())


def _running_cluster() -> Cluster | None:
    """What `make cluster` left running from the same folder; raises TestbedError for someone else's."""
    owner = find_owner()
    if owner is None or not _is_whole():
        return None
    if owner.cache == str(settings.cache()) and owner.kept:
        return _current()
    if owner.kept:
        raise TestbedError(f"a cluster from {owner.cache} runs on this machine: `make cluster-down` ends it")
    if _lives(owner):
        raise TestbedError(f"the tests of process {owner.pid} are using the cluster of this machine")
    return None


def _current() -> Cluster:
    return Cluster(
        kubeconfig=certificates.kubeconfig("admin"),
        nodes=tuple(known.name for known in settings.NODES),
        own=True,
        shared_folder=settings.state() / "shared",
    )


def _start() -> None:
    _turn_logs()
    _remove_state()
    cluster = _current()
    cluster.shared_folder.mkdir(parents=True)
    # Pods write into it as whatever user they are.
    cluster.shared_folder.chmod(0o777)
    certificates.make()
    network.up()
    with ThreadPoolExecutor() as pool:
        # The kubelets wait for the API server by themselves.
        nodes = [pool.submit(node.start, known) for known in settings.NODES]
        control_plane.start()
        addons.start_dns(cluster.kubectl)
        addons.install_operator(cluster.kubectl)
        for started in nodes:
            started.result()
    for name in cluster.nodes:
        wait_until(lambda name=name: _joined(cluster, name), f"{name} is Ready", 90)  # type: ignore[misc]
    addons.await_dns()
    addons.await_operator(cluster.kubectl)


def _joined(cluster: Cluster, name: str) -> bool:
    for part in ("containerd", "kubelet", "kube-proxy"):
        processes.check_running(f"{name}-{part}")
    try:
        return cluster._is_ready(name)
    except TestbedError:
        return False


def _is_whole() -> bool:
    per_node = [f"{known.name}-{part}" for known in settings.NODES for part in ("containerd", "kubelet", "kube-proxy")]
    return all(processes.is_running(name) for name in (*control_plane.NAMES, "coredns", *per_node))


def clear(owner: Owner | None) -> None:
    """`down` for a caller that holds the machine's lock."""
    if owner and owner.cache != str(settings.cache()):
        # Its folders are elsewhere: let its own settings find them.
        environment = os.environ | {"CONCORD_CLUSTER_CACHE": owner.cache}
        command = [sys.executable, "-m", __package__, "clear"]
        subprocess.run(command, env=environment, cwd=Path(__file__).parents[1], check=True)
        return
    _save_events()
    processes.stop("s3")
    docker.stop()
    for known in reversed(settings.NODES):
        node.stop(known)
    processes.stop("coredns")
    control_plane.stop()
    network.down()
    shutil.rmtree(settings.RUN / "processes", ignore_errors=True)
    (settings.RUN / "owner.json").unlink(missing_ok=True)


def _save_events() -> None:
    if processes.is_running("kube-apiserver"):
        events = _current().kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp", "--output=wide")
        processes.log_file("events").write_text(events, encoding="utf-8")


def _turn_logs() -> None:
    previous = settings.cache() / "logs.previous"
    shutil.rmtree(previous, ignore_errors=True)
    if settings.logs().exists():
        settings.logs().rename(previous)


def _remove_state() -> None:
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8")
    if f" {settings.state()}/" in mounts:
        raise TestbedError(f"something is still mounted under {settings.state()}; see /proc/self/mounts")
    shutil.rmtree(settings.state(), ignore_errors=True)
    settings.state().mkdir(parents=True)


def find_owner() -> Owner | None:
    """Who started what runs here, or what an earlier start left."""
    file = settings.RUN / "owner.json"
    return Owner(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None


def _write_owner(kept: bool) -> None:
    pid = os.getpid()
    owner = Owner(cache=str(settings.cache()), kept=kept, pid=pid, started=processes.start_time(pid))
    (settings.RUN / "owner.json").write_text(json.dumps(asdict(owner)), encoding="utf-8")


def _lives(owner: Owner) -> bool:
    try:
        return processes.start_time(owner.pid) == owner.started
    except FileNotFoundError:
        return False


@contextmanager
def _lock() -> Iterator[None]:
    settings.RUN.mkdir(parents=True, exist_ok=True)
    with (settings.RUN / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
