"""What the launcher may ask of the API server: the verbs that it uses, in its namespace, and nothing else."""

from __future__ import annotations

from typing import Any

from objects import find

Document = dict[str, Any]


def test_the_launcher_may_do_exactly_this(overlay: list[Document]) -> None:
    allowed = {
        (group, resource): set(rule["verbs"])
        for rule in find(overlay, "Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert allowed == {
        ("kubeflow.org", "pytorchjobs"): {"create", "get", "list", "watch", "patch", "delete"},
        ("", "pods"): {"get", "list", "watch"},
        ("", "pods/log"): {"get"},
        ("", "events"): {"list"},
    }


def test_only_the_launcher_is_allowed_anything(overlay: list[Document]) -> None:
    binding = find(overlay, "RoleBinding")
    assert binding["roleRef"]["name"] == find(overlay, "Role")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "concord-launcher", "namespace": "concord"}]
    assert not [d["kind"] for d in overlay if d["kind"].startswith("Cluster")]


def test_no_secret_is_committed(overlay: list[Document]) -> None:
    assert not [d for d in overlay if d["kind"] == "Secret"]
