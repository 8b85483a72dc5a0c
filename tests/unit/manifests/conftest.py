"""What the tests of manifests/ share: the objects that a kustomization builds, and the pods in them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Document = dict[str, Any]

ROOT = Path(__file__).resolve().parents[3]
OVERLAYS = ("pvc", "s3", "gpu", "restricted", "monitoring")


@pytest.fixture(scope="session")
def build() -> Callable[[str | Path], list[Document]]:
    """The objects of a kustomization, by its folder from the root of the repository."""
    built: dict[str, list[Document]] = {}

    def objects(folder: str | Path) -> list[Document]:
        if str(folder) not in built:
            command = [ROOT / "manifests" / "lint" / "build.sh", ROOT / folder]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode == 2:
                pytest.skip(done.stderr.strip())
            assert done.returncode == 0, done.stderr
            built[str(folder)] = list(yaml.safe_load_all(done.stdout))
        return built[str(folder)]

    return objects


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, build: Callable[[str], list[Document]]) -> list[Document]:
    """The objects of each overlay in turn."""
    return build(f"manifests/overlays/{request.param}")
