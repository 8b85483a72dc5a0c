"""The operator's own manifests with our component, and the init container that it then adds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from objects import find
from pod_security import violations

Document = dict[str, Any]
ROOT = Path(__file__).resolve().parents[3]
OPERATOR = "github.com/kubeflow/training-operator@v1.9.4"


def test_the_init_container_keeps_the_restricted_profile() -> None:
    template = (ROOT / "manifests" / "operator" / "initContainer.yaml").read_text(encoding="utf-8")
    values = {"InitContainerImage": "alpine:3.10", "MasterAddr": "job-master-0", "MaxTries": "100"}
    for name, value in values.items():
        template = template.replace(f"{{{{.{name}}}}}", value)
    assert "{{" not in template
    containers = yaml.safe_load(template)
    assert [c["name"] for c in containers] == ["init-pytorch"]
    assert list(violations({"containers": containers})) == []


@pytest.mark.parametrize(("failures", "code"), [(0, 0), (2, 0), (3, 1)])
def test_the_init_container_waits_for_the_master(failures: int, code: int, tmp_path: Path) -> None:
    template = (ROOT / "manifests" / "operator" / "initContainer.yaml").read_text(encoding="utf-8")
    for name, value in {"MasterAddr": "job-master-0", "MaxTries": "3"}.items():
        template = template.replace(f"{{{{.{name}}}}}", value)
    (container,) = yaml.safe_load(template.replace("{{.InitContainerImage}}", "alpine"))
    for name, script in {
        "nslookup": f'echo "$1" >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt {failures} ]',
        "sleep": "exit 0",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(container["command"], check=False, env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.returncode == code
    assert set((tmp_path / "asked").read_text(encoding="utf-8").split()) == {"job-master-0"}


def test_the_component_fits_the_operators_manifests(tmp_path: Path, build: Callable[[Path], list[Document]]) -> None:
    if shutil.which("go") is None:
        pytest.skip(f"no go here, which fetches {OPERATOR}")
    done = subprocess.run(["go", "mod", "download", "-json", OPERATOR], check=True, capture_output=True, text=True)
    shutil.copytree(Path(json.loads(done.stdout)["Dir"], "manifests"), tmp_path / "operator", copy_function=shutil.copy)
    component = os.path.relpath(ROOT / "manifests" / "operator", tmp_path)
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [operator/overlays/standalone]\ncomponents: [{component}]\n", encoding="utf-8"
    )
    documents = build(tmp_path)
    spec = find(documents, "Deployment", "training-operator")["spec"]["template"]["spec"]
    (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if m["mountPath"] == "/etc/config"]
    (volume,) = [v for v in spec["volumes"] if v["name"] == mount["name"]]
    config = find(documents, "ConfigMap", volume["configMap"]["name"])
    assert config["metadata"]["namespace"] == "kubeflow"
    assert list(config["data"]) == ["initContainer.yaml"]
    assert "serving-certs" in str(spec["containers"][0]["volumeMounts"])
