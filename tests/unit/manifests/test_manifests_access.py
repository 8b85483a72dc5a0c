"""What the launcher may ask of the API server: the verbs that it uses, in its namespace, and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from objects import find

Document = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]


def test_the_launcher_may_do_exactly_what_it_does(overlay: list[Document]) -> None:
    allowed = {
        (verb, f"{resource}.{group}" if group else resource)
        for rule in find(overlay, "Role")["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert allowed == {
        *((verb, "pytorchjobs.kubeflow.org") for verb in ("create", "get", "list", "patch", "delete")),
        ("list", "pods"),
        ("get", "pods/log"),
        ("list", "events"),
    }
    assert allowed == set(_calls(ROOT / "components" / "evaluate" / "cluster.py"))


def test_only_the_launcher_is_allowed_anything(overlay: list[Document]) -> None:
    binding = find(overlay, "RoleBinding")
    assert binding["roleRef"]["name"] == find(overlay, "Role")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "concord-launcher", "namespace": "concord"}]
    assert not [d["kind"] for d in overlay if d["kind"].startswith("Cluster")]


def test_no_secret_is_committed(overlay: list[Document]) -> None:
    assert not [d for d in overlay if d["kind"] == "Secret"]


def _calls(module: Path) -> Iterator[tuple[str, str]]:
    """(verb, resource) of every call of the API in the launcher's source."""
    names = {"_JOBS": "pytorchjobs.kubeflow.org"}
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        words = [a.value if isinstance(a, ast.Constant) else names.get(getattr(a, "id", ""), "") for a in node.args[:2]]
        if node.func.attr == "_call" and all(words):
            yield words[0], words[1]
        elif node.func.attr == "_list":
            yield "list", words[0]
