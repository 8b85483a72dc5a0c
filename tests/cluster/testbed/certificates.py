"""Keys and certificates of one start of the cluster, by openssl; accounts with static tokens."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from . import settings
from .shell import run

# Who talks to the API server, as (user, groups). Nodes and system components have the rights that Kubernetes gives them.
ACCOUNTS = {
    "admin": ("concord-admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "proxy": ("system:kube-proxy", ""),
    "dns": ("system:coredns", ""),
    **{node.name: (f"system:node:{node.name}", "system:nodes") for node in settings.NODES},
}


def folder() -> Path:
    return settings.state() / "keys"


def ca() -> Path:
    return folder() / "ca.crt"


def make() -> None:
    """Make the authority, the API server's certificates, the key of service accounts, the tokens and the kubeconfigs."""
    folder().mkdir(parents=True)
    _certificate("ca", "/CN=concord-cluster", ["-addext", "basicConstraints=critical,CA:TRUE"])
    addresses = f"IP:127.0.0.1,IP:{settings.API_SERVICE},IP:{settings.HOST_ADDRESS}"
    names = "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local"
    _certificate("apiserver", "/CN=kube-apiserver", ["-addext", f"subjectAltName={names},{addresses}", *_signed()])
    # Without this one the kubelets refuse `kubectl logs` and `exec`.
    _certificate("apiserver-to-kubelet", "/O=system:masters/CN=kube-apiserver", _signed())
    run(
        "openssl",
        "genpkey",
        "-algorithm",
        "EC",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-out",
        folder() / "accounts.key",
    )
    run("openssl", "pkey", "-in", folder() / "accounts.key", "-pubout", "-out", folder() / "accounts.pub")
    lines = []
    for name, (user, groups) in ACCOUNTS.items():
        token = secrets.token_hex(16)
        lines.append(f'{token},{user},{user},"{groups}"')
        _write_kubeconfig(name, token)
    _write(folder() / "tokens.csv", "\n".join(lines) + "\n")


def kubeconfig(account: str) -> Path:
    return folder() / f"{account}.kubeconfig"


def _signed() -> list[object]:
    return ["-CA", ca(), "-CAkey", folder() / "ca.key"]


def _certificate(name: str, subject: str, options: list[object] | list[str]) -> None:
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder() / f"{name}.key"]
    run("openssl", "req", "-x509", "-days", "365", "-subj", subject, *key, "-out", folder() / f"{name}.crt", *options)


def _write_kubeconfig(account: str, token: str) -> None:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "concord", "cluster": {"server": settings.API_URL, "certificate-authority": str(ca())}},
        ],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "concord", "context": {"cluster": "concord", "user": account}}],
        "current-context": "concord",
    }
    _write(kubeconfig(account), json.dumps(content, indent=1))


def _write(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
