"""A spec from where a pipeline can give one: YAML text, a file, or an object store, whose data is fetched too."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from eval_core.errors import DataError, SpecError
from eval_core.plan.build import build_plan
from eval_core.plan.types import Plan
from eval_core.spec import EvalSpec, LmEvalTask, MultipleChoiceTask, Task, data_files
from eval_core.spec_yaml import load_spec, parse_spec
from eval_core.storage import Store


@dataclass(frozen=True, kw_only=True)
class Source:
    """A spec and where it was found.

    Attributes:
        spec: what it says.
        origin: the folder or URI where its relative paths start; empty where it was given as text.
    """

    spec: EvalSpec
    origin: str


def read_source(given: str) -> Source:
    """The spec that `given` is (YAML text), or leads to (a path, or the URI of a file).

    Raises:
        SpecError: there is none, or it can't be understood.
        StorageError: the object store is out of reach.
    """
    if "\n" in given or given.lstrip().startswith("{"):
        return Source(spec=parse_spec(given, "the spec"), origin="")
    if "://" in given:
        text = _fetch(given, SpecError).decode("utf-8", "replace")
        return Source(spec=parse_spec(text, given), origin=given.rpartition("/")[0])
    return Source(spec=load_spec(Path(given)), origin=str(Path(given).resolve().parent))


def plan_source(source: Source) -> Plan:
    """The plan of a spec. Data on an object store is fetched for it; the plan keeps the paths of the spec.

    Raises:
        UsageError: spec, data or model can't be used.
        StorageError: an object store is out of reach.
    """
    remote = {path: uri for path in _data_paths(source.spec) if (uri := _uri(path, source.origin))}
    with TemporaryDirectory(prefix="concord-") as folder:
        base = Path(folder if "://" in source.origin or not source.origin else source.origin)
        local = {path: str(Path(folder, f"{number}.jsonl")) for number, path in enumerate(remote)}
        for path, file in local.items():
            Path(file).write_bytes(_fetch(remote[path], DataError))
        try:
            plan = build_plan(_with_data(source.spec, local), base)
        except DataError as error:
            message = str(error)
            for path, file in local.items():
                message = message.replace(file, remote[path])
            raise DataError(message) from error
    named = {file: path for path, file in local.items()}
    return replace(plan, spec=_with_data(plan.spec, named), locations={**plan.locations, "base": source.origin})


def _uri(path: str, origin: str) -> str:
    """Where `path` lies on an object store; empty where it is a file.

    Raises:
        SpecError: it is relative, and the spec came as text.
    """
    if "://" in path:
        return path
    if Path(path).is_absolute():
        return ""
    if not origin:
        raise SpecError(
            f"the spec: data '{path}' is a relative path, but a spec given as text lies in no folder; give an absolute path or a URI"
        )
    scheme, separator, folder = origin.partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(folder, path))}" if separator else ""


def _fetch(uri: str, error: Callable[[str], Exception]) -> bytes:
    folder, _, name = uri.rpartition("/")
    data = Store(folder).get(name)
    if data is None:
        raise error(f"{uri}: there is no such object")
    return data


def _data_paths(spec: EvalSpec) -> list[str]:
    return list(dict.fromkeys(path for task in spec.tasks for path in data_files(task)))


def _with_data(spec: EvalSpec, local: Mapping[str, str]) -> EvalSpec:
    """`spec` with some paths of its data replaced."""

    def of(task: Task) -> Task:
        if isinstance(task, LmEvalTask):
            return task
        moved = replace(task, data=local.get(task.data, task.data))
        if isinstance(moved, MultipleChoiceTask) and moved.fewshot_data is not None:
            moved = replace(moved, fewshot_data=local.get(moved.fewshot_data, moved.fewshot_data))
        return moved

    return replace(spec, tasks=tuple(of(task) for task in spec.tasks))
