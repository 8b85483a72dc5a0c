"""Values for the pipeline's inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eval_core.errors import SpecError, UsageError
from pipelines.package import Input, load_package
from pipelines.parameters import read_file, read_settings, read_spec, resolve

REQUIRED = {"spec": "s3://bucket/spec.yaml", "run": "s3://bucket/run"}


@pytest.fixture(scope="module")
def inputs() -> dict[str, Input]:
    return dict(load_package("s3", None).inputs)


def test_text_from_the_command_line_becomes_the_inputs_type(inputs: dict[str, Input]) -> None:
    given = read_settings(["workers=4", "tolerance=1e-3", "run=s3://a=b", "image=7"])
    assert resolve(inputs, REQUIRED | given) == {
        "spec": "s3://bucket/spec.yaml",
        "run": "s3://a=b",
        "workers": 4,
        "tolerance": 0.001,
        "image": "7",
    }


def test_a_mapping_becomes_json(inputs: dict[str, Input]) -> None:
    template = {"nodeSelector": {"gpu": "a100"}}
    value = resolve(inputs, REQUIRED | {"pod_template": template})["pod_template"]
    assert json.loads(str(value)) == template


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"wrokers": "2"}, "did you mean 'workers'"),
        ({"colour": "red"}, "known are spec, run|known are .*workers"),
        ({"workers": "2.5"}, "whole number"),
        ({"workers": True}, "whole number"),
        ({"workers": None}, "whole number"),
        ({"tolerance": "small"}, "a number"),
        ({"image": 7}, "quotes"),
    ],
)
def test_a_wrong_value_is_named(inputs: dict[str, Input], given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        resolve(inputs, REQUIRED | given)


def test_a_missing_input_says_what_it_is(inputs: dict[str, Input]) -> None:
    with pytest.raises(UsageError, match="input 'run' is missing: Where the run keeps"):
        resolve(inputs, {"spec": "s3://bucket/spec.yaml"})


@pytest.mark.parametrize("text", ["- a list", "word", "{", "\x00"])
def test_a_file_of_parameters_must_be_a_mapping(tmp_path: Path, text: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"params\.yaml"):
        read_file(path)


def test_a_spec_is_sent_as_text_that_the_step_takes_for_text(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("{name: a, model: /m, tasks: [{name: t, type: perplexity, data: /d.jsonl}]}")
    assert read_spec(str(path)).endswith("\n")
    assert read_spec("s3://bucket/any") == "s3://bucket/any"


def test_a_spec_with_relative_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "name: a\nmodel: /m\ntasks:\n"
        "  - {name: t, type: multiple_choice, data: /d.jsonl, prompt: '{q}', num_fewshot: 1, fewshot_data: few.jsonl}\n"
    )
    with pytest.raises(UsageError, match=r"'few\.jsonl', a path relative"):
        read_spec(str(path))
    path.write_text("name: a\n")
    with pytest.raises(SpecError):
        read_spec(str(path))
