"""report.md: what one pastes into an issue or a pull request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from eval_core import __version__
from eval_core.plan.types import Plan
from eval_core.reduce import Reduction
from eval_core.report.headline import VERIFIED, HeadlineRow, checks_with, verdict_sentence
from eval_core.report.reused import Reused, describe_reused
from eval_core.report.text import count, number, plural, stderr, visible
from eval_core.verify.types import Check, Verification

_HEADER = ("task", "n-shot", "metric", "better", "value", "± stderr", "n", "verified")
_ALIGNED = (":--", "--:", ":--", ":-:", "--:", "--:", "--:", ":--")


def render_markdown(
    plan: Plan,
    reduction: Reduction,
    verification: Verification,
    rows: Sequence[HeadlineRow],
    reused: Sequence[Reused],
) -> bytes:
    """The verdict in a sentence, the headline table, every check that did not pass, and what was reused. UTF-8."""
    word, _, rest = verdict_sentence(verification).partition(": ")
    lines = [f"**{word}:** {escape(rest)}", "", _row(_HEADER), _row(_ALIGNED)]
    for r in rows:
        cells = (r.task, r.n_shot, r.metric, r.direction, number(r.value), stderr(r.stderr), count(r.n))
        lines.append(_row([*(escape(str(cell)) for cell in cells), VERIFIED[r.verified]]))
    lines += _checks("Failed checks", checks_with(verification, "failed"))
    lines += _checks("Undecided checks", checks_with(verification, "undecided"))
    for part in reused:
        lines += ["", f"Reused: {escape(describe_reused(part, plan))}"]
    lines += [
        "",
        f"{escape(plan.spec.name)} · {escape(plan.spec.model)} · {plan.spec.compute.dtype} on {plan.spec.compute.device} · "
        f"{plural(len(plan.examples), 'example')} · plan {plan.digest[:16]} · reduction {reduction.digest[:16]} · concord {__version__}",
    ]
    return ("\n".join(lines) + "\n").encode()


def render_checks(verification: Verification) -> bytes:
    """Every check with what was expected and what was found. UTF-8."""
    lines = [_row(("check", "status", "expected", "found")), _row((":--", ":--", ":--", ":--"))]
    for check in verification.checks:
        found = "; ".join((check.found, *check.details))
        name = f"**{escape(check.name)}** {escape(check.question)}"
        lines.append(_row((name, check.status, escape(check.expected), escape(found))))
    return ("\n".join(lines) + "\n").encode()


def escape(text: str) -> str:
    """`text` as one line of a Markdown table cell that means what it says: no markup, no HTML, no cell border.

    Underscores stay, because names are full of them and inside of a word they mark nothing.
    """
    text = visible(" ".join(text.split()))
    text = re.sub(r"([\\`*\[\]|~])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _checks(title: str, checks: Sequence[Check]) -> list[str]:
    if not checks:
        return []
    lines = ["", f"{title}:", ""]
    for check in checks:
        lines.append(
            f"- **{escape(check.name)}** {escape(check.question)} Expected: {escape(check.expected)}. Found: {escape(check.found)}."
        )
        lines += [f"  - {escape(detail)}" for detail in check.details]
    return lines
