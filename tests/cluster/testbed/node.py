"""One node: its containerd, kubelet and kube-proxy; how it starts, stops, is lost and comes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from . import certificates, network, parts, processes, settings
from .archive import image_id
from .settings import NodeSettings
from .shell import TestbedError, run, succeeds, unmount, wait_until

CNI_RESULTS = Path("/var/lib/cni/results")
CONTAINERD = """\
version = 2
root = "{root}"
state = "{run}/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper"]

[grpc]
address = "{socket}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/{pause}"
# Root may lack CAP_SYS_RESOURCE (in a container, in some virtual machines); runc then fails to lower a score.
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{node_root}/cni"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
Root = "{run}/runc"
"""


def start(node: NodeSettings) -> None:
    """Start a node's processes on what is left of an earlier start, or on nothing; it is not awaited to be Ready."""
    for folder in (node.run, node.root / "cni", node.root / "kubelet", node.containerd_root):
        folder.mkdir(parents=True, exist_ok=True)
    _make_cgroup(node)
    _write_configuration(node)
    _start_containerd(node)
    if _forget_containers(node):
        # containerd's Kubernetes side remembers what it read at its start.
        processes.stop(f"{node.name}-containerd")
        _start_containerd(node)
    for tag in (settings.PAUSE_IMAGE, settings.BASE_IMAGE, settings.INIT_IMAGE, parts.operator_image()):
        load_archive(node, tag)
    start_kubelet(node)
    _start(node, "kube-proxy", settings.binary("kube-proxy"), f"--config={node.root}/kube-proxy.json")


def start_kubelet(node: NodeSettings) -> None:
    flags = {
        "config": node.root / "kubelet.json",
        "kubeconfig": certificates.kubeconfig(node.name),
        "root-dir": node.root / "kubelet",
        "cert-dir": node.root / "kubelet-certificates",
        "hostname-override": node.name,
        "node-ip": node.address,
    }
    _start(node, "kubelet", settings.binary("kubelet"), *(f"--{name}={value}" for name, value in flags.items()))


def stop_kubelet(node: NodeSettings) -> None:
    processes.stop(f"{node.name}-kubelet", grace=0)


def stop(node: NodeSettings) -> None:
    """Stop the node's processes and its pods, and undo its mounts; its images stay."""
    for name in ("kube-proxy", "kubelet"):
        processes.stop(f"{node.name}-{name}")
    _end_pods(node)
    processes.stop(f"{node.name}-containerd")
    _clean(node)


def kill(node: NodeSettings) -> None:
    """Lose the node as in a power cut: the wire first, then every process without a chance to say goodbye."""
    if node.namespace:
        network.cut(node)
    for name in ("kubelet", "kube-proxy", "containerd"):
        processes.stop(f"{node.name}-{name}", grace=0)
    _end_pods(node)
    _clean(node)


def pod_processes(node: NodeSettings) -> list[int]:
    """The ids of all processes in the node's pods."""
    files = [file for tree in _cgroup_folders(node) for file in tree.rglob("cgroup.procs")]
    return sorted({int(pid) for file in files for pid in _read(file).split()})


def load_archive(node: NodeSettings, tag: str) -> None:
    """Put one of the testbed's own images into the node's containerd, unless it is there."""
    archive = parts.archive(tag)
    loaded, identity = loaded_images(node), image_id(archive)
    if loaded.get(tag) != identity:
        ctr(node, "images", "import", archive)
        remember_image(node, tag, identity)


def loaded_images(node: NodeSettings) -> dict[str, str]:
    """The identity of each image that was put into the node's containerd, by its tag."""
    file = node.containerd_root / "loaded.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def remember_image(node: NodeSettings, tag: str, identity: str) -> None:
    content = loaded_images(node) | {tag: identity}
    (node.containerd_root / "loaded.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def ctr(node: NodeSettings, *words: object) -> str:
    """Call containerd's own client on the node, in the namespace of Kubernetes."""
    return run("ctr", "--address", node.socket, "--namespace", "k8s.io", *words)


def _start(node: NodeSettings, name: str, *command: object) -> None:
    processes.start(f"{node.name}-{name}", command, namespace=node.namespace)


def _start_containerd(node: NodeSettings) -> None:
    name = f"{node.name}-containerd"
    _start(node, "containerd", "/usr/bin/containerd", "--config", node.root / "containerd.toml")

    def answers() -> bool:
        processes.check_running(name)
        return succeeds("ctr", "--address", node.socket, "version")

    wait_until(answers, f"{name} answers", 30)


def _forget_containers(node: NodeSettings) -> bool:
    """Remove the containers that an earlier start left, and tell whether there were any; their processes are dead."""
    tasks = ctr(node, "tasks", "list", "--quiet").split()
    containers = ctr(node, "containers", "list", "--quiet").split()
    for task in tasks:
        ctr(node, "tasks", "delete", "--force", task)
    if containers:
        ctr(node, "containers", "delete", *containers)
    return bool(tasks or containers)


def _end_pods(node: NodeSettings) -> None:
    # The shims first: they would report each end to a containerd, and clean up.
    processes.kill_all(processes.find(str(node.socket)))
    processes.kill_all(pod_processes(node))


def _clean(node: NodeSettings) -> None:
    """Undo what the node's dead processes left in the kernel and in folders outside its own."""
    unmount(node.root, node.run)
    for tree in _cgroup_folders(node):
        for folder in sorted(tree.rglob("*"), reverse=True):
            if folder.is_dir():
                _remove_cgroup(folder)
        if tree.is_dir():
            _remove_cgroup(tree)
    for result in CNI_RESULTS.glob(f"{_network(node)}-*"):
        sandbox = result.name.removeprefix(f"{_network(node)}-").removesuffix("-eth0")
        (CNI_RESULTS / f"cni-loopback-{sandbox}-lo").unlink(missing_ok=True)
        result.unlink()
    shutil.rmtree(node.root / "addresses", ignore_errors=True)
    shutil.rmtree(node.run, ignore_errors=True)


def _remove_cgroup(folder: Path) -> None:
    # A process that was killed a moment ago still holds its group.
    wait_until(lambda: succeeds("rmdir", folder) or not folder.exists(), f"{folder} is empty", 10)


def _make_cgroup(node: NodeSettings) -> None:
    for folder in _cgroup_folders(node):
        folder.mkdir(exist_ok=True)
        if folder.parent.name == "cpuset":
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text(_read(folder.parent / file))


def _cgroup_folders(node: NodeSettings) -> list[Path]:
    """The node's group in every hierarchy that is mounted: many of version 1, one of version 2, or both."""
    mounts = (line.split() for line in _read(Path("/proc/self/mounts")).splitlines())
    folders = sorted(Path(words[1]) / node.cgroup for words in mounts if words[2] in ("cgroup", "cgroup2"))
    if not folders:
        raise TestbedError("no control groups are mounted, and a kubelet needs them")
    return folders


def _network(node: NodeSettings) -> str:
    return f"concord-{node.name}"


def _write_configuration(node: NodeSettings) -> None:
    values = {
        "root": node.containerd_root,
        "run": node.run,
        "socket": node.socket,
        "pause": settings.PAUSE_IMAGE,
        "node_root": node.root,
    }
    (node.root / "containerd.toml").write_text(CONTAINERD.format(**values), encoding="utf-8")
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": node.pod_addresses}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(node.root / "addresses"),
    }
    cni = {"cniVersion": "1.0.0", "name": _network(node), "plugins": [{"type": "ptp", "ipam": addresses}]}
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "cgroupDriver": "cgroupfs",
        # Each kubelet removes the groups of pods it does not know, so the two must not share a parent.
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "clusterDNS": [settings.HOST_ADDRESS],
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(certificates.ca())},
        },
        "authorization": {"mode": "Webhook"},
        "podLogsDir": str(settings.logs() / f"{node.name}-pods"),
        "volumePluginDir": str(node.root / "volume-plugins"),
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # No image can be pulled again.
        "imageGCHighThresholdPercent": 100,
        # Short, so that a lost node is noticed within the 20 s that the controller manager grants.
        "nodeLeaseDurationSeconds": 20,
        "nodeStatusUpdateFrequency": "5s",
    }
    proxy = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": node.name,
        "clientConnection": {"kubeconfig": str(certificates.kubeconfig("proxy"))},
        "conntrack": {"maxPerCore": 0},
        "healthzBindAddress": f"{node.address}:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }
    for name, content in (("cni/10-concord.conflist", cni), ("kubelet.json", kubelet), ("kube-proxy.json", proxy)):
        (node.root / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


def _read(path: Path) -> str:
    """A file of the kernel's, or nothing when what it tells of has just gone."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
