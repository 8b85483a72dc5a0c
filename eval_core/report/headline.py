"""The numbers that a reader wants first, and the sentence that says whether to trust them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval_core.plan.types import Plan
from eval_core.reduce import Reduction
from eval_core.report.text import count, number, plural, relative, stderr
from eval_core.spec import MultipleChoiceTask, Task
from eval_core.verify.types import Check, Status, Verification

HIGHER_IS_BETTER: Mapping[str, bool] = {
    "acc": True,
    "acc_norm": True,
    "acc_bytes": True,
    "loss": False,
    "token_ppl": False,
    "word_ppl": False,
    "byte_ppl": False,
    "bits_per_byte": False,
}

_SHOWN: Mapping[str, tuple[str, ...]] = {
    "perplexity": ("token_ppl", "word_ppl", "bits_per_byte"),
    "multiple_choice": ("acc", "acc_norm"),
}
"""The others follow from these (byte_ppl is 2 ** bits_per_byte), or stand in the full tables."""

VERIFIED: Mapping[Status, str] = {"passed": "✓ yes", "failed": "✗ no", "undecided": "? undecided"}
_STYLES: Mapping[Status, str] = {"passed": "green", "failed": "bold red", "undecided": "yellow"}


@dataclass(frozen=True, kw_only=True)
class HeadlineRow:
    """A line of the headline table.

    Attributes:
        task, metric: their names.
        n_shot: solved examples in the prompt.
        higher_is_better: the metric's direction.
        value, stderr: the number (perplexities bare, bits_per_byte in bits) and its standard error, maybe NaN.
        n: documents or questions behind it.
        verified: the run's verdict.
    """

    task: str
    n_shot: int
    metric: str
    higher_is_better: bool
    value: float
    stderr: float
    n: int
    verified: Status

    @property
    def direction(self) -> str:
        """↑ where higher is better, else ↓."""
        return direction(self.metric)


def direction(metric: str) -> str:
    """↑ where higher is better, ↓ where lower is."""
    return "↑" if HIGHER_IS_BETTER[metric] else "↓"


def n_shot(task: Task) -> int:
    """Solved examples in the task's prompts."""
    return task.num_fewshot if isinstance(task, MultipleChoiceTask) else 0


def headline(plan: Plan, reduction: Reduction, verification: Verification) -> list[HeadlineRow]:
    """The headline numbers, in the spec's order of tasks."""
    return [
        HeadlineRow(
            task=task.name,
            n_shot=n_shot(task),
            metric=metric,
            higher_is_better=HIGHER_IS_BETTER[metric],
            value=reduction.metrics[task.name][metric].value,
            stderr=reduction.metrics[task.name][metric].stderr,
            n=reduction.metrics[task.name][metric].n,
            verified=verification.verdict,
        )
        for task in plan.spec.tasks
        for metric in _SHOWN[task.type]
    ]


def checks_with(verification: Verification, status: Status) -> list[Check]:
    """The checks that ended so, in their order."""
    return [check for check in verification.checks if check.status == status]


def verdict_sentence(verification: Verification) -> str:
    """Whether the numbers are proven, in words."""
    total = len(verification.checks)
    if failed := checks_with(verification, "failed"):
        return f"Failed: {len(failed)} of {plural(total, 'check')} failed ({_names(failed)}), so these numbers are not proven."
    if open_ := checks_with(verification, "undecided"):
        return f"Undecided: no check failed, but for {len(open_)} of {total} the evidence doesn't suffice ({_names(open_)})."
    return f"Verified: all {plural(total, 'check')} passed.{_precision(verification)}"


def print_headline(rows: Sequence[HeadlineRow], console: Console) -> None:
    """Show the headline table on a terminal."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task", overflow="fold")
    table.add_column("n-shot", justify="right")
    table.add_column("metric")
    table.add_column("")
    table.add_column("value", justify="right", style="bold")
    table.add_column("± stderr", justify="right")
    table.add_column("n", justify="right")
    table.add_column("verified")
    previous = ""
    for row in rows:
        table.add_row(
            Text(row.task if row.task != previous else ""),
            str(row.n_shot) if row.task != previous else "",
            row.metric,
            row.direction,
            number(row.value),
            stderr(row.stderr),
            count(row.n),
            Text(VERIFIED[row.verified], style=_STYLES[row.verified]),
        )
        previous = row.task
    console.print(table)


def _names(checks: Sequence[Check]) -> str:
    return ", ".join(check.name for check in checks)


def _precision(verification: Verification) -> str:
    error = verification.overall
    if error is None or verification.dtype == verification.reference_dtype:
        return ""
    return (
        f" {verification.dtype} differs from {verification.reference_dtype} by {relative(error.estimate)} of the summed "
        f"log-likelihood ({error.confidence:.0%} interval {relative(error.low)} to {relative(error.high)})."
    )
