"""The headline numbers as an artifact of type Metrics, which the UI shows beside the step."""

from __future__ import annotations

import math

from components.outputs import Scalar
from eval_core.plan.types import Plan
from eval_core.reduce import Reduction
from eval_core.report.headline import checks_with, headline
from eval_core.verify.types import Verification


def headline_metrics(plan: Plan, reduction: Reduction, verification: Verification) -> dict[str, Scalar]:
    """The verdict, how many checks passed, the audited error, and the headline numbers with their standard errors."""
    passed = len(checks_with(verification, "passed"))
    metrics: dict[str, Scalar] = {
        "verdict": verification.verdict,
        "checks passed": f"{passed} of {len(verification.checks)}",
    }
    if verification.overall is not None:
        metrics["relative error"] = verification.overall.estimate
    for row in headline(plan, reduction, verification):
        metrics[f"{row.task} {row.metric}"] = row.value
        if not math.isnan(row.stderr):
            metrics[f"{row.task} {row.metric} stderr"] = row.stderr
    return metrics
