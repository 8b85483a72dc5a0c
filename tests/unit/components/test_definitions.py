"""The definitions agree with what the containers run, with the READMEs and with the Dockerfile.

Annotations are objects here, because kfp reads them from a pipeline's signature.
"""

import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from kfp import compiler, dsl

from components import readme
from components.images import STEPS, TARGETS, image
from eval_core import __version__

ROOT = Path(__file__).resolve().parent.parent.parent.parent
TYPES = {"String": str, "Integer": int, "Float": float, "PipelineTaskFinalStatus": dict[str, Any] | None}


def definition(step: str) -> Any:
    return getattr(import_module(f"components.{step}.component"), step)


@pytest.mark.parametrize("step", STEPS)
def test_definition(step: str) -> None:
    spec = definition(step).component_spec
    container = spec.implementation.container
    assert container.image == image(step)  # type: ignore[arg-type]
    assert container.command == ["python", "-m", f"components.{step}"]
    assert container.args == ["--executor-input", "{{$}}"]
    for name, described in (spec.inputs | spec.outputs).items():
        assert described.description, name
    assert "metrics" in spec.outputs


@pytest.mark.parametrize("step", STEPS)
def test_the_container_takes_what_the_definition_offers(step: str) -> None:
    function = getattr(import_module(f"components.{step}.step"), step)
    hints = get_type_hints(function)
    offered = {name: TYPES[given.type] for name, given in definition(step).component_spec.inputs.items()}
    assert {name: hints[name] for name in inspect.signature(function).parameters} == offered


def test_the_status_of_the_pipeline_reaches_the_report(tmp_path: Path) -> None:
    report, shard_data = definition("generate_report"), definition("shard_data")

    @dsl.pipeline(name="p")
    def pipeline(run: str) -> None:
        with dsl.ExitHandler(report(run=run)):
            shard_data(spec="s.yaml", run=run)

    compiler.Compiler().compile(pipeline, str(tmp_path / "p.yaml"))
    assert "taskFinalStatus" in (tmp_path / "p.yaml").read_text()


def test_readmes_are_what_the_definitions_say(tmp_path: Path) -> None:
    assert readme.main(["--check"]) == 0


def test_a_stale_readme_is_found_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in STEPS:
        text = (ROOT / "components" / step / "README.md").read_text(encoding="utf-8")
        (tmp_path / step).mkdir()
        (tmp_path / step / "README.md").write_text(text.replace("`run`", "`rum`"), encoding="utf-8")
    monkeypatch.setattr(readme, "_FOLDER", tmp_path)
    assert readme.main(["--check"]) == 1
    assert capsys.readouterr().err.count("out of date; run: python -m components.readme") == len(STEPS)
    assert readme.main([]) == 0
    assert readme.main(["--check"]) == 0


def test_steps_run_without_kubeflow_and_torch() -> None:
    """An image holds neither; only the launcher's holds a Kubernetes client."""
    modules = [f"components.{step}.step" for step in STEPS] + ["components.command", "components.evaluate.local"]
    code = (
        "import sys\n"
        "for name in ('kfp', 'kubernetes', 'kubeflow', 'torch', 'transformers'): sys.modules[name] = None\n"
        f"import {', '.join(modules)}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


class TestDockerfile:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")

    def test_lint(self) -> None:
        hadolint = Path(sys.executable).parent / "hadolint"
        done = subprocess.run([hadolint, "Dockerfile"], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stdout

    def test_targets_are_the_images(self) -> None:
        stages = re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", self.text, re.MULTILINE | re.DOTALL)
        titles = {stage: re.search(r'image\.title="(.*?)"', body) for stage, body in stages}
        labelled = {stage: f"{title[1]}:{__version__}" for stage, title in titles.items() if title}
        assert labelled == {target: image(target) for target in TARGETS}

    def test_the_version_is_ours(self) -> None:
        assert f"ARG VERSION={__version__}\n" in self.text

    def test_the_user_is_a_number(self) -> None:
        assert re.findall(r"^USER (.*)$", self.text, re.MULTILINE) == ["65532:65532"]
