"""The schema of the operator's CRD, as the lint applies it, finds what the API server would drop or refuse."""

from __future__ import annotations

import copy
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from objects import find

Document = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    if shutil.which("go") is None:
        pytest.skip("no go here, which fetches the operator's CRD")
    spec = importlib.util.spec_from_file_location("manifests_check", ROOT / "manifests" / "lint" / "check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_job_is_valid(check: ModuleType, overlay: list[Document]) -> None:
    assert list(check.validate_custom(overlay)) == []


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        (["runPolicy", "ttlSeconds"], 5, "'ttlSeconds' was unexpected"),
        (["runPolicy", "backoffLimit"], "three", "'three' is not of type 'integer'"),
        (
            ["pytorchReplicaSpecs", "Worker", "template", "spec", "tolerations", 0, "seconds"],
            5,
            "'seconds' was unexpected",
        ),
        (
            ["pytorchReplicaSpecs", "Worker", "template", "spec", "containers", 0, "name"],
            None,
            "is not of type 'string'",
        ),
    ],
)
def test_mistakes_are_found(
    check: ModuleType, build: Callable[[str], list[Document]], path: list[Any], value: Any, found: str
) -> None:
    documents = copy.deepcopy(build("manifests/overlays/pvc"))
    at = find(documents, "PyTorchJob")["spec"]
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    (problem,) = check.validate_custom(documents)
    assert problem.startswith("PyTorchJob spec.")
    assert found in problem


def test_the_linters_see_the_pods_of_a_job(check: ModuleType, overlay: list[Document]) -> None:
    pods = list(check.as_plain(find(overlay, "PyTorchJob")))
    assert [pod["metadata"]["name"] for pod in pods] == ["concord-work-master-0", "concord-work-worker-0"]
    assert all(pod["kind"] == "Pod" and pod["spec"]["containers"][0]["image"] for pod in pods)
