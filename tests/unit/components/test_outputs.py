"""The executor-output contract: where outputs go, and what is said of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

from components.command import bind
from components.outputs import Artifact, Outputs, read_executor_input, write_outputs
from eval_core.errors import StorageError, UsageError


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("minio://bucket/a/b", "/minio/bucket/a/b"),
        ("s3://bucket/a/b", "/s3/bucket/a/b"),
        ("gs://bucket/a/b", "/gcs/bucket/a/b"),
        ("/local/outputs/a", "/local/outputs/a"),
    ],
)
def test_where_a_pod_has_mounted_an_artifact(uri: str, path: str) -> None:
    assert str(Artifact(name="a", uri=uri).path) == path


def test_an_unknown_storage() -> None:
    with pytest.raises(UsageError, match="ftp://host/a: a pipeline root must be a folder, or one of gs://"):
        _ = Artifact(name="a", uri="ftp://host/a").path


@pytest.mark.parametrize("text", ["", "{{$}}", "[]", "{}", '{"outputs": {"artifacts": {"a": {"artifacts": []}}}}'])
def test_what_is_no_executor_input(text: str) -> None:
    with pytest.raises(UsageError, match="not the JSON of an executor input"):
        read_executor_input(text)


def test_written_as_the_backend_reads_it(executor_input: Callable[..., str], tmp_path: Path) -> None:
    given = read_executor_input(executor_input("verify_precision", tmp_path, {"run": "r", "plan_digest": "d"}))
    assert given.inputs == {"run": "r", "plan_digest": "d"}
    metrics = {"acc": 0.5, "n": 3, "ppl": math.inf, "verdict": "passed"}
    outputs = Outputs(parameters={"verdict": "passed"}, metrics={"metrics": metrics}, files={"checks": b"| a |\n"})
    write_outputs(given, outputs)
    text = (tmp_path / "executor_output.json").read_text(encoding="utf-8")
    said = json_format.Parse(text, pipeline_spec_pb2.ExecutorOutput())
    assert dict(said.artifacts["metrics"].artifacts[0].metadata) == metrics | {"ppl": "Infinity"}
    assert dict(said.artifacts["checks"].artifacts[0].metadata) == {}
    folder = tmp_path / "not" / "there"
    assert (folder / "verdict").read_text() == "passed"
    assert (folder / "checks").read_bytes() == b"| a |\n"
    assert json.loads((folder / "metrics").read_text())["acc"] == 0.5


def test_a_place_that_can_not_be_written(executor_input: Callable[..., str], tmp_path: Path) -> None:
    given = read_executor_input(executor_input("shard_data", tmp_path, {}))
    (tmp_path / "not").write_text("a file where a folder should be")
    outputs = Outputs(parameters={"plan_digest": ""}, metrics={"metrics": {}}, files={"plan": b""})
    with pytest.raises(StorageError, match=r"the output can't be written: Not a directory"):
        write_outputs(given, outputs)


def step(*, text: str, whole: int, real: float, status: dict[str, Any] | None = None) -> Outputs:
    """A step for these tests."""
    return Outputs()


GOOD = {"text": "a", "whole": 2.0, "real": 1, "status": {"state": "SUCCEEDED"}}


def test_inputs_arrive_as_the_types_of_the_signature() -> None:
    bound = bind(step, GOOD)
    assert bound == GOOD
    assert [type(value) for value in bound.values()] == [str, int, float, dict]
    assert "status" not in bind(step, {name: value for name, value in GOOD.items() if name != "status"})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("text", 1, "input 'text' must be text, not 1"),
        ("whole", 2.5, "input 'whole' must be a whole number, not 2.5"),
        ("whole", True, "input 'whole' must be a whole number, not True"),
        ("real", "x", "input 'real' must be a number, not 'x'"),
        ("status", "SUCCEEDED", "input 'status' must be a JSON object"),
        ("text", None, "input 'text' is missing"),
    ],
)
def test_other_types_are_refused(name: str, value: object, wanted: str) -> None:
    with pytest.raises(UsageError, match=wanted):
        bind(step, GOOD | {name: value})
