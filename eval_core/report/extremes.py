"""The worst and the longest examples of each task, ready to be looked at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval_core.plan.types import Int64, Plan
from eval_core.report.samples import ChoiceScores, DocumentScores, Float64, RequestScores, TaskScores
from eval_core.report.text import count, cut, number


@dataclass(frozen=True, kw_only=True)
class AnswerView:
    """One answer of a question: its text, its log-likelihood in nats, whether it is right, whether acc chose it."""

    text: str
    log_likelihood: str
    gold: bool
    chosen: bool


@dataclass(frozen=True, kw_only=True)
class SampleView:
    """An example as the report shows it: texts cut, numbers formatted, nothing escaped.

    Attributes:
        index: in its task, from 0.
        facts: (what, how much).
        text: the document, or the prompt.
        answers: of a question.
    """

    index: int
    facts: tuple[tuple[str, str], ...]
    text: str
    answers: tuple[AnswerView, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SampleGroup:
    """Some examples of a task, and by what they were chosen."""

    task: str
    title: str
    samples: tuple[SampleView, ...]


def choose_extremes(plan: Plan, scored: Sequence[TaskScores]) -> list[SampleGroup]:
    """Per task, `report.worst_samples` of the worst and of the longest examples; ties in document order.

    The worst document is the one with the most bits per byte; the worst question the wrong one whose right answer
    lies furthest below the best. What is not finite comes first. What is bad in a task of the harness only its own metrics
    know: of those the longest are shown.
    """
    n = plan.spec.report.worst_samples
    groups = []
    for task, scores in zip(plan.spec.tasks, scored, strict=True):
        if isinstance(scores, DocumentScores):
            bits = scores.bits_per_byte(plan)
            worst, longest = _first(bits, n), _first(scores.tokens, n)
            views = {i: _document(plan, scores, bits, i) for i in {*worst, *longest}}
            title = "most bits per byte"
        elif isinstance(scores, RequestScores):
            worst, longest, title = [], _first(scores.tokens, n), ""
            views = {i: _asked(plan, scores, i) for i in longest}
        else:
            regret = scores.regret()
            wrong = np.flatnonzero(scores.chosen["acc"] != scores.gold)
            worst, longest = wrong[_first(regret[wrong], n)].tolist(), _first(scores.tokens, n)
            views = {i: _question(plan, scores, regret, i) for i in {*worst, *longest}}
            title = "wrong, and most sure of it"
        for what, indices in ((f"worst: {title}", worst), ("longest", longest)):
            if indices:
                groups.append(SampleGroup(task=task.name, title=what, samples=tuple(views[i] for i in indices)))
    return groups


def _first(key: Float64 | Int64, n: int) -> list[int]:
    """Indices of the `n` largest of `key`, what is not finite before all, ties in order."""
    values = key.astype(np.float64)
    order = np.lexsort((np.arange(len(values)), -np.where(np.isfinite(values), values, np.inf)))
    chosen: list[int] = order[:n].tolist()
    return chosen


def _document(plan: Plan, scores: DocumentScores, bits: Float64, i: int) -> SampleView:
    row = scores.rows[i]
    facts = (
        ("bits per byte", number(float(bits[i]))),
        ("log-likelihood", f"{number(float(scores.log_likelihood[i]))} nats"),
        ("tokens scored", count(int(scores.tokens[i]))),
        ("bytes", count(int(plan.examples.bytes[row]))),
    )
    (text,) = json.loads(plan.examples.targets[row])
    return SampleView(index=i, facts=facts, text=cut(text))


def _asked(plan: Plan, scores: RequestScores, i: int) -> SampleView:
    row = scores.rows[i]
    facts = (("tokens", count(int(scores.tokens[i]))), ("truncated", count(int(plan.examples.truncated[row]))))
    arguments = json.loads(plan.examples.targets[row])
    if len(arguments) == 1 and len(arguments[0]) == 1:
        total = number(float(scores.of(i).sum()))
        return SampleView(index=i, facts=(*facts, ("log-likelihood", f"{total} nats")), text=cut(arguments[0][0]))
    if texts := scores.texts_of(i):
        written = tuple(AnswerView(text=cut(text), log_likelihood="", gold=False, chosen=False) for text in texts)
        return SampleView(index=i, facts=facts, text=cut(plan.examples.prompts[row]), answers=written)
    values = scores.of(i).tolist()
    answers = [
        AnswerView(text=cut(given[1]), log_likelihood=number(value), gold=False, chosen=value == max(values))
        for given, value in zip(arguments, values, strict=True)
    ]
    return SampleView(index=i, facts=facts, text=cut(plan.examples.prompts[row]), answers=tuple(answers))


def _question(plan: Plan, scores: ChoiceScores, regret: Float64, i: int) -> SampleView:
    row = scores.rows[i]
    chosen, gold = int(scores.chosen["acc"][i]), int(scores.gold[i])
    facts = [("tokens", count(int(scores.tokens[i]))), ("truncated", count(int(plan.examples.truncated[row])))]
    if chosen != gold:
        facts.insert(0, ("right answer below the best by", f"{number(float(regret[i]))} nats"))
    answers = [
        AnswerView(text=cut(text), log_likelihood=number(value), gold=k == gold, chosen=k == chosen)
        for k, (text, value) in enumerate(
            zip(json.loads(plan.examples.targets[row]), scores.of(i).tolist(), strict=True)
        )
    ]
    return SampleView(index=i, facts=tuple(facts), text=cut(plan.examples.prompts[row]), answers=tuple(answers))
