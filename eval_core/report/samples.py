"""What each example scored: the columns behind samples/TASK.jsonl and the worst and longest in the report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eval_core.exact import segment_sums
from eval_core.metrics.score import Scores, choose_answers
from eval_core.metrics.states import CHOICE_METRICS
from eval_core.plan.types import Int64, Plan, offsets_of
from eval_core.report.results import task_rows
from eval_core.report.text import encode_json, json_float

Float64 = npt.NDArray[np.float64]

_ENCODER = json.JSONEncoder(allow_nan=False)


@dataclass(frozen=True, kw_only=True)
class DocumentScores:
    """A perplexity task, one entry per document, in document order.

    Attributes:
        rows: of the plan's example table.
        log_likelihood: float64[n], in nats, each rounded once.
        tokens: int64[n], tokens scored.
    """

    rows: range
    log_likelihood: Float64
    tokens: Int64

    def bits_per_byte(self, plan: Plan) -> Float64:
        """float64[n]: -log_likelihood / bytes / ln 2; NaN where a document has no bytes."""
        size = plan.examples.bytes[self.rows.start : self.rows.stop]
        bits: Float64 = -self.log_likelihood / np.where(size > 0, size, np.nan) / math.log(2)
        return bits


@dataclass(frozen=True, kw_only=True)
class ChoiceScores:
    """A multiple-choice task, one entry per question, in document order.

    Attributes:
        rows: of the plan's example table.
        offsets: int64[n + 1], where each question's answers begin.
        log_likelihoods: float64[answers of all questions], in nats.
        chosen: metric -> int64[n], the answer chosen; -1 where a log-likelihood is not finite.
        gold: int64[n], the right answer.
        tokens: int64[n], tokens of the longest request: prompt and answer.
    """

    rows: range
    offsets: Int64
    log_likelihoods: Float64
    chosen: Mapping[str, Int64]
    gold: Int64
    tokens: Int64

    def of(self, example: int) -> Float64:
        """The log-likelihoods of one question's answers."""
        return self.log_likelihoods[self.offsets[example] : self.offsets[example + 1]]

    def regret(self) -> Float64:
        """float64[n]: how far, in nats, the best answer lies above the right one; 0 where that is the best."""
        if not len(self.rows):
            return np.zeros(0)
        best = np.maximum.reduceat(self.log_likelihoods, self.offsets[:-1])
        with np.errstate(invalid="ignore"):
            regret: Float64 = best - self.log_likelihoods[self.offsets[:-1] + self.gold]
        return regret


@dataclass(frozen=True, kw_only=True)
class RequestScores:
    """A task of the harness, one entry per document, in document order.

    Attributes:
        rows: of the plan's example table.
        offsets: int64[n + 1], where each document's requests begin.
        log_likelihoods: float64[requests of all documents], in nats; 0 of a prompt.
        texts: of each request, what was written on from it; None where its tokens were scored.
        tokens: int64[n], tokens of the longest request: what it is given and what is scored.
    """

    rows: range
    offsets: Int64
    log_likelihoods: Float64
    texts: Sequence[str | None]
    tokens: Int64

    def of(self, example: int) -> Float64:
        """The log-likelihoods of one document's requests."""
        return self.log_likelihoods[self.offsets[example] : self.offsets[example + 1]]

    def texts_of(self, example: int) -> list[str]:
        """The texts that were written on from one document's prompts."""
        return [t for t in self.texts[self.offsets[example] : self.offsets[example + 1]] if t is not None]


TaskScores = DocumentScores | ChoiceScores | RequestScores


def score_examples(plan: Plan, scores: Scores) -> list[TaskScores]:
    """The examples' own results, one entry per task of the spec; `scores` must hold all requests."""
    of_type: Mapping[str, Callable[[Plan, Scores, int], TaskScores]] = {
        "perplexity": _documents,
        "multiple_choice": _questions,
        "lm_eval": _requests,
    }
    return [of_type[task.type](plan, scores, number) for number, task in enumerate(plan.spec.tasks)]


def sample_lines(plan: Plan, scored: DocumentScores | ChoiceScores) -> Iterator[bytes]:
    """The lines of samples/TASK.jsonl, in document order, each with its newline."""
    rest = _document_fields(plan, scored) if isinstance(scored, DocumentScores) else _question_fields(plan, scored)
    table = plan.examples
    for index, (row, fields) in enumerate(zip(scored.rows, rest, strict=True)):
        shared = {
            "truncated": int(table.truncated[row]),
            "rejoined": int(table.rejoined[row]),
            "seed": int(table.seed[row]),
        }
        texts = (table.documents[row], encode_json(table.prompts[row]).decode(), table.targets[row])
        values = _ENCODER.encode(fields | shared)
        line = f'{{"index": {index}, "doc": {texts[0]}, "prompt": {texts[1]}, "targets": {texts[2]}, {values[1:]}\n'
        try:
            yield line.encode()
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can carry
            yield json.dumps(json.loads(line)).encode() + b"\n"


def _items(plan: Plan, rows: range) -> Int64:
    first, last = np.searchsorted(plan.items.example, [rows.start, rows.stop])
    return np.arange(first, last, dtype=np.int64)


def _documents(plan: Plan, scores: Scores, number: int) -> DocumentScores:
    rows = task_rows(plan, number)
    items = _items(plan, rows)
    requests = plan.items.link_request[plan.items.link_offsets[items]]
    row = plan.items.example[items] - rows.start
    tokens = np.bincount(row, weights=plan.requests.n_scored[requests], minlength=len(rows)).astype(np.int64)
    offsets = offsets_of(tokens)
    return DocumentScores(rows=rows, log_likelihood=-segment_sums(scores.tokens_of(requests), offsets), tokens=tokens)


def _requests(plan: Plan, scores: Scores, number: int) -> RequestScores:
    rows = task_rows(plan, number)
    edges = np.searchsorted(plan.items.example, np.arange(rows.start, rows.stop + 1))
    bounds = plan.items.link_offsets[edges]
    requests = plan.items.link_request[bounds[0] : bounds[-1]]
    offsets = (bounds - bounds[0]).astype(np.int64)
    return RequestScores(
        rows=rows,
        offsets=offsets,
        log_likelihoods=scores.log_likelihoods(requests),
        texts=[scores.generated[r].text if r in scores.generated else None for r in requests.tolist()],
        tokens=np.maximum.reduceat(np.diff(plan.requests.offsets)[requests], offsets[:-1]),
    )


def _questions(plan: Plan, scores: Scores, number: int) -> ChoiceScores:
    rows = task_rows(plan, number)
    items = _items(plan, rows)
    table = plan.items
    bounds = table.link_offsets[items[0] : items[-1] + 2] if len(items) else np.zeros(1, dtype=np.int64)
    offsets = bounds - bounds[0]
    values = np.empty(int(offsets[-1]), dtype=np.float64)
    chosen = {metric: np.full(len(rows), -1, dtype=np.int64) for metric in CHOICE_METRICS}
    for answers in choose_answers(plan, items, scores):
        where = table.example[answers.items] - rows.start
        width = answers.scores["acc"].shape[1]
        values[offsets[where][:, None] + np.arange(width)] = answers.scores["acc"]
        for metric in CHOICE_METRICS:
            chosen[metric][where] = answers.chosen[metric]
    lengths = np.diff(plan.requests.offsets)[table.link_request[bounds[0] : bounds[-1]]]
    return ChoiceScores(
        rows=rows,
        offsets=offsets,
        log_likelihoods=values,
        chosen=chosen,
        gold=plan.examples.gold[rows.start : rows.stop].astype(np.int64),
        tokens=np.maximum.reduceat(lengths, offsets[:-1]) if len(items) else np.zeros(0, dtype=np.int64),
    )


def _document_fields(plan: Plan, scored: DocumentScores) -> Iterator[dict[str, object]]:
    bits = scored.bits_per_byte(plan)
    for i, row in enumerate(scored.rows):
        yield {
            "log_likelihood": json_float(float(scored.log_likelihood[i])),
            "tokens": int(scored.tokens[i]),
            "words": int(plan.examples.words[row]),
            "bytes": int(plan.examples.bytes[row]),
            "bits_per_byte": json_float(float(bits[i])),
        }


def _question_fields(plan: Plan, scored: ChoiceScores) -> Iterator[dict[str, object]]:
    chosen = {metric: column.tolist() for metric, column in scored.chosen.items()}
    gold = scored.gold.tolist()
    for i in range(len(scored.rows)):
        picks = {metric: column[i] for metric, column in chosen.items()}
        yield {
            "gold": gold[i],
            "log_likelihoods": [json_float(value) for value in scored.of(i).tolist()],
            "chosen": {metric: pick if pick >= 0 else None for metric, pick in picks.items()},
            "correct": {metric: pick == gold[i] for metric, pick in picks.items()},
        }
