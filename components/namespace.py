"""Whether this process is a pod, and in which namespace. Needs no Kubernetes client."""

from __future__ import annotations

from pathlib import Path

_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def own_namespace() -> str | None:
    """The namespace of this pod; None outside a cluster."""
    try:
        return _FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return None
