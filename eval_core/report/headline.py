"""The numbers that a reader wants first, and the sentence that says whether to trust them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from eval_core.metrics.states import Metric
from eval_core.plan.types import Plan
from eval_core.reduce import Reduction
from eval_core.report.text import count, number, plural, relative, stderr
from eval_core.spec import PerplexityTask, Task
from eval_core.verify.types import Check, Status, Verification

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
        higher_is_better: the metric's direction, where it has one.
        value, stderr: the number (perplexities bare, bits_per_byte in bits) and its standard error, maybe NaN.
        n: documents or questions behind it.
        verified: the run's verdict.
    """

    task: str
    n_shot: int
    metric: str
    higher_is_better: bool | None
    value: float
    stderr: float
    n: int
    verified: Status

    @property
    def direction(self) -> str:
        """↑ where higher is better, ↓ where lower is."""
        return direction(self.higher_is_better)


def direction(higher_is_better: bool | None) -> str:
    """↑, ↓, or nothing."""
    return {True: "↑", False: "↓", None: ""}[higher_is_better]


def n_shot(task: Task) -> int:
    """Solved examples in the task's prompts."""
    return 0 if isinstance(task, PerplexityTask) else task.num_fewshot or 0


def shown_metric(metric: str) -> str:
    """`acc` for the harness's `acc,none`; another filter stays."""
    return metric.removesuffix(",none")


def headline(plan: Plan, reduction: Reduction, verification: Verification) -> list[HeadlineRow]:
    """The headline numbers, in the spec's order of tasks, the harness's groups after them."""
    shots = {task.name: n_shot(task) for task in plan.spec.tasks}
    shown = {task.name: _SHOWN.get(task.type) for task in plan.spec.tasks}
    return [
        HeadlineRow(
            task=task,
            n_shot=shots[task] if task in shots else group_shots(reduction, task),
            metric=shown_metric(name),
            higher_is_better=metrics[name].higher_is_better,
            value=metrics[name].value,
            stderr=metrics[name].stderr,
            n=metrics[name].n,
            verified=verification.verdict,
        )
        for task, metrics in _in_order(shots, reduction).items()
        for name in shown.get(task) or metrics
    ]


def group_shots(reduction: Reduction, group: str) -> int:
    """Solved examples in the prompts of a group's tasks, as the harness says it."""
    said = reduction.harness["n-shot"].get(group, 0)
    return said if isinstance(said, int) else 0


def _in_order(tasks: Mapping[str, int], reduction: Reduction) -> dict[str, Mapping[str, Metric]]:
    names = [*tasks, *(name for name in reduction.metrics if name not in tasks)]
    return {name: reduction.metrics[name] for name in names}


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
    return f"Verified: all {plural(total, 'check')} passed.{_precision(verification)}{_modes(verification)}"


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


def _modes(verification: Verification) -> str:
    found = (precision.largest_mode_difference for precision in verification.precision.values())
    differences = [difference for difference in found if difference is not None]
    if not differences:
        return ""
    return f" Mode fast differs from mode reference by at most {max(differences):.1e} nats in a token."
