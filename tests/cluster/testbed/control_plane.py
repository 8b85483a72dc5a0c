"""etcd, the API server, the controller manager and the scheduler, as processes on the host."""

from __future__ import annotations

from . import certificates, processes, settings
from .shell import succeeds, wait_until

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def start() -> None:
    """Start all four on an empty store; the API server answers when this returns."""
    keys = certificates.folder()
    etcd = settings.state() / "etcd"
    client, peer = "http://127.0.0.1:12379", "http://127.0.0.1:12380"
    _start(
        "etcd",
        {
            "data-dir": etcd,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            # What is in it does not outlive the cluster.
            "unsafe-no-fsync": "true",
        },
    )
    _start(
        "kube-apiserver",
        {
            "etcd-servers": client,
            "bind-address": "0.0.0.0",
            "advertise-address": settings.HOST_ADDRESS,
            "secure-port": settings.API_PORT,
            "service-cluster-ip-range": settings.SERVICE_ADDRESSES,
            "allow-privileged": "true",
            "authorization-mode": "Node,RBAC",
            "token-auth-file": keys / "tokens.csv",
            "client-ca-file": certificates.ca(),
            "tls-cert-file": keys / "apiserver.crt",
            "tls-private-key-file": keys / "apiserver.key",
            "kubelet-client-certificate": keys / "apiserver-to-kubelet.crt",
            "kubelet-client-key": keys / "apiserver-to-kubelet.key",
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": keys / "accounts.pub",
            "service-account-signing-key-file": keys / "accounts.key",
        },
    )
    wait_until(_api_is_ready, "the API server is ready", 90)
    _start(
        "kube-controller-manager",
        {
            "kubeconfig": certificates.kubeconfig("controller-manager"),
            "controllers": "*,-nodeipam,-cloud-node-lifecycle,-service-lb-controller",
            "leader-elect": "false",
            "use-service-account-credentials": "true",
            "service-account-private-key-file": keys / "accounts.key",
            "root-ca-file": certificates.ca(),
            "node-monitor-period": "2s",
            "node-monitor-grace-period": "20s",
        },
    )
    kubeconfig = certificates.kubeconfig("scheduler")
    _start("kube-scheduler", {"kubeconfig": kubeconfig, "leader-elect": "false"})


def stop() -> None:
    for name in reversed(NAMES):
        # etcd writes nothing that is needed again.
        processes.stop(name, grace=0 if name == "etcd" else 5)


def _start(name: str, flags: dict[str, object]) -> None:
    processes.start(name, [settings.binary(name), *(f"--{flag}={value}" for flag, value in flags.items())])


def _api_is_ready() -> bool:
    for name in NAMES[:2]:
        processes.check_running(name)
    kubectl = (settings.binary("kubectl"), "--kubeconfig", certificates.kubeconfig("admin"))
    return succeeds(*kubectl, "get", "--raw", "/readyz")
