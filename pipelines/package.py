"""A compiled pipeline: what is sent to Kubeflow Pipelines, and the inputs that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from components.images import TARGETS, image
from eval_core.errors import UsageError
from pipelines.variants import Variant, compiled_file


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input of the pipeline.

    Attributes:
        type: STRING, NUMBER_INTEGER or NUMBER_DOUBLE.
        description: for people.
        required: whether it has no default.
    """

    type: str
    description: str
    required: bool


@dataclass(frozen=True, kw_only=True)
class Package:
    """A compiled pipeline.

    Attributes:
        content: what the API takes as a run's `pipeline_spec`.
        inputs: name -> input.
    """

    content: Mapping[str, Any]
    inputs: Mapping[str, Input]


def load_package(variant: Variant, registry: str | None) -> Package:
    """The committed pipeline, with images from `registry` (None: from where a bare name leads)."""
    text = compiled_file(variant).read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    spec, platform = yaml.load_all(with_registry(text, registry), Loader=loader)
    inputs = {
        name: Input(
            type=definition["parameterType"],
            description=definition["description"],
            required="defaultValue" not in definition,
        )
        for name, definition in spec["root"]["inputDefinitions"]["parameters"].items()
    }
    return Package(content={"pipeline_spec": spec, "platform_spec": platform}, inputs=inputs)


def with_registry(compiled: str, registry: str | None) -> str:
    """A compiled pipeline's text whose images come from `registry`: `registry.example.com/team/worker:0.1.0`.

    Raises:
        UsageError: `registry` can't stand before an image's name.
    """
    if registry is None:
        return compiled
    if "://" in registry or not registry.strip("/") or any(c.isspace() for c in registry):
        raise UsageError(
            f"--registry {registry}: needed is what stands before an image's name: registry.example.com/team"
        )
    for target in TARGETS:
        name = image(target)
        compiled = compiled.replace(name, f"{registry.rstrip('/')}/{name.rpartition('/')[2]}")
    return compiled
