"""Strict YAML in: each error names the key, the line and, for an unknown key, the nearest known one."""

from __future__ import annotations

import difflib
import json
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from eval_core.errors import SpecError
from eval_core.spec import TASK_TYPES, DType, EvalSpec, LmEvalTask, PerplexityTask, required

_LONGEST_WAIT = 1e7
_SCALAR_NAMES: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
}


def load_spec(path: Path) -> EvalSpec:
    """Read the spec at `path`.

    Raises:
        SpecError: the file is missing, isn't YAML, or says something that a spec can't say.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: the spec can't be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_spec(text, str(path))


def parse_spec(text: str, source: str) -> EvalSpec:
    """Read a spec from `text`; `source` stands in its messages.

    Raises:
        SpecError: as `load_spec`.
    """
    node = compose_yaml(text, source)
    if node is None:
        raise SpecError(f"{source}: the spec is empty; `concord spec` prints one to start from")
    spec: EvalSpec = _Reader(source).build(node, EvalSpec, "")
    check_spec(spec, source)
    return spec


def section_of_flag(given: Mapping[str, Any], cls: type, flag: str) -> Any:
    """A section of a spec from what `flag` of the command line gave.

    Raises:
        SpecError: an unknown key or a wrong type, as in a file.
    """
    node = compose_yaml(json.dumps(given, ensure_ascii=False, default=str), flag)
    assert node is not None
    return _Reader(flag, has_lines=False).build(node, cls, "")


def compose_yaml(text: str, source: str) -> yaml.Node | None:
    """The node of a YAML text, nothing in it constructed; None where it is empty.

    Raises:
        SpecError: it isn't YAML; names `source` and the line.
    """
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise not_yaml(error, source) from error


def not_yaml(error: yaml.YAMLError, source: str) -> SpecError:
    """What YAML says against `source`, with the line where it knows it."""
    mark = getattr(error, "problem_mark", None)
    where = f"{source}:{mark.line + 1}" if mark else source
    return SpecError(f"{where}: not valid YAML: {getattr(error, 'problem', None) or error}")


class _Reader:
    """Turns YAML nodes into the dataclasses of a spec; knows the file's name for its messages."""

    def __init__(self, source: str, *, has_lines: bool = True) -> None:
        self.source = source
        self.has_lines = has_lines

    def error(self, node: yaml.Node, message: str) -> SpecError:
        line = f":{node.start_mark.line + 1}" if self.has_lines else ""
        return SpecError(f"{self.source}{line}: {message}")

    def build(self, node: yaml.Node, cls: type, path: str) -> Any:
        """An instance of dataclass `cls` from a mapping node."""
        entries = self.entries(node, path)
        hints = get_type_hints(cls)
        for name, (key_node, _) in entries.items():
            if name not in hints:
                raise self.error(key_node, f"unknown key '{path}{name}'{_nearest(name, list(hints))}")
        for f in fields(cls):
            if required(f) and f.name not in entries:
                raise self.error(node, f"key '{path}{f.name}' is missing: {f.metadata['doc']}")
        return cls(**{name: self.convert(value, hints[name], path + name) for name, (_, value) in entries.items()})

    def entries(self, node: yaml.Node, path: str) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Key -> (its node, its value's node) of a mapping node."""
        if not isinstance(node, yaml.MappingNode):
            raise self.error(node, f"'{path.rstrip('.') or 'the spec'}' must be a mapping of keys")
        entries: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            name = str(key_node.value)
            if name in entries:
                raise self.error(key_node, f"key '{path}{name}' is given twice")
            entries[name] = (key_node, value_node)
        return entries

    def convert(self, node: yaml.Node, hint: Any, path: str) -> Any:
        """The value of `node` as the type `hint`."""
        origin = get_origin(hint)
        if origin is tuple:
            return self.sequence(node, get_args(hint)[0], path)
        if origin in (Union, types.UnionType):
            members = [a for a in get_args(hint) if a is not type(None)]
            if all(is_dataclass(m) for m in members):
                return self.task(node, path)
            if node.tag == "tag:yaml.org,2002:null":
                return None
            if members == [bool, str]:
                return self.scalar(node, bool if node.tag == "tag:yaml.org,2002:bool" else str, path)
            return self.convert(node, members[0], path)
        if origin is Literal:
            allowed = [str(a) for a in get_args(hint)]
            value = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
            if value not in allowed:
                raise self.error(node, f"'{path}' must be one of {', '.join(allowed)}{_nearest(value, allowed)}")
            return value
        if is_dataclass(hint):
            return self.build(node, hint, path + ".")  # type: ignore[arg-type]
        return self.scalar(node, hint, path)

    def sequence(self, node: yaml.Node, member: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            raise self.error(node, f"'{path}' must be a list with at least one entry")
        return tuple(self.convert(child, member, f"{path}[{i}]") for i, child in enumerate(node.value))

    def task(self, node: yaml.Node, path: str) -> Any:
        entries = self.entries(node, path + ".")
        if "type" not in entries and "lm_eval" in entries:
            return self.build(node, LmEvalTask, path + ".")
        if "type" not in entries:
            raise self.error(node, f"key '{path}.type' is missing: one of {', '.join(TASK_TYPES)}")
        kind_node = entries["type"][1]
        kind = str(kind_node.value)
        if kind not in TASK_TYPES:
            known = list(TASK_TYPES)
            raise self.error(kind_node, f"'{path}.type' must be one of {', '.join(known)}{_nearest(kind, known)}")
        return self.build(node, TASK_TYPES[kind], path + ".")

    def scalar(self, node: yaml.Node, wanted: type, path: str) -> Any:
        wrong = self.error(node, f"'{path}' must be {_SCALAR_NAMES[wanted]}{_found(node)}")
        if not isinstance(node, yaml.ScalarNode):
            raise wrong
        kind = node.tag.rpartition(":")[2]
        if wanted is str:
            if kind != "str":
                raise self.error(node, f"'{path}' must be text: put quotes around {node.value!r}")
            return node.value
        if wanted is bool:
            if kind != "bool":
                raise wrong
            if node.value.lower() not in yaml.SafeLoader.bool_values:
                raise wrong
            return yaml.SafeLoader.bool_values[node.value.lower()]
        if kind == "bool" or node.style in ("'", '"'):
            raise wrong
        try:
            number = float(node.value.replace("_", ""))
            exact = int(node.value.replace("_", "")) if re.fullmatch(r"[-+]?[\d_]+", node.value) else number
        except ValueError:
            raise wrong from None
        if not math.isfinite(number):
            raise wrong
        if wanted is float:
            return number
        if not number.is_integer():
            raise wrong
        return int(exact)


def _nearest(name: str, known: list[str]) -> str:
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean '{match[0]}'?" if match else f" (known: {', '.join(sorted(known))})"


def _found(node: yaml.Node) -> str:
    return f", not {node.value!r}" if isinstance(node, yaml.ScalarNode) else ", not a list or a mapping"


def one_of_dtypes(value: str, where: str) -> DType:
    """`value` as a dtype of the spec; `where` stands in the message.

    Raises:
        SpecError: there is no such dtype.
    """
    for known in get_args(DType):
        if known == value:
            return known  # type: ignore[no-any-return]
    raise SpecError(f"'{where}' must be one of {', '.join(get_args(DType))}{_nearest(value, list(get_args(DType)))}")


def check_spec(spec: EvalSpec, source: str) -> None:
    """Refuse values of the right type that make no sense; `source` stands in the messages.

    Raises:
        SpecError: there is one.
    """

    def need(condition: bool, message: str) -> None:
        if not condition:
            raise SpecError(f"{source}: {message}")

    need(
        re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", spec.name) is not None,
        f"'name' is {spec.name!r}: only letters, digits, '-', '_' and '.', starting with a letter or digit",
    )
    names = [task.name for task in spec.tasks if task.type != "lm_eval"]
    for name in names:
        need(
            re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name) is not None,
            f"task name {name!r}: only letters, digits, '-', '_' and '.', starting with a letter or digit",
        )
        need(names.count(name) == 1, f"two tasks are named '{name}'")
    minimum_one = {
        "compute.threads": spec.compute.threads,
        "compute.head_rows": spec.compute.head_rows,
        "batch.tokens": spec.batch.tokens,
        "batch.generated_tokens": spec.batch.generated_tokens,
        "batch.generated_rounds": spec.batch.generated_rounds,
        "batch.pad_to_multiple": spec.batch.pad_to_multiple,
        "batch.shard_cost": spec.batch.shard_cost,
        "work.sync_every": spec.work.sync_every,
        "report.bootstrap": spec.report.bootstrap,
        "max_length": spec.max_length,
    }
    for task in spec.tasks:
        if isinstance(task, LmEvalTask):
            _check_lm_eval(task, need)
            continue
        minimum_one[f"{task.name}.limit"] = task.limit
        if isinstance(task, PerplexityTask):
            minimum_one[f"{task.name}.window"] = task.window
            minimum_one[f"{task.name}.stride"] = task.stride
            if task.stride is not None and task.window is not None:
                need(
                    task.stride <= task.window,
                    f"{task.name}: stride {task.stride} is larger than window {task.window}",
                )
        else:
            need(task.num_fewshot >= 0, f"'{task.name}.num_fewshot' must be 0 or more")
    for name, value in minimum_one.items():
        need(value is None or value >= 1, f"'{name}' must be 1 or more, not {value}")
    not_negative = {
        "audit.micro_batches": spec.audit.micro_batches,
        "precision.max_flips": spec.precision.max_flips,
        "precision.reference_memory": spec.precision.reference_memory,
        "report.worst_samples": spec.report.worst_samples,
    }
    for name, value in not_negative.items():
        need(value is None or value >= 0, f"'{name}' must be 0 or more, not {value}")
    need(spec.precision.tolerance > 0, "'precision.tolerance' must be above 0")
    need(0 < spec.precision.confidence < 1, "'precision.confidence' must lie between 0 and 1")
    for name, seconds in (
        ("work.stall_timeout", spec.work.stall_timeout),
        ("work.progress_interval", spec.work.progress_interval),
    ):
        need(0 < seconds <= _LONGEST_WAIT, f"'{name}' must lie between 0 and {_LONGEST_WAIT:.0f} seconds")


def _check_lm_eval(task: LmEvalTask, need: Callable[[bool, str], None]) -> None:
    where = f"task '{task.lm_eval}'"
    need(not task.name, f"{where}: its name is the harness's; leave 'name' out")
    need((task.num_fewshot or 0) >= 0, f"{where}: 'num_fewshot' must be 0 or more")
    limit = task.limit
    need(
        limit is None or 0 < limit < 1 or (limit >= 1 and limit.is_integer()),
        f"{where}: 'limit' must be a part below 1 or a whole number of documents, not {limit}",
    )
    need(limit is None or task.samples is None, f"{where}: give 'limit' or 'samples', not both")
    need(all(i >= 0 for i in task.samples or ()), f"{where}: 'samples' are indices from 0")
    need(
        not task.fewshot_as_multiturn or bool(task.apply_chat_template),
        f"{where}: 'fewshot_as_multiturn' makes turns of a conversation; give 'apply_chat_template' too",
    )
    way = task.gen_kwargs
    need(way.max_gen_toks is None or way.max_gen_toks >= 1, f"{where}: 'gen_kwargs.max_gen_toks' must be 1 or more")
    need(way.temperature is None or way.temperature >= 0, f"{where}: 'gen_kwargs.temperature' must be 0 or more")
    need(way.top_k is None or way.top_k >= 0, f"{where}: 'gen_kwargs.top_k' must be 0 or more")
    need(way.top_p is None or 0 < way.top_p <= 1, f"{where}: 'gen_kwargs.top_p' must be above 0 and at most 1")


def example_spec() -> str:
    """A spec to start from: every key with its default and its meaning, as YAML."""
    lines = ["# Every key of a spec, with its default. Those without one must be given.", ""]
    for f in fields(EvalSpec):
        if f.name == "tasks":
            lines += ["tasks:", *(line for cls in TASK_TYPES.values() for line in _task_lines(cls))]
            continue
        lines += _key_lines_of(f, get_type_hints(EvalSpec)[f.name], "")
    return "\n".join(lines) + "\n"


def _task_lines(cls: type) -> list[str]:
    kind = next(name for name, known in TASK_TYPES.items() if known is cls)
    return [f"  # {cls.__doc__}", f"  - type: {kind}", *_key_lines(cls, "    ")]


def _key_lines(cls: type, indent: str) -> list[str]:
    hints = get_type_hints(cls)
    return [line for f in fields(cls) if f.name != "type" for line in _key_lines_of(f, hints[f.name], indent)]


def _key_lines_of(f: Field[Any], hint: Any, indent: str) -> list[str]:
    """A key with its default and its meaning; a section with its keys."""
    if is_dataclass(hint):
        return [f"{indent}{f.name}:  # {f.metadata['doc']}", *_key_lines(hint, indent + "  ")]  # type: ignore[arg-type]
    shown = "..." if required(f) else json.dumps(f.default)
    return [f"{indent}{f.name}: {shown}  # {f.metadata['doc']}"]
