"""The restricted profile of Kubernetes' Pod Security Standards (v1.37), as far as Linux pods are concerned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
_SECCOMP = ("RuntimeDefault", "Localhost")


def violations(spec: dict[str, Any]) -> Iterator[str]:
    """What of a pod's spec the profile refuses."""
    pod = spec.get("securityContext", {})
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield field
    for volume in spec.get("volumes", []):
        if not (set(volume) - {"name"}) <= _VOLUMES:
            yield f"volume {volume['name']}"
    if pod.get("sysctls"):
        yield "sysctls"
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for field in _container(container, pod):
            yield f"{container['name']}: {field}"


def _container(container: dict[str, Any], pod: dict[str, Any]) -> Iterator[str]:
    own = container.get("securityContext", {})
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation"
    if own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield "capabilities.drop"
    if not set(own.get("capabilities", {}).get("add", [])) <= {"NET_BIND_SERVICE"}:
        yield "capabilities.add"
    if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield "runAsNonRoot"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield "runAsUser"
    if own.get("seccompProfile", pod.get("seccompProfile", {})).get("type") not in _SECCOMP:
        yield "seccompProfile"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "hostPort"
