"""A user's mistake gives one line that names it, exit code 2, and no traceback."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


def refused(done: subprocess.CompletedProcess[str], *wanted: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    for text in wanted:
        assert text in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("name: tiny", "nam: tiny", ["unknown key 'nam'", "did you mean 'name'", ".yaml:2"]),
        ("tokens: 256", "tokens: many", ["'batch.tokens' must be a whole number, not 'many'"]),
        ("dtype: float32", "dtype: float23", ["'compute.dtype' must be one of", "did you mean 'float32'"]),
        ("documents.jsonl", "nowhere.jsonl", ["nowhere.jsonl: can't be read: No such file"]),
        ("stride: 48", "stride: 99", ["stride 99 is larger than window 64"]),
        ("window: 64", "window: 9999", ["window 9999 is more than max_length 256"]),
        ("{input}", "{imput}", ["wants field 'imput'; did you mean 'input'?"]),
        ("type: perplexity", "type: perplexed", ["did you mean 'perplexity'"]),
    ],
)
def test_spec(old: str, new: str, wanted: list[str], concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    spec = tiny_spec()
    text = spec.read_text()
    assert old in text
    spec.write_text(text.replace(old, new))
    refused(concord("plan", spec, "--run", tmp_path / "run"), *wanted)
    assert not (tmp_path / "run").exists()


def test_missing_spec(concord: Callable, tmp_path: Path) -> None:
    refused(concord("run", tmp_path / "none.yaml"), "none.yaml: the spec can't be read: No such file")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (
            '{"input": "x", "choices": ["a", "b"], "answer": 2}',
            ["field 'answer' is 2, but there are 2 answers (0 to 1)"],
        ),
        ('{"input": "x", "choices": ["a", "b"], "answer": "0"}', ["field 'answer' must be int, not str"]),
        ('{"input": "x", "choices": "ab", "answer": 0}', ["field 'choices' must be list"]),
        ('{"input": "x", "answer": 0}', ["no field 'choices'"]),
        ('{"input": ', ["not valid JSON"]),
        ("[1]", ["must be a JSON object"]),
    ],
)
def test_question(
    line: str, wanted: list[str], concord: Callable, tiny_spec: Callable, small_data: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(small_data, data)
    lines = (data / "questions.jsonl").read_text().splitlines()
    lines.insert(3, line)
    (data / "questions.jsonl").write_text("\n".join(lines) + "\n")
    spec = tiny_spec()
    spec.write_text(spec.read_text().replace(str(small_data), str(data)))
    refused(concord("plan", spec, "--run", tmp_path / "run"), "questions.jsonl:4", *wanted)


@pytest.mark.parametrize(("content", "wanted"), [("", "no examples"), ('{"text": ""}\n', "has no text to score")])
def test_documents(
    content: str, wanted: str, concord: Callable, tiny_spec: Callable, small_data: Path, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(small_data, data)
    (data / "documents.jsonl").write_text(content)
    spec = tiny_spec()
    spec.write_text(
        spec.read_text().replace(str(small_data), str(data)).replace("type: perplexity", "type: perplexity, bos: never")
    )
    refused(concord("plan", spec, "--run", tmp_path / "run"), "documents.jsonl", wanted)


@pytest.fixture
def other_model(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def test_pickle_weights(concord: Callable, tiny_spec: Callable, other_model: Path, tmp_path: Path) -> None:
    (other_model / "model.safetensors").rename(other_model / "pytorch_model.bin")
    refused(
        concord("plan", tiny_spec(model=other_model), "--run", tmp_path / "run"),
        "only pickle weights",
        "allow_pickle: true",
    )


def test_no_weights(concord: Callable, tiny_spec: Callable, other_model: Path, tmp_path: Path) -> None:
    (other_model / "model.safetensors").unlink()
    refused(concord("plan", tiny_spec(model=other_model), "--run", tmp_path / "run"), "no weights here")


def test_vocabulary_that_does_not_match(
    concord: Callable, tiny_spec: Callable, other_model: Path, tmp_path: Path
) -> None:
    config = json.loads((other_model / "config.json").read_text())
    (other_model / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    refused(
        concord("plan", tiny_spec(model=other_model), "--run", tmp_path / "run"),
        "config.json says vocab_size 300, the weights have 400 embeddings",
    )


def test_model_that_is_nowhere(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    refused(concord("plan", tiny_spec(model=tmp_path / "none"), "--run", tmp_path / "run"), "there is no folder")


def test_a_run_folder_of_another_plan(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    spec = tiny_spec()
    assert concord("plan", spec, "--run", tmp_path / "run").returncode == 0
    spec.write_text(spec.read_text() + "seed: 5\n")
    refused(concord("run", spec, "--run", tmp_path / "run"), "holds another plan: digest", "from this spec")


def test_a_run_without_a_plan(concord: Callable, tmp_path: Path) -> None:
    for command in ("work", "resume", "reduce", "verify", "report"):
        done = concord(command, "--run", tmp_path / "run")
        assert done.returncode == 1
        assert "make the plan first: concord plan SPEC --run URI" in done.stderr
        assert "Traceback" not in done.stderr


def test_help_teaches(concord: Callable) -> None:
    shown = concord("--help").stdout
    for command in ("run", "resume", "plan", "work", "reduce", "verify", "report", "compare", "spec"):
        assert command in shown
        assert concord(command, "--help").returncode == 0
