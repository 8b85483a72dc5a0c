"""Look things up in a list of Kubernetes objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Document = dict[str, Any]


def find(documents: Iterable[Document], kind: str, name: str | None = None) -> Document:
    """The only object of `kind` (and `name`)."""
    found = [d for d in documents if d["kind"] == kind and name in (None, d["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects {kind} {name or ''}"
    return found[0]


def pod_templates(documents: Iterable[Document]) -> dict[str, Document]:
    """All pod templates, by the name of what holds them."""
    templates = {}
    for document in documents:
        name = document["metadata"]["name"]
        if document["kind"] == "Job":
            templates[name] = document["spec"]["template"]
        elif document["kind"] == "PyTorchJob":
            for role, replica in document["spec"]["pytorchReplicaSpecs"].items():
                templates[f"{name}-{role}"] = replica["template"]
        else:
            assert "template" not in str(document.get("spec")), f"{document['kind']} has pods?"
    return templates
