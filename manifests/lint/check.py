"""Lint manifests/ and what the overlays build: yamllint, kubernetes-validate, the CRDs' own schemas, checkov.

Run by `make check-manifests` in an environment of its own, because checkov pins much that the project pins otherwise.
Where nothing can build the overlays, it says so; in CI that is a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

MANIFESTS = Path(__file__).resolve().parent.parent
LINT = MANIFESTS / "lint"
KUBERNETES = ("1.30", "1.37")
BUILT = [*sorted(MANIFESTS.glob("overlays/*/")), MANIFESTS.parent / "examples" / "kubernetes"]

CANNOT_BUILD = 2
"""Exit code of build.sh, which then has said what is missing."""

CRDS = {
    "PyTorchJob": (
        "github.com/kubeflow/training-operator@v1.9.4",
        "manifests/base/crds/kubeflow.org_pytorchjobs.yaml",
    ),
}
"""Kind -> the Go module that holds its CustomResourceDefinition, and where."""

Document = dict[str, Any]


def main() -> int:
    tool("yamllint", "--strict", "--config-file", LINT / "yamllint.yaml", MANIFESTS)
    with tempfile.TemporaryDirectory() as folder:
        for path in BUILT:
            documents = build(path)
            problems = list(validate_custom(documents))
            for problem in problems:
                print(f"{path.name}: {problem}", file=sys.stderr)
            if problems:
                return 1
            plain = [pod for document in documents for pod in as_plain(document)]
            Path(folder, f"{path.name}.yaml").write_text(yaml.safe_dump_all(plain), encoding="utf-8")
        files = sorted(Path(folder).iterdir())
        for version in KUBERNETES:
            tool("kubernetes-validate", "--quiet", "--strict", "-k", version, *files)
        tool("checkov", "--config-file", LINT / "checkov.yaml", "--directory", folder)
    print(f"manifests: {len(BUILT)} kustomizations are in order")
    return 0


def tool(name: str, *arguments: object) -> None:
    """Run a linter of this environment; its findings are its output, and end everything."""
    command = [str(Path(sys.executable).parent / name), *map(str, arguments)]
    environment = os.environ | {"CKV_SKIP_PACKAGE_UPDATE_CHECK": "true"}
    if subprocess.run(command, check=False, env=environment).returncode != 0:
        sys.exit(f"error: {name} is not content, see above")


def build(folder: Path) -> list[Document]:
    done = subprocess.run([LINT / "build.sh", folder], check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode == CANNOT_BUILD and "CI" not in os.environ:
        sys.exit(0)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return list(yaml.safe_load_all(done.stdout))


def as_plain(document: Document) -> Iterator[Document]:
    """What the linters know: a PyTorchJob is seen as its pods; a PodMonitor has no schema in their reach."""
    if document["kind"] != "PyTorchJob":
        yield from () if document["kind"] == "PodMonitor" else (document,)
        return
    for role, replica in document["spec"]["pytorchReplicaSpecs"].items():
        template = replica["template"]
        name = {
            "name": f"{document['metadata']['name']}-{role.lower()}-0",
            "namespace": document["metadata"]["namespace"],
        }
        spec = template["spec"] | {"restartPolicy": replica["restartPolicy"]}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"] | name, "spec": spec}


def validate_custom(documents: list[Document]) -> Iterator[str]:
    """What the schemas of their CRDs find wrong with the objects of custom kinds."""
    for document in documents:
        if document["kind"] in CRDS and (schema := crd_schema(*CRDS[document["kind"]])):
            for error in jsonschema.Draft7Validator(schema).iter_errors(document):
                yield f"{document['kind']} {'.'.join(map(str, error.absolute_path))}: {error.message}"


def crd_schema(module: str, path: str) -> Document | None:
    """The schema that the API server would apply, strict about unknown fields; None where go is missing."""
    if shutil.which("go") is None:
        print(f"no go here, which fetches {module}: its objects are checked by the cluster tests only", file=sys.stderr)
        return None
    done = subprocess.run(["go", "mod", "download", "-json", module], check=True, capture_output=True, text=True)
    crd = yaml.safe_load(Path(json.loads(done.stdout)["Dir"], path).read_text(encoding="utf-8"))
    return strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def strict(schema: Any) -> Any:
    """`schema` with no room for properties that it doesn't name."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    closed = "properties" in schema and isinstance(schema["properties"], dict) and schema.get("type") == "object"
    if closed and "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made["additionalProperties"] = False
    return made


if __name__ == "__main__":
    sys.exit(main())
