"""What Kubeflow Pipelines and a step tell each other: the executor input in, files and executor_output.json out.

The executor input is the JSON that stands for `{{$}}`. It holds the values of the inputs and, for each output, where it
belongs: a file for a parameter, a URI for an artifact, one more file for what is said of the artifacts. The folders don't
exist yet, and an object store's URI means the folder under which the pod has mounted it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval_core.errors import StorageError, UsageError
from eval_core.report.text import encode_json, plain

Scalar = str | int | float

_MOUNTS = {"gs://": "/gcs/", "minio://": "/minio/", "s3://": "/s3/"}


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """An output artifact.

    Attributes:
        name: what the pipeline calls it.
        uri: where it belongs.
    """

    name: str
    uri: str

    @property
    def path(self) -> Path:
        """The file that becomes the artifact.

        Raises:
            UsageError: `uri` is on no storage that a pod has mounted.
        """
        for scheme, folder in _MOUNTS.items():
            if self.uri.startswith(scheme):
                return Path(folder + self.uri.removeprefix(scheme))
        if "://" in self.uri:
            raise UsageError(f"{self.uri}: a pipeline root must be a folder, or one of {', '.join(_MOUNTS)}")
        return Path(self.uri)


@dataclass(frozen=True, kw_only=True)
class ExecutorInput:
    """What a step is given.

    Attributes:
        inputs: name -> value.
        parameters: output parameter -> its file.
        artifacts: output artifact -> where it belongs.
        output_file: where executor_output.json belongs.
    """

    inputs: Mapping[str, Any]
    parameters: Mapping[str, Path]
    artifacts: Mapping[str, Artifact]
    output_file: Path


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What a step gives back.

    Attributes:
        parameters: output parameter -> value.
        metrics: metrics artifact -> its numbers, which the UI shows.
        files: any other artifact -> its content.
        exit_code: of the step; the outputs are written whatever it is.
    """

    parameters: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    exit_code: int = 0


def read_executor_input(text: str) -> ExecutorInput:
    """Parse the JSON that a pipeline puts in the place of `{{$}}`.

    Raises:
        UsageError: it is something else.
    """
    try:
        data = json.loads(text)
        outputs = data["outputs"]
        return ExecutorInput(
            inputs=data.get("inputs", {}).get("parameterValues", {}),
            parameters={name: Path(p["outputFile"]) for name, p in outputs.get("parameters", {}).items()},
            artifacts={
                name: Artifact(name=listed["artifacts"][0]["name"], uri=listed["artifacts"][0]["uri"])
                for name, listed in outputs.get("artifacts", {}).items()
            },
            output_file=Path(outputs["outputFile"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(
            "--executor-input: not the JSON of an executor input; in a component's arguments it is written '{{$}}'"
        ) from error


def write_outputs(given: ExecutorInput, outputs: Outputs) -> None:
    """Write every output where the pipeline wants it, executor_output.json last.

    What the pipeline doesn't ask for is left out.

    Raises:
        StorageError: a folder can't be made, or a file can't be written.
    """
    for name, path in given.parameters.items():
        _write(path, outputs.parameters[name].encode())
    said = {}
    for name, artifact in given.artifacts.items():
        metrics = outputs.metrics.get(name)
        _write(artifact.path, outputs.files[name] if metrics is None else encode_json(metrics, indent=1))
        entry = {"name": artifact.name, "uri": artifact.uri, "metadata": plain(metrics or {})}
        said[name] = {"artifacts": [entry]}
    _write(given.output_file, encode_json({"artifacts": said}, indent=1))


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise StorageError(f"{path}: the output can't be written: {error.strerror}") from error
