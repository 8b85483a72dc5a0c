"""Every pod of every overlay: no token, no privileges, nothing writable but what it needs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from objects import find, pod_templates
from pod_security import violations

Document = dict[str, Any]
PODS = {"concord-plan", "concord-work-Master", "concord-work-Worker", "concord-report"}


def test_these_are_all_pods(overlay: list[Document]) -> None:
    assert set(pod_templates(overlay)) == PODS


def test_no_pod_has_a_token(overlay: list[Document]) -> None:
    account = find(overlay, "ServiceAccount", "concord-worker")
    assert account["automountServiceAccountToken"] is False
    for template in pod_templates(overlay).values():
        assert template["spec"]["serviceAccountName"] == "concord-worker"
        assert template["spec"]["automountServiceAccountToken"] is False
        assert not any("projected" in volume for volume in template["spec"]["volumes"])


def test_pods_keep_the_restricted_profile(overlay: list[Document]) -> None:
    for name, template in pod_templates(overlay).items():
        assert list(violations(template["spec"])) == [], name


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"securityContext": {}}, "pytorch: runAsNonRoot"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "volume host"),
        ({"initContainers": [{"name": "init-pytorch", "image": "alpine"}]}, "init-pytorch: capabilities.drop"),
    ],
)
def test_the_profile_is_really_checked(overlay: list[Document], change: Document, found: str) -> None:
    spec = pod_templates(overlay)["concord-work-Worker"]["spec"]
    assert found in list(violations(spec | change))


def test_the_image_is_read_only_and_what_is_written_has_a_volume(overlay: list[Document]) -> None:
    for template in pod_templates(overlay).values():
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
            assert mounts["/tmp"]["emptyDir"] == {}
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)


def test_pods_run_as_the_user_of_the_images(overlay: list[Document]) -> None:
    for template in pod_templates(overlay).values():
        security = template["spec"]["securityContext"]
        assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (65532, 65532, 65532)


def test_pods_ask_for_what_they_use_and_have_a_limit_of_memory(overlay: list[Document]) -> None:
    for template in pod_templates(overlay).values():
        (container,) = template["spec"]["containers"]
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
        assert "memory" in container["resources"]["limits"]


def test_no_pod_gets_an_istio_sidecar(overlay: list[Document]) -> None:
    for template in pod_templates(overlay).values():
        for where in ("labels", "annotations"):
            assert template["metadata"][where]["sidecar.istio.io/inject"] == "false"


def test_workers_leave_a_lost_node_after_half_a_minute(overlay: list[Document]) -> None:
    for role in ("Master", "Worker"):
        seconds = {
            toleration["key"]: toleration["tolerationSeconds"]
            for toleration in pod_templates(overlay)[f"concord-work-{role}"]["spec"]["tolerations"]
            if toleration["effect"] == "NoExecute"
        }
        assert seconds == {"node.kubernetes.io/not-ready": 30, "node.kubernetes.io/unreachable": 30}


def test_workers_have_shared_memory(overlay: list[Document]) -> None:
    for role in ("Master", "Worker"):
        spec = pod_templates(overlay)[f"concord-work-{role}"]["spec"]
        (name,) = [m["name"] for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == "/dev/shm"]
        (volume,) = [v for v in spec["volumes"] if v["name"] == name]
        assert volume["emptyDir"]["medium"] == "Memory"


def test_master_and_worker_are_the_same_pod_but_for_the_metrics(overlay: list[Document]) -> None:
    master, worker = (copy.deepcopy(pod_templates(overlay)[f"concord-work-{role}"]) for role in ("Master", "Worker"))
    if any(document["kind"] == "PodMonitor" for document in overlay):
        master["spec"]["containers"][0]["env"].pop()
        master["spec"]["containers"][0]["ports"].pop()
    assert master == worker
