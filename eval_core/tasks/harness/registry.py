"""Load tasks and groups by the harness's own registry, with its errors in words that say what to do."""

from __future__ import annotations

import contextlib
import difflib
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from yaml import MarkedYAMLError

from eval_core.errors import DataError, SpecError, first_line
from eval_core.spec import EvalSpec, GenKwargs, LmEvalTask, Task, to_plain
from eval_core.spec_yaml import compose_yaml, not_yaml

_OUTPUT_TYPES = ("loglikelihood", "loglikelihood_rolling", "multiple_choice", "generate_until")


@dataclass(frozen=True, kw_only=True)
class Harness:
    """What the harness gave for the tasks of a spec.

    Attributes:
        tasks: name -> its Task object, in the spec's order.
        groups: name -> its Group object.
    """

    tasks: Mapping[str, Any]
    groups: Mapping[str, Any]


def load_harness(spec: EvalSpec, base: Path) -> tuple[EvalSpec, Harness]:
    """The harness's tasks that `spec` names, and the spec with one entry for each single task.

    A spec that has been through this comes out as it went in.

    Raises:
        SpecError: lm-eval isn't installed, there is no such task, its YAML is broken, or it wants what can't be given.
        DataError: a task's data can't be had.
    """
    wanted = [task for task in spec.tasks if isinstance(task, LmEvalTask)]
    if not wanted:
        return spec, Harness(tasks={}, groups={})
    tasks: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    leaves: dict[str, LmEvalTask] = {}
    with harness_quiet():
        for entry in {(t.lm_eval, t.include_path): t for t in wanted}.values():
            loaded = _load(entry, spec.model, base)
            groups |= loaded["groups"]
            for name, task in loaded["tasks"].items():
                if name in tasks:
                    raise SpecError(
                        f"task '{name}' is asked for twice, once by '{entry.lm_eval}'; leave one of them out"
                    )
                tasks[name] = task
                leaf = next((t for t in wanted if t.name == name), entry)
                leaves[name] = _prepare(task, name, leaf, spec.seed)
    return replace(spec, tasks=tuple(_expand(spec.tasks, leaves))), Harness(tasks=tasks, groups=groups)


def _expand(tasks: Sequence[Task], leaves: Mapping[str, LmEvalTask]) -> Iterator[Task]:
    """Each group's tasks where the group stands."""
    names = [task.name for task in tasks if not isinstance(task, LmEvalTask)]
    if doubled := set(names) & set(leaves):
        raise SpecError(f"two tasks are named '{min(doubled)}'; give yours another name")
    done: set[tuple[str, str | None]] = set()
    for task in tasks:
        if not isinstance(task, LmEvalTask):
            yield task
        elif (origin := (task.lm_eval, task.include_path)) not in done:
            done.add(origin)
            yield from (leaf for leaf in leaves.values() if (leaf.lm_eval, leaf.include_path) == origin)


@cache
def _manager(folder: Path | None, model: str, *, defaults: bool) -> Any:
    """The registry of the tasks in `folder` and, by `defaults`, of the harness's own, whose 14,000 files take seconds to read."""
    try:
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        raise SpecError(
            "these tasks are the lm-evaluation-harness's, which is not installed: pip install 'concord-eval[lm-eval]'"
        ) from error
    path = None if folder is None else str(folder)
    return TaskManager(include_path=path, include_defaults=defaults, metadata={"pretrained": model})


def _registry(name: str, folder: Path | None, model: str) -> Any:
    """The registry to load `name` from: a single task in `folder` needs the harness's own tasks no more than a file does.

    A group or tag may name any of them.
    """
    if folder is not None:
        own = _manager(folder, model, defaults=False)
        entry = own.task_index.get(name)
        if entry is not None and entry.kind.name in ("TASK", "PY_TASK"):
            return own
    return _manager(folder, model, defaults=True)


def _load(entry: LmEvalTask, model: str, base: Path) -> dict[str, Any]:
    folder = None if entry.include_path is None else base / entry.include_path
    if folder is not None:
        _check_yaml(folder)
    manager = _registry(entry.lm_eval, folder, model)
    name = entry.lm_eval
    if name not in manager.all_tasks:
        file = base / name
        if not file.is_file():
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else "; `lm-eval ls tasks` lists them"
            raise SpecError(f"the harness has no task, group or tag '{name}', and there is no such YAML file{hint}")
        _check_yaml(file)
        name = str(file)
    try:
        loaded: dict[str, Any] = dict(manager.load([name]))
    except ImportError as error:
        raise SpecError(f"task '{entry.lm_eval}' wants a package that is not installed: {first_line(error)}") from error
    except Exception as error:  # tasks are code of many hands: what they and the data's library raise is of any kind
        raise _unloadable(entry, error) from error
    return {"tasks": loaded["tasks"], "groups": loaded.get("groups", {})}


def _unloadable(entry: LmEvalTask, error: Exception) -> Exception:
    for cause in _causes(error):
        if isinstance(cause, MarkedYAMLError) and cause.problem_mark is not None:  # in a file that others include
            return not_yaml(cause, cause.problem_mark.name)
    what = f"{type(error).__name__}: {first_line(error)}"
    chain = {type(e).__name__ for e in _causes(error)}
    unreachable = {
        "ConnectionError",
        "OfflineModeIsEnabled",
        "LocalEntryNotFoundError",
        "ConnectError",
        "MaxRetryError",
    }
    if chain & unreachable or isinstance(error, OSError):
        return DataError(
            f"task '{entry.lm_eval}': its data can't be had ({what}). Without the hub, give a local copy: HF_HOME with a cache that "
            "holds it, or a task YAML of your own (include_path) whose dataset_path is json and dataset_kwargs.data_files your file"
        )
    return SpecError(f"task '{entry.lm_eval}' can't be loaded: {what}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _check_yaml(path: Path) -> None:
    """Refuse what is no YAML by file and line: the harness passes such files over in silence."""
    if not path.exists():
        raise SpecError(f"{path}: there is no such folder of tasks")
    for file in sorted(path.rglob("*.yaml")) if path.is_dir() else [path]:
        try:
            compose_yaml(file.read_text(encoding="utf-8"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{file}: can't be read: {error}") from error


def _prepare(task: Any, name: str, entry: LmEvalTask, seed: int) -> LmEvalTask:
    """Set on `task` what `entry` says; returns the entry of this single task."""
    if getattr(task, "MULTIMODAL", False):
        raise SpecError(f"task '{name}' has images or sound, which no model here takes")
    if getattr(task, "UNSAFE_CODE", False) and not entry.confirm_run_unsafe_code:
        raise SpecError(
            f"task '{name}' runs the code that the model writes; where that may be, say confirm_run_unsafe_code"
        )
    if task.OUTPUT_TYPE not in _OUTPUT_TYPES:
        raise SpecError(
            f"task '{name}' is of output type {task.OUTPUT_TYPE}; known here are {', '.join(_OUTPUT_TYPES)}"
        )
    said = task.get_config("num_fewshot") or 0
    insists = task.get_config("num_fewshot") == 0
    shots = said if insists or entry.num_fewshot is None else entry.num_fewshot
    task.set_config(key="num_fewshot", value=shots)
    task.set_fewshot_seed(seed=seed)
    if task.OUTPUT_TYPE == "generate_until" and (said_instead := _given(entry.gen_kwargs)):
        task.set_config(key="generation_kwargs", value=said_instead, update=True)
    turns = bool(entry.apply_chat_template) if entry.fewshot_as_multiturn is None else entry.fewshot_as_multiturn
    return replace(entry, name=name, num_fewshot=shots, fewshot_as_multiturn=turns)


def _given(way: GenKwargs) -> dict[str, Any]:
    return {name: value for name, value in to_plain(way).items() if value is not None}


@contextlib.contextmanager
def harness_quiet() -> Iterator[None]:
    """Keep the harness's own log lines and progress bars off the terminal, where ours are."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "lm-eval", "datasets", "huggingface_hub")]
    levels = [logger.level for logger in loggers]
    bars = os.environ.get("TQDM_DISABLE")
    os.environ["TQDM_DISABLE"] = "1"
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        if bars is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = bars
