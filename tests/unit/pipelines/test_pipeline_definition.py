"""The compiled pipelines: the committed files are what the code says, and say what a backend must do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from components.evaluate.job import RUNS_CLAIM, RUNS_PATH
from components.images import TARGETS, image
from eval_core.errors import UsageError
from pipelines.compile import compile_pipeline
from pipelines.distributed_evaluation import SECRET, SECRET_KEYS
from pipelines.package import load_package, with_registry
from pipelines.variants import STEPS, VARIANTS, VOLUME, VOLUME_PATH, Variant, compiled_file


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


@pytest.fixture
def documents(variant: Variant) -> tuple[dict[str, Any], dict[str, Any]]:
    """The committed pipeline, and what it asks of Kubernetes."""
    pipeline, platform = yaml.safe_load_all(compiled_file(variant).read_text())
    return pipeline, platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]


def tasks_of(pipeline: dict[str, Any]) -> dict[str, Any]:
    """The tasks that run a container, wherever they are nested."""
    found: dict[str, Any] = {}

    def collect(dag: dict[str, Any]) -> None:
        for name, task in dag["tasks"].items():
            component = pipeline["components"][task["componentRef"]["name"]]
            if "dag" in component:
                collect(component["dag"])
            else:
                found[name] = task

    collect(pipeline["root"]["dag"])
    return found


def test_compiling_again_gives_the_committed_bytes(variant: Variant, tmp_path: Path) -> None:
    compile_pipeline(variant, tmp_path / "again.yaml")
    name = compiled_file(variant).name
    assert (tmp_path / "again.yaml").read_bytes() == compiled_file(variant).read_bytes(), (
        f"commit it: concord-pipeline compile --variant {variant} --output pipelines/{name}"
    )


def test_the_steps_are_those_that_the_submitter_looks_for(documents: tuple[dict[str, Any], Any]) -> None:
    assert set(tasks_of(documents[0])) == set(STEPS)


def test_no_step_is_cached(documents: tuple[dict[str, Any], Any]) -> None:
    assert all(not task["cachingOptions"].get("enableCache", False) for task in tasks_of(documents[0]).values())


def test_the_report_is_the_exit_task_and_takes_pipeline_inputs_and_the_status_alone(
    documents: tuple[dict[str, Any], Any],
) -> None:
    task = documents[0]["root"]["dag"]["tasks"]["generate-report"]
    assert task["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    (handler,) = task["dependentTasks"]
    assert set(task["inputs"]) == {"parameters"}
    given = {name: value for name, value in task["inputs"]["parameters"].items() if "runtimeValue" not in value}
    assert given == {
        "run": {"componentInputParameter": "run"},
        "status": {"taskFinalStatus": {"producerTask": handler}},
    }


def test_the_verification_waits_for_the_evaluation(documents: tuple[dict[str, Any], Any]) -> None:
    assert "evaluate" in tasks_of(documents[0])["verify-precision"]["dependentTasks"]


def test_every_input_is_described(documents: tuple[dict[str, Any], Any]) -> None:
    inputs = documents[0]["root"]["inputDefinitions"]["parameters"]
    assert all(definition["description"].endswith(".") for definition in inputs.values())
    required = {name for name, definition in inputs.items() if "defaultValue" not in definition}
    assert required == {"spec", "run"}


def test_every_pod_gets_the_credentials_where_there_are_some(documents: tuple[dict[str, Any], Any]) -> None:
    executors = documents[1]
    assert len(executors) == len(STEPS)
    for executor in executors.values():
        (secret,) = executor["secretAsEnv"]
        assert (secret["secretName"], secret["optional"]) == (SECRET, True)
        assert {key["secretKey"]: key["envVar"] for key in secret["keyToEnv"]} == {key: key for key in SECRET_KEYS}


def test_the_volume_is_mounted_in_the_variant_for_it_alone(
    variant: Variant, documents: tuple[dict[str, Any], Any]
) -> None:
    mounts = [m for executor in documents[1].values() for m in executor.get("pvcMount", [])]
    if variant != "pvc":
        assert not mounts
        return
    assert [(m["constant"], m["mountPath"]) for m in mounts] == [(VOLUME, VOLUME_PATH)] * len(STEPS)
    assert (VOLUME, VOLUME_PATH) == (RUNS_CLAIM, RUNS_PATH), "the workers must find the run where the steps put it"


def test_images_from_another_registry(variant: Variant) -> None:
    text = with_registry(compiled_file(variant).read_text(), "registry.example.com/team/")
    assert "registry.example.com/team/worker:" in text
    assert not any(f" {image(target)}" in text for target in TARGETS)
    assert load_package(variant, None).content != load_package(variant, "other").content


@pytest.mark.parametrize("registry", ["", "/", "https://registry", "a b"])
def test_what_can_stand_before_no_image_is_refused(registry: str) -> None:
    with pytest.raises(UsageError, match="--registry"):
        with_registry("", registry)
