"""A spec from the command line's flags, which are those of lm-eval."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path

from eval_core.errors import SpecError
from eval_core.spec import Compute, EvalSpec, LmEvalTask
from eval_core.spec_yaml import check_spec, one_of_dtypes


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
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool = False
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
                apply_chat_template=flags.apply_chat_template,
                fewshot_as_multiturn=flags.fewshot_as_multiturn,
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
