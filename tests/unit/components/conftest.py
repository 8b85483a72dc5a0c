"""Call a step as a pipeline does: `python -m components.STEP`, with an executor input that is made from its definition."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent.parent

SPEC = """
name: steps
model: {model}
tasks:
  - {{name: docs, type: perplexity, data: {data}/documents.jsonl, window: 64, stride: 48, limit: 10}}
  - {{name: quiz, type: multiple_choice, data: {data}/questions.jsonl, prompt: "Q: {{input}}\\nA:", limit: 16}}
batch: {{tokens: 512, shard_cost: 50000000}}
audit: {{micro_batches: 3}}
work: {{progress_interval: 0.5, stall_timeout: 60}}
report: {{bootstrap: 50}}
"""


@dataclass(frozen=True, kw_only=True)
class Done:
    """A step that has ended.

    Attributes:
        code, stderr: exit code, and what it said.
        folder: where its outputs belong.
    """

    code: int
    stderr: str
    folder: Path

    def text(self, name: str) -> str:
        """The file of an output."""
        return (self.folder / "not" / "there" / name).read_text(encoding="utf-8")

    def metadata(self, name: str) -> dict[str, Any]:
        """What executor_output.json says of an artifact."""
        said = json.loads((self.folder / "executor_output.json").read_text(encoding="utf-8"))
        (artifact,) = said["artifacts"][name]["artifacts"]
        assert artifact["name"] == name
        assert artifact["uri"] == str(self.folder / "not" / "there" / name)
        return artifact["metadata"]

    @property
    def error(self) -> str:
        """The one line that it said."""
        assert self.stderr.startswith("error: "), self.stderr
        assert self.stderr.count("\n") == 1, self.stderr
        return self.stderr


def executor_input(step: str, folder: Path, inputs: dict[str, Any]) -> str:
    """The JSON for a call of `step`, its defaults filled in as a pipeline does."""
    spec: Any = getattr(import_module(f"components.{step}.component"), step).component_spec
    values = {name: given.default for name, given in spec.inputs.items() if given.default is not None} | inputs
    where = {name: str(folder / "not" / "there" / name) for name in spec.outputs}
    artifacts = {name for name, made in spec.outputs.items() if made.type.startswith("system.")}
    return json.dumps(
        {
            "inputs": {"parameterValues": {name: float(v) if type(v) is int else v for name, v in values.items()}},
            "outputs": {
                "parameters": {name: {"outputFile": where[name]} for name in where.keys() - artifacts},
                "artifacts": {
                    name: {"artifacts": [{"name": name, "uri": where[name], "metadata": {}}]} for name in artifacts
                },
                "outputFile": str(folder / "executor_output.json"),
            },
        }
    )


@pytest.fixture(scope="session")
def step(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Done]:
    """Call a step and wait for its end: `step("shard_data", {"spec": ..., "run": ...})`."""

    def call(name: str, inputs: dict[str, Any], **environment: str) -> Done:
        folder = tmp_path_factory.mktemp(name)
        done = subprocess.run(
            [sys.executable, "-m", f"components.{name}", "--executor-input", executor_input(name, folder, inputs)],
            capture_output=True,
            text=True,
            timeout=300,
            env=os.environ | environment,
            cwd=ROOT,
            check=False,
        )
        return Done(code=done.returncode, stderr=done.stderr, folder=folder)

    return call


@pytest.fixture(scope="session", name="executor_input")
def _executor_input() -> Callable[[str, Path, dict[str, Any]], str]:
    return executor_input


@pytest.fixture(scope="session")
def spec_text(tiny_model: Path, small_data: Path) -> str:
    """A spec whose paths are absolute."""
    return SPEC.format(model=tiny_model, data=small_data)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """A run that the steps have made, for reading only."""

    run: Path
    plan_digest: str
    planned: Done
    evaluated: Done


@pytest.fixture(scope="session")
def chain(step: Callable[..., Done], spec_text: str, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """shard_data and evaluate, with two processes in the step's own container."""
    run = tmp_path_factory.mktemp("chain") / "run"
    planned = step("shard_data", {"spec": spec_text, "run": str(run)})
    assert planned.code == 0, planned.stderr
    digest = planned.text("plan_digest")
    inputs = {"run": str(run), "plan_digest": digest, "backend": "local", "processes_per_worker": 2}
    evaluated = step("evaluate", inputs)
    assert evaluated.code == 0, evaluated.stderr
    return Evaluated(run=run, plan_digest=digest, planned=planned, evaluated=evaluated)


@pytest.fixture
def own_run(chain: Evaluated, tmp_path: Path) -> Path:
    """A copy of the evaluated run, to be changed at will."""
    return Path(shutil.copytree(chain.run, tmp_path / "run"))
