"""results.json: the layout of lm-evaluation-harness 0.4.13, so that its readers read it, and a block of our own.

Nothing in it depends on times, hosts, ranks or the number of processes: two runs whose numbers are equal to the
bit have equal files, byte for byte. What does depend on them stands in provenance.json. Where shards were taken over from other
runs, a block says how much and from where.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eval_core import __version__
from eval_core.canonical import digest_strings
from eval_core.metrics.states import ChoiceState, Metric
from eval_core.plan.types import Plan
from eval_core.reduce import Reduction
from eval_core.report.headline import n_shot
from eval_core.report.reused import Reused, reused_json
from eval_core.report.text import json_float, plain
from eval_core.spec import GenKwargs, LmEvalTask, MultipleChoiceTask, PerplexityTask, to_plain
from eval_core.verify.types import Verification

RESULTS_FORMAT = 1
"""Of the block "concord"."""

_HARNESS_NAMES: Mapping[str, str] = {"word_ppl": "word_perplexity", "byte_ppl": "byte_perplexity"}
"""Names that the harness gives to the same numbers; bits_per_byte, acc, acc_norm and acc_bytes are called so there."""

_NO_STDERR = "N/A"
"""How the harness writes a standard error that doesn't exist."""


def results_json(
    plan: Plan, reduction: Reduction, verification: Verification, reused: Sequence[Reused] = ()
) -> dict[str, Any]:
    """The content of results.json, JSON-able (NaN and infinities as text)."""
    tasks = plan.spec.tasks
    counts = {task.name: task_counts(plan, number, reduction) for number, task in enumerate(tasks)}
    own = [task for task in tasks if not isinstance(task, LmEvalTask)]
    return {
        **_harness_tables(own, plan, reduction, counts),
        "config": _run_config(plan),
        "git_hash": None,
        "task_hashes": {task.name: _task_hash(plan, number) for number, task in enumerate(tasks)},
        "model_source": "concord",
        "model_name": plan.spec.model,
        "model_name_sanitized": _sanitized(plan.spec.model),
        "system_instruction": _said_by_all(tasks, "system_instruction", None),
        "system_instruction_sha": None,
        "fewshot_as_multiturn": _said_by_all(tasks, "fewshot_as_multiturn", False),
        "chat_template": None,
        "chat_template_sha": None,
        "max_length": plan.model["max_length"],
        "concord": {
            "format": RESULTS_FORMAT,
            "version": __version__,
            "verdict": verification.verdict,
            "checks": {check.name: check.status for check in verification.checks},
            "plan": plan.digest,
            "reduction": reduction.digest,
            "requests": {
                "requested": plan.n_requested,
                "computed": len(plan.requests),
                "duplicates_removed": plan.n_requested - len(plan.requests),
            },
            **reused_json(reused),
            "tasks": {
                task.name: {
                    "metrics": {name: _exact(m) for name, m in reduction.metrics[task.name].items()},
                    "counts": counts[task.name],
                }
                for task in tasks
            },
            "groups": {
                name: {metric: _exact(m) for metric, m in metrics.items()}
                for name, metrics in reduction.metrics.items()
                if name not in counts
            },
            "model": dict(plan.model),
            "tokenizer": plan.tokenizer,
            "spec": to_plain(plan.spec),
        },
    }


def _harness_tables(
    own: list[PerplexityTask | MultipleChoiceTask],
    plan: Plan,
    reduction: Reduction,
    counts: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    """The tables that the harness writes: those of its own tasks as it made them, and ours in the same form."""
    names = sorted(task.name for task in own)
    by_name = {task.name: task for task in own}
    ours: dict[str, Any] = {
        "results": {
            task.name: _harness_metrics(task.name, counts[task.name]["examples"], reduction.metrics[task.name])
            for task in own
        },
        "group_subtasks": {name: [] for name in names},
        "configs": {name: _harness_config(by_name[name], plan) for name in names},
        "versions": dict.fromkeys(names, "N/A"),
        "n-shot": {name: n_shot(by_name[name]) for name in names},
        "higher_is_better": {name: _directions(reduction.metrics[name]) for name in names},
        "n-samples": {
            task.name: {
                "original": _original(task, counts[task.name]["examples"]),
                "effective": counts[task.name]["examples"],
            }
            for task in own
        },
    }
    theirs = {table: plain(content) for table, content in reduction.harness.items()}
    return {
        table: ours.get(table, {}) | theirs.get(table, {}) for table in [*ours, *(t for t in theirs if t not in ours)]
    }


def _said_by_all(tasks: tuple[Any, ...], name: str, otherwise: Any) -> Any:
    """What all tasks of the harness say of `name`; `otherwise` where they differ or there is none."""
    said = {getattr(task, name) for task in tasks if isinstance(task, LmEvalTask)}
    return said.pop() if len(said) == 1 else otherwise


def task_counts(plan: Plan, number: int, reduction: Reduction) -> dict[str, int]:
    """What stands behind the numbers of a task.

    Returns:
        examples; tokens_scored (duplicates counted as often as they are asked for); truncated: examples that lost
        tokens on the left; rejoined: answers encoded by themselves; nonfinite: questions (multiple choice) or tokens
        (all others) whose log-likelihood is NaN or infinite.
    """
    rows = task_rows(plan, number)
    state = reduction.states[plan.spec.tasks[number].name]
    first, last = np.searchsorted(plan.items.example, [rows.start, rows.stop])
    links = slice(int(plan.items.link_offsets[first]), int(plan.items.link_offsets[last]))
    return {
        "examples": len(rows),
        "tokens_scored": int(plan.requests.n_scored[plan.items.link_request[links]].sum(dtype=np.int64)),
        "truncated": int(np.count_nonzero(plan.examples.truncated[rows.start : rows.stop])),
        "rejoined": int(plan.examples.rejoined[rows.start : rows.stop].sum(dtype=np.int64)),
        "nonfinite": state.nonfinite if isinstance(state, ChoiceState) else state.nll.nonfinite,
    }


def task_rows(plan: Plan, number: int) -> range:
    """The rows of a task in the example table (tasks stand there one after the other)."""
    first, last = np.searchsorted(plan.examples.task, [number, number + 1])
    return range(int(first), int(last))


def _harness_metrics(task: str, examples: int, metrics: Mapping[str, Metric]) -> dict[str, Any]:
    written: dict[str, Any] = {"name": task, "alias": task, "sample_len": examples}
    for ours, metric in metrics.items():
        for name in (ours, _HARNESS_NAMES.get(ours)):
            if name:
                error = json_float(metric.stderr)
                written[f"{name},none"] = json_float(metric.value)
                written[f"{name}_stderr,none"] = _NO_STDERR if isinstance(error, str) else error
    return written


def _directions(metrics: Mapping[str, Metric]) -> dict[str, bool]:
    return {
        name: bool(metric.higher_is_better)
        for ours, metric in metrics.items()
        for name in (ours, _HARNESS_NAMES.get(ours))
        if name
    }


def _harness_config(task: PerplexityTask | MultipleChoiceTask, plan: Plan) -> dict[str, Any]:
    choice = isinstance(task, MultipleChoiceTask)
    shared = {
        "task": task.name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": task.data},
        "output_type": "multiple_choice" if choice else "loglikelihood_rolling",
        "num_fewshot": n_shot(task),
        "repeats": 1,
        "metadata": {"max_length": plan.model["max_length"]},
    }
    if isinstance(task, MultipleChoiceTask):
        shared |= {
            "doc_to_text": task.prompt,
            "doc_to_choice": task.choices,
            "doc_to_target": task.answer,
            "target_delimiter": task.delimiter,
            "fewshot_delimiter": task.fewshot_separator,
        }
    else:
        shared |= {"doc_to_text": "", "doc_to_target": task.text}
    return shared | {"concord": to_plain(task)}


def _run_config(plan: Plan) -> dict[str, Any]:
    spec = plan.spec
    limits = {task.limit for task in spec.tasks}
    return {
        "model": "concord",
        "model_args": {"pretrained": spec.model, "revision": spec.revision, "dtype": spec.compute.dtype},
        "model_num_parameters": plan.model["total_parameters"],
        "model_dtype": spec.compute.dtype,
        "model_revision": spec.revision,
        "batch_size": f"{spec.batch.tokens} tokens",
        "batch_sizes": [],
        "device": spec.compute.device,
        "use_cache": None,
        "limit": limits.pop() if len(limits) == 1 else None,
        "bootstrap_iters": spec.report.bootstrap,
        "gen_kwargs": _gen_kwargs(spec.tasks),
        "random_seed": spec.seed,
        "numpy_seed": spec.seed,
        "torch_seed": spec.seed,
        "fewshot_seed": spec.seed,
    }


def _gen_kwargs(tasks: tuple[Any, ...]) -> dict[str, Any] | None:
    way = _said_by_all(tasks, "gen_kwargs", GenKwargs())
    return {name: value for name, value in to_plain(way).items() if value is not None} or None


def _original(task: PerplexityTask | MultipleChoiceTask, examples: int) -> int | None:
    """Documents in the file, as far as the plan knows it: None where the limit was reached."""
    return examples if task.limit is None or examples < task.limit else None


def _task_hash(plan: Plan, number: int) -> str:
    rows = task_rows(plan, number)
    table = plan.examples
    return digest_strings(column[row] for column in (table.documents, table.prompts, table.targets) for row in rows)


def _exact(metric: Metric) -> dict[str, Any]:
    return {
        "value": json_float(metric.value),
        "hex": metric.value.hex(),
        "stderr": json_float(metric.stderr),
        "stderr_hex": metric.stderr.hex(),
        "n": metric.n,
        "higher_is_better": metric.higher_is_better,
    }


def _sanitized(name: str) -> str:
    """As the harness names folders."""
    return re.sub(r'["<>:/|\\?*\[\]]+', "__", name)
