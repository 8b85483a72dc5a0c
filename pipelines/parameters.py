"""Values for the pipeline's inputs, from a file, from `--set` and from options; each of the input's type."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from eval_core.errors import UsageError
from eval_core.spec import data_files
from eval_core.spec_yaml import parse_spec
from pipelines.package import Input

Values = dict[str, str | int | float]


def read_file(path: Path) -> dict[str, Any]:
    """The mapping in a YAML or JSON file.

    Raises:
        UsageError: there is none.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not valid YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: needed is one `input: value` a line")
    return {str(name): value for name, value in content.items()}


def read_settings(settings: Iterable[str]) -> dict[str, str]:
    """The pairs of `name=value`.

    Raises:
        UsageError: one has no `=`.
    """
    pairs = {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise UsageError(f"--set {setting}: needed is --set INPUT=VALUE")
        pairs[name.strip()] = value
    return pairs


def read_spec(path: str) -> str:
    """The value of the input `spec`: a URI as it is, a local file's text, checked as the pipeline will check it.

    Raises:
        SpecError: the file says something that a spec can't say.
        UsageError: it is missing, or what it says would not reach the cluster as it stands.
    """
    if "://" in path:
        return path
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--spec {path}: {reason}; for a file that only the pods can see: --set spec={path}"
        ) from error
    for task in parse_spec(text, path).tasks:
        for data in data_files(task):
            if "://" not in data and not Path(data).is_absolute():
                raise UsageError(
                    f"{path}: task '{task.name}' reads '{data}', a path relative to this file, which the pods don't have; "
                    "give a URI or an absolute path, or put both in the storage and give the spec's URI"
                )
    if "{{" in text:
        raise UsageError(
            f"{path}: '{{{{' would be read as a placeholder of the pipeline; put the spec in the storage and give its URI"
        )
    return text if "\n" in text.strip() else f"{text}\n"


def read_pod_template(path: Path) -> str:
    """The value of the input `pod_template`, checked as the launcher will check it where the Kubernetes client is installed.

    Raises:
        UsageError: the file is no mapping, or says something that a pod can't say.
    """
    text = json.dumps(read_file(path))
    try:
        from components.evaluate.pod_template import parse_pod_template
    except ImportError:
        return text
    parse_pod_template(text)
    return text


def resolve(inputs: Mapping[str, Input], given: Mapping[str, Any]) -> Values:
    """`given`, each value of its input's type.

    Raises:
        UsageError: an input is unknown, missing, or can't have that value.
    """
    for name in given:
        if name not in inputs:
            near = difflib.get_close_matches(name, inputs, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(inputs)}"
            raise UsageError(f"the pipeline has no input '{name}'{hint}")
    missing = [name for name, definition in inputs.items() if definition.required and name not in given]
    if missing:
        first = missing[0]
        raise UsageError(f"input '{first}' is missing: {inputs[first].description}")
    return {name: _convert(name, value, inputs[name].type) for name, value in given.items()}


def _convert(name: str, value: Any, kind: str) -> str | int | float:
    if kind == "STRING":
        if isinstance(value, (dict, list)):
            return json.dumps(value)
        if isinstance(value, str):
            return value
        raise UsageError(f"input '{name}' must be text, not {value!r}; put it in quotes")
    try:
        if isinstance(value, bool):
            raise ValueError
        return int(str(value)) if kind == "NUMBER_INTEGER" else float(str(value))
    except ValueError as error:
        wanted = "a whole number" if kind == "NUMBER_INTEGER" else "a number"
        raise UsageError(f"input '{name}' must be {wanted}, not {value!r}") from error
