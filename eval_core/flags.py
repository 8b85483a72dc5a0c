"""A spec from the command line's flags, which are those of lm-eval."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from eval_core.errors import SpecError
from eval_core.spec import Compute, EvalSpec, GenKwargs, LmEvalTask
from eval_core.spec_yaml import check_spec, one_of_dtypes, section_of_flag


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What was said on the command line; see `spec.LmEvalTask`."""

    model: str | None = None
    tasks: str | None = None
    num_fewshot: int | None = None
    limit: float | None = None
    samples: str | None = None
    include_path: str | None = None
    dtype: str = "auto"
    system_instruction: str | None = None
    apply_chat_template: str | None = None
    fewshot_as_multiturn: str | None = None
    gen_kwargs: tuple[str, ...] = ()
    confirm_run_unsafe_code: bool = False
    seed: int = 1234

    def refuse_beside_a_spec(self) -> None:
        """A spec says these things itself.

        Raises:
            SpecError: a flag was given.
        """
        given = [f.name for f in fields(self) if getattr(self, f.name) != f.default]
        if given:
            raise SpecError(f"--{given[0]} can't stand beside a spec; write it into the spec, or leave the spec out")


def spec_of_flags(flags: Flags) -> EvalSpec:
    """The spec that `flags` stand for; relative paths start at the working directory.

    Raises:
        SpecError: --model or --tasks is missing, or a flag makes no sense.
    """
    if flags.model is None or flags.tasks is None:
        raise SpecError("give a spec (`concord spec` prints one), or --model MODEL and --tasks TASK,TASK")
    names = [name.strip() for name in flags.tasks.split(",") if name.strip()]
    if not names:
        raise SpecError("--tasks names no task")
    samples = _samples(flags.samples, names)
    template = flags.apply_chat_template or False
    turns = None if flags.fewshot_as_multiturn is None else _truth(flags.fewshot_as_multiturn, "--fewshot_as_multiturn")
    way = _gen_kwargs(flags.gen_kwargs)
    spec = EvalSpec(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", f"{Path(flags.model).name}-{Path(names[0]).stem}").strip("-._") or "run",
        model=flags.model,
        seed=flags.seed,
        compute=Compute(dtype=one_of_dtypes(flags.dtype, "--dtype")),
        tasks=tuple(
            LmEvalTask(
                lm_eval=name,
                include_path=flags.include_path,
                num_fewshot=flags.num_fewshot,
                limit=flags.limit,
                samples=samples.get(name),
                system_instruction=flags.system_instruction,
                apply_chat_template=template == "true" or template,
                fewshot_as_multiturn=turns,
                gen_kwargs=way,
                confirm_run_unsafe_code=flags.confirm_run_unsafe_code,
            )
            for name in dict.fromkeys(names)
        ),
    )
    check_spec(spec, "the command line")
    return spec


def _samples(text: str | None, names: list[str]) -> dict[str, tuple[int, ...]]:
    if text is None:
        return {}
    try:
        given = json.loads(Path(text).read_text(encoding="utf-8") if Path(text).is_file() else text)
        samples = {str(task): tuple(int(i) for i in indices) for task, indices in given.items()}
    except (ValueError, TypeError, AttributeError, OSError) as error:
        raise SpecError(f'--samples must be JSON (or a file of it) as {{"task": [0, 3]}}: {error}') from error
    if unknown := [task for task in samples if task not in names]:
        raise SpecError(f"--samples names '{unknown[0]}', which --tasks doesn't")
    return samples


def _truth(text: str, flag: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise SpecError(f"{flag} must be true or false, not '{text}'")
    return known[text.lower()]


_ITEMS = re.compile(r"""(?:\[(?:"[^"]*"|'[^']*'|[^\]])*\]|"[^"]*"|'[^']*'|[^,])+""")
"""What stands between commas that are in no list and in no quotes."""


def _gen_kwargs(texts: tuple[str, ...]) -> GenKwargs:
    """What `key=value,key=value` says, or JSON; a value is a Python literal, or else text."""
    given: dict[str, Any] = {}
    for text in texts:
        if text.startswith("{"):
            try:
                given |= json.loads(text)
            except ValueError as error:
                raise SpecError(f"--gen_kwargs: not valid JSON: {error}") from error
            continue
        for item in _ITEMS.findall(text):
            name, equals, value = item.partition("=")
            if not equals:
                raise SpecError(f"--gen_kwargs: expected key=value, not '{item}'")
            given[name.strip()] = _literal(value)
    if isinstance(given.get("until"), str):
        given["until"] = [given["until"]]
    way: GenKwargs = section_of_flag(given, GenKwargs, "--gen_kwargs")
    return way


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
