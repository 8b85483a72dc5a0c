"""The step shard_data, called as a pipeline calls it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from eval_core.plan.files import load_plan
from eval_core.storage import Store


def test_outputs(chain: Any) -> None:
    plan = load_plan(Store(str(chain.run)))
    assert chain.plan_digest == plan.digest
    metrics = chain.planned.metadata("metrics")
    assert metrics["examples"] == len(plan.examples) == 26
    assert metrics["shards"] == plan.n_shards
    dataset = json.loads(chain.planned.text("plan"))
    assert dataset["digest"] == plan.digest
    assert dataset["run"] == str(chain.run)
    assert "written to" in chain.planned.stderr


def test_called_again_finds_the_plan(step: Callable[..., Any], chain: Any, spec_text: str) -> None:
    again = step("shard_data", {"spec": spec_text, "run": str(chain.run)})
    assert again.code == 0
    assert "found at" in again.stderr
    assert again.text("plan_digest") == chain.plan_digest


def test_another_spec_is_refused(step: Callable[..., Any], chain: Any, spec_text: str) -> None:
    other = step("shard_data", {"spec": spec_text + "seed: 5\n", "run": str(chain.run)})
    assert other.code == 2
    assert "holds another plan" in other.error
    assert not (other.folder / "executor_output.json").exists()


def test_a_file_whose_paths_are_relative(
    step: Callable[..., Any], chain: Any, spec_text: str, small_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(small_data, tmp_path / "data")
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text.replace(str(small_data), "data"))
    done = step("shard_data", {"spec": str(spec), "run": str(tmp_path / "run")})
    assert done.code == 0, done.stderr
    assert done.text("plan_digest") == chain.plan_digest
    assert load_plan(Store(str(tmp_path / "run"))).locations["base"] == str(tmp_path)


def test_a_relative_path_in_text(step: Callable[..., Any], spec_text: str, small_data: Path, tmp_path: Path) -> None:
    text = spec_text.replace(str(small_data), "data")
    done = step("shard_data", {"spec": text, "run": str(tmp_path / "run")})
    assert done.code == 2
    assert "'data/documents.jsonl' is a relative path" in done.error
    assert "give an absolute path or a URI" in done.error


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("name: steps", "nam: steps", "the spec:2: unknown key 'nam'; did you mean 'name'?"),
        ("documents.jsonl", "nowhere.jsonl", "nowhere.jsonl: can't be read: No such file"),
    ],
)
def test_a_bad_spec(old: str, new: str, wanted: str, step: Callable[..., Any], spec_text: str, tmp_path: Path) -> None:
    done = step("shard_data", {"spec": spec_text.replace(old, new), "run": str(tmp_path / "run")})
    assert done.code == 2
    assert wanted in done.error
    assert not (tmp_path / "run").exists()


def test_weights_that_can_not_be_read(
    step: Callable[..., Any], spec_text: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model, tmp_path / "model"))
    (model / "model.safetensors").unlink()
    (model / "model.safetensors").mkdir()
    text = spec_text.replace(str(tiny_model), str(model))
    done = step("shard_data", {"spec": text, "run": str(tmp_path / "run")})
    assert done.code == 2
    assert "model.safetensors: can't be read: Is a directory" in done.error


def test_no_such_file(step: Callable[..., Any], tmp_path: Path) -> None:
    done = step("shard_data", {"spec": str(tmp_path / "none.yaml"), "run": str(tmp_path / "run")})
    assert done.code == 2
    assert "none.yaml: the spec can't be read" in done.error


def test_a_tolerance_stands_in_the_plan(step: Callable[..., Any], chain: Any, spec_text: str, tmp_path: Path) -> None:
    done = step("shard_data", {"spec": spec_text, "run": str(tmp_path / "run"), "tolerance": 0.25})
    plan = load_plan(Store(str(tmp_path / "run")))
    assert plan.spec.precision.tolerance == 0.25
    assert done.text("plan_digest") == plan.digest != chain.plan_digest
    assert load_plan(Store(str(chain.run))).spec.precision.tolerance == 0.001


def test_a_tolerance_below_zero(step: Callable[..., Any], spec_text: str, tmp_path: Path) -> None:
    done = step("shard_data", {"spec": spec_text, "run": str(tmp_path / "run"), "tolerance": -1})
    assert done.code == 2
    assert "'tolerance' must be above 0" in done.error


@pytest.fixture
def bucket(s3: dict[str, str]) -> tuple[Any, dict[str, str]]:
    """A client of a local S3 server with the bucket `evals`, and the environment that leads a step to it."""
    access = {"aws_access_key_id": s3["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": s3["AWS_SECRET_ACCESS_KEY"]}
    client = boto3.client("s3", endpoint_url=s3["AWS_ENDPOINT_URL"], region_name=s3["AWS_REGION"], **access)
    client.create_bucket(Bucket="evals")
    return client, s3


@pytest.fixture
def spec_in_bucket(bucket: tuple[Any, dict[str, str]], spec_text: str, small_data: Path) -> Any:
    """The client, the environment and the URI of a spec whose questions lie beside it, and its documents elsewhere."""
    client, environment = bucket
    text = spec_text.replace(f"{small_data}/documents", "s3://evals/elsewhere/documents")
    text = text.replace(f"{small_data}/questions", "../data/questions")
    client.put_object(Bucket="evals", Key="specs/spec.yaml", Body=text.encode())
    for key, name in (("elsewhere/documents", "documents"), ("data/questions", "questions")):
        client.put_object(Bucket="evals", Key=f"{key}.jsonl", Body=(small_data / f"{name}.jsonl").read_bytes())
    return client, environment, "s3://evals/specs/spec.yaml"


def test_everything_on_s3(step: Callable[..., Any], chain: Any, spec_in_bucket: Any) -> None:
    client, environment, uri = spec_in_bucket
    done = step("shard_data", {"spec": uri, "run": "s3://evals/runs/a"}, **environment)
    assert done.code == 0, done.stderr
    assert done.text("plan_digest") == chain.plan_digest
    head = json.loads(client.get_object(Bucket="evals", Key="runs/a/plan/plan.json")["Body"].read())
    assert head["locations"]["base"] == "s3://evals/specs"
    assert head["spec"]["tasks"][0]["data"] == "s3://evals/elsewhere/documents.jsonl"


def test_a_bad_line_on_s3_is_named_by_its_uri(step: Callable[..., Any], spec_in_bucket: Any, tmp_path: Path) -> None:
    client, environment, uri = spec_in_bucket
    client.put_object(Bucket="evals", Key="data/questions.jsonl", Body=b"[1]\n")
    done = step("shard_data", {"spec": uri, "run": str(tmp_path / "run")}, **environment)
    assert done.code == 2
    assert "s3://evals/data/questions.jsonl:1: a line must be a JSON object" in done.error


def test_what_is_not_on_s3(step: Callable[..., Any], spec_in_bucket: Any, tmp_path: Path) -> None:
    client, environment, uri = spec_in_bucket
    client.delete_object(Bucket="evals", Key="data/questions.jsonl")
    done = step("shard_data", {"spec": uri, "run": str(tmp_path / "run")}, **environment)
    assert done.code == 2
    assert "s3://evals/data/questions.jsonl: there is no such object" in done.error
    done = step("shard_data", {"spec": "s3://evals/none.yaml", "run": str(tmp_path / "run")}, **environment)
    assert done.code == 2
    assert "s3://evals/none.yaml: there is no such object" in done.error
