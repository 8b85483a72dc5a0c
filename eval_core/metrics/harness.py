"""From the scored tokens to the harness's own metrics: its filters, its scoring, its aggregation, in document order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval_core.canonical import canonical_text
from eval_core.errors import ConcordError, DataError, first_line
from eval_core.metrics.score import Scores
from eval_core.metrics.states import Metric
from eval_core.metrics.uncertainty import seeded_generator
from eval_core.plan.types import Plan
from eval_core.spec import LmEvalTask
from eval_core.tasks.harness.build import document_range, plain_document
from eval_core.tasks.harness.registry import Harness, harness_quiet

_FEW_RESAMPLES = 100
_SLOW = ("bleu", "chrf", "chrf++", "ter")
"""Metrics of which the harness takes 100 resamples only."""


@dataclass(frozen=True, kw_only=True)
class HarnessResults:
    """What the harness's code made of the answers.

    Attributes:
        metrics: task or group -> "metric,filter" -> number.
        samples: task -> JSON lines, one for each document and filter, as the harness logs them.
        block: the harness's tables beside the numbers: alias, configs, versions, n-shot, higher_is_better, n-samples,
            group_subtasks, groups.
    """

    metrics: Mapping[str, Mapping[str, Metric]]
    samples: Mapping[str, bytes]
    block: Mapping[str, Any]


def score_harness(plan: Plan, harness: Harness, scores: Scores) -> HarnessResults:
    """Score every task of the harness in `plan`.

    Raises:
        DataError: a task's documents are no longer those that were planned.
        ConcordError: a filter or metric of a task fails; names the task and the document.
    """
    if not harness.tasks:
        return HarnessResults(metrics={}, samples={}, block={})
    from lm_eval.evaluator_utils import EvalAcc, aggregate_groups

    found = EvalAcc(groups=dict(harness.groups))
    metrics: dict[str, dict[str, Metric]] = {}
    samples: dict[str, bytes] = {}
    with harness_quiet():
        for number, entry in enumerate(plan.spec.tasks):
            if not isinstance(entry, LmEvalTask):
                continue
            task = harness.tasks[entry.name]
            instances = _answered(plan, number, entry, task, scores)
            raw, samples[entry.name] = _process(entry, task, instances)
            _add_task(found, entry.name, task, raw)
            metrics[entry.name] = _aggregate(plan, entry, task, raw, found)
        aggregate_groups(found)
    for name, group in harness.groups.items():
        metrics[name] = _group_metrics(found.metrics[name], group)
    block = found._to_eval_results()
    return HarnessResults(metrics=metrics, samples=samples, block=json.loads(json.dumps(block, default=str)))


def _answered(plan: Plan, number: int, entry: LmEvalTask, task: Any, scores: Scores) -> list[list[Any]]:
    """The instances of each document, in document order, with their responses."""
    from lm_eval.api.instance import Instance

    first, last = np.searchsorted(plan.examples.task, [number, number + 1])
    items = np.searchsorted(plan.items.example, np.arange(first, last + 1))
    links = plan.items.link_offsets[items]
    documents = list(task.doc_iterator(rank=0, world_size=1, **document_range(entry, task)))
    if len(documents) != last - first:
        raise _changed(entry, f"{len(documents)} documents now, {last - first} then")
    repeats = task.get_config("repeats") or 1
    answered = []
    for row, (doc_id, document) in enumerate(documents):
        example = int(first) + row
        if canonical_text(plain_document(document)) != plan.examples.documents[example]:
            raise _changed(entry, f"document {doc_id} differs")
        requests = plan.items.link_request[links[row] : links[row + 1]].tolist()
        asked = [tuple(arguments) for arguments in json.loads(plan.examples.targets[example])]
        responses = _responses(asked, requests, repeats, scores)
        answered.append(
            [
                Instance(
                    request_type=kind,
                    doc=document,
                    arguments=arguments,
                    idx=i,
                    metadata=(entry.name, doc_id, repeats),
                    resps=answers,
                )
                for i, (arguments, (kind, answers)) in enumerate(zip(asked, responses, strict=True))
            ]
        )
    return answered


def _responses(
    asked: list[tuple[Any, ...]], requests: list[int], repeats: int, scores: Scores
) -> Iterator[tuple[str, list[Any]]]:
    """(kind, as many answers as `repeats`) of each request of a document.

    An answer is a text, a log-likelihood in nats with whether its continuation is what greedy decoding gives, or, where
    a document is rolled over, the sum of its windows.
    """
    if len(asked) == 1 and len(asked[0]) == 1:
        yield "loglikelihood_rolling", [scores.total_log_likelihood(requests)] * repeats
        return
    left = iter(requests)
    for arguments in asked:
        if isinstance(arguments[1], str):
            r = next(left)
            yield "loglikelihood", [(scores.log_likelihood(r), bool(scores.greedy[r - scores.first]))] * repeats
        else:
            yield "generate_until", [scores.generated[next(left)].text for _ in range(repeats)]


def _changed(entry: LmEvalTask, how: str) -> DataError:
    return DataError(
        f"task '{entry.name}': its documents are not those that were planned ({how}); give back the data and the harness's version of "
        "the plan, or start a new run"
    )


def _process(entry: LmEvalTask, task: Any, answered: list[list[Any]]) -> tuple[dict[tuple[str, str], list[Any]], bytes]:
    """((metric, filter) -> a value for each document, the samples as the harness logs them)."""
    task._instances = [instance for group in answered for instance in group]
    try:
        task.apply_filters()
    except Exception as error:  # a filter is anybody's code
        raise _failed(entry, _guilty(task, answered), error) from error
    raw: dict[tuple[str, str], list[Any]] = {}
    samples = bytearray()
    for name in task.instances[0].filtered_resps:
        for group in answered:
            filtered = [instance.filtered_resps[name] for instance in group]
            try:
                values = task.process_results(group[0].doc, filtered)
            except Exception as error:  # so is a metric
                raise _failed(entry, group[0].doc_id, error) from error
            for metric, value in values.items():
                raw.setdefault((metric, name), []).append(value)
            samples += _sample(entry, task, group, name, filtered, values)
    return raw, bytes(samples)


def _guilty(task: Any, answered: list[list[Any]]) -> int | None:
    """The document that a filter fails on, if it fails on one alone."""
    for group in answered:
        try:
            for ensemble in task._filters:
                ensemble.apply(group)
        except Exception:
            doc_id: int = group[0].doc_id
            return doc_id
    return None


def _failed(entry: LmEvalTask, doc_id: int | None, error: Exception) -> ConcordError:
    where = "" if doc_id is None else f", document {doc_id}"
    return ConcordError(
        f"task '{entry.name}'{where}: its own scoring fails: {type(error).__name__}: {first_line(error)}. The answers are kept: mend the "
        "task, then `concord rescore` scores them, without the model"
    )


def _sample(
    entry: LmEvalTask, task: Any, group: list[Any], name: str, filtered: list[Any], values: Mapping[str, Any]
) -> bytes:
    """One line, with the keys that the harness writes."""
    from lm_eval.utils import handle_non_serializable, hash_string

    target = task.doc_to_target(group[0].doc)
    document = json.dumps(group[0].doc, indent=2, default=handle_non_serializable, ensure_ascii=False)
    record = {
        "doc_id": group[0].doc_id if entry.samples is None else sorted(entry.samples)[group[0].doc_id],
        "doc": plain_document(group[0].doc),
        "target": plain_document(target),
        "arguments": [list(instance.args) for instance in group],
        "resps": [instance.resps for instance in group],
        "filtered_resps": filtered,
        "filter": name,
        "metrics": list(values),
        "doc_hash": hash_string(document),
        "prompt_hash": hash_string(group[0].args[0]),
        "target_hash": hash_string(str(target)),
        **values,
    }
    line = json.dumps(record, default=handle_non_serializable, ensure_ascii=False) + "\n"
    return line.encode("utf-8", "backslashreplace")  # which makes a lone surrogate the escape that JSON has for it


def _add_task(found: Any, name: str, task: Any, raw: Mapping[tuple[str, str], list[Any]]) -> None:
    """What the harness's tables say of a task beside its numbers."""
    config = dict(task.dump_config())
    n = max(map(len, raw.values()))
    found.metrics[name] = {"name": name, "alias": config.get("task_alias", name), "sample_len": n}
    found.configs[name] = config
    found.versions[name] = task.VERSION
    found.num_fewshot[name] = config.get("num_fewshot", 0)
    found.higher_is_better[name] = task.higher_is_better()
    found.n_samples[name] = {"original": len(task.eval_docs), "effective": n}


def _aggregate(
    plan: Plan, entry: LmEvalTask, task: Any, raw: Mapping[tuple[str, str], list[Any]], found: Any
) -> dict[str, Metric]:
    from lm_eval.api.metrics import mean

    metrics = {}
    directions = task.higher_is_better()
    for (metric, name), values in raw.items():
        function = task.aggregation().get(metric, mean)
        try:
            value = function(values)
            error = _stderr(plan, metric, function, values)
        except Exception as error_:  # anybody's code again
            raise _failed(entry, None, error_) from error_
        found.metrics[entry.name][f"{metric},{name}"] = value
        found.metrics[entry.name][f"{metric}_stderr,{name}"] = "N/A" if math.isnan(error) else error
        metrics[f"{metric},{name}"] = Metric(
            value=float(value), stderr=error, n=len(values), higher_is_better=directions.get(metric)
        )
    return metrics


def _stderr(plan: Plan, metric: str, function: Any, values: list[Any]) -> float:
    """The harness's formula for a mean; for the rest a bootstrap, ours or its own. NaN below 2 documents."""
    from lm_eval.api.metrics import acc_all, mean, stderr_for_metric

    resamples = plan.spec.report.bootstrap
    if metric in _SLOW:
        resamples = min(resamples, _FEW_RESAMPLES)
    if len(values) < 2:
        return math.nan
    if plan.spec.report.stderr == "lm_eval" or function in (mean, acc_all):
        estimate = stderr_for_metric(metric=function, bootstrap_iters=resamples)
        return float(estimate(values)) if estimate else math.nan
    return float(np.std(list(_resampled(function, values, resamples, plan.spec.seed)), ddof=1))


def _resampled(function: Any, values: list[Any], resamples: int, seed: int) -> Iterator[float]:
    generator = seeded_generator(seed)
    for _ in range(resamples):
        yield float(function([values[i] for i in generator.integers(0, len(values), len(values)).tolist()]))


def _group_metrics(written: Mapping[str, Any], group: Any) -> dict[str, Metric]:
    """The numbers that the harness's own aggregation gave a group; none where it has no aggregation."""
    metrics = {}
    members = group.get_all_tasks()
    for key, value in written.items():
        metric, comma, filter_name = key.partition(",")
        if not comma or metric.endswith("_stderr"):
            continue
        error = written.get(f"{metric}_stderr,{filter_name}")
        directions = {d for t in members if (d := t.higher_is_better().get(metric)) is not None}
        metrics[key] = Metric(
            value=float(value),
            stderr=float(error) if isinstance(error, int | float) else math.nan,
            n=int(written.get("sample_len", 0) or 0),
            higher_is_better=directions.pop() if len(directions) == 1 else None,
        )
    return metrics
