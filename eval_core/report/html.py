"""report.html: one file that asks no network for anything and needs no script."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined
from markupsafe import Markup

from eval_core import __version__
from eval_core.plan.types import Plan
from eval_core.reduce import Loaded, Reduction
from eval_core.report import text
from eval_core.report.extremes import SampleGroup
from eval_core.report.headline import VERIFIED, checks_with, direction, headline, shown_metric, verdict_sentence
from eval_core.report.origins import attempts_of, differing, environments_of, names_of, subtotals
from eval_core.report.plots import plot_running_metric, plot_timeline
from eval_core.report.records import Records
from eval_core.report.results import task_counts
from eval_core.report.reused import Reused, describe_reused
from eval_core.reuse import describe_machine
from eval_core.spec import to_plain
from eval_core.verify.types import Status, Verification

TEMPLATE = "report.html.j2"
_STATUS: Mapping[Status, str] = {"passed": "✓ passed", "failed": "✗ failed", "undecided": "? undecided"}


@dataclass(frozen=True, kw_only=True)
class Material:
    """All that a page shows.

    Attributes:
        uri: the run's storage.
        plan, loaded, reduction, verification, records: of the run.
        samples: what to show of them; None where the rows are not all there.
        results: the content of results.json.
        reused: what was taken over from other runs.
    """

    uri: str
    plan: Plan
    loaded: Loaded
    reduction: Reduction
    verification: Verification
    records: Records
    samples: Sequence[SampleGroup] | None
    results: Mapping[str, Any]
    reused: Sequence[Reused]


def render_html(material: Material) -> bytes:
    """The page, UTF-8."""
    plan, reduction, verification = material.plan, material.reduction, material.verification
    attempts = attempts_of(material.loaded, material.records)
    environments = environments_of(material.records.ranks)
    word, _, sentence = verdict_sentence(verification).partition(": ")
    ranks = attempts[-1].world_size if attempts else 1
    page = {
        "plan": plan,
        "spec": plan.spec,
        "reduction": reduction,
        "verification": verification,
        "verdict": verification.verdict,
        "word": word,
        "sentence": sentence[:1].upper() + sentence[1:],
        "failed": checks_with(verification, "failed"),
        "undecided": checks_with(verification, "undecided"),
        "rows": headline(plan, reduction, verification),
        "counts": {task.name: task_counts(plan, n, reduction) for n, task in enumerate(plan.spec.tasks)},
        "duplicates": plan.n_requested - len(plan.requests),
        "attempts": attempts,
        "environments": environments,
        "differing": differing(environments),
        "subtotals": subtotals(plan, reduction),
        "running": plot_running_metric(plan, reduction, material.records.progress),
        "timeline": plot_timeline(material.loaded),
        "samples": material.samples,
        "unreadable": material.records.unreadable,
        "commands": _commands(material.uri, plan.spec.name, ranks),
        "spec_yaml": spec_yaml(plan),
        "results": embed_json(material.results),
        "reused": [describe_reused(part, plan) for part in material.reused],
        "foreign": _foreign(material),
        "version": __version__,
    }
    return templates().get_template(TEMPLATE).render(page).encode()


def _foreign(material: Material) -> list[str]:
    """Machines that reused shards were computed on and no rank of this run ran on, as far as ranks left a record."""
    here = {describe_machine(record.environment) for record in material.records.ranks} - {""}
    return sorted({machine for part in material.reused for machine in part.machines if machine not in here})


def spec_yaml(plan: Plan) -> str:
    """The run's spec with every key, as YAML that `concord run` reads."""
    return yaml.dump(to_plain(plan.spec), Dumper=_SpecDumper, sort_keys=False, allow_unicode=True, width=math.inf)


class _SpecDumper(yaml.SafeDumper):
    """Writes texts with line breaks between double quotes, so that one sees each of them."""


def _text_node(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if "\n" in value else None)


_SpecDumper.add_representer(str, _text_node)


def embed_json(value: Any) -> Markup:
    """`value` as JSON that can stand in a <script> element: no `<`, so nothing in it can end the element."""
    written = json.dumps(text.plain(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(written.replace("<", "\\u003c"))


def _commands(uri: str, name: str, ranks: int) -> list[str]:
    again = shlex.quote(f"{uri.rstrip('/')}-again")
    return [
        f"concord run {shlex.quote(name)}.yaml --run {again} --nproc {ranks}",
        f"concord compare {shlex.quote(uri)} {again}",
    ]


def templates() -> Templates:
    """The pages' templates: everything that goes into one is made visible and escaped."""
    environment = Templates(
        loader=PackageLoader("eval_core", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    for name in ("number", "stderr", "relative", "count", "percent", "utc", "duration", "plural"):
        environment.filters[name] = getattr(text, name)
    environment.filters["direction"] = direction
    environment.filters["shown_metric"] = shown_metric
    environment.filters["status"] = lambda status: _STATUS[status]
    environment.filters["verified"] = lambda status: VERIFIED[status]
    environment.filters["svg"] = Markup
    environment.filters["names"] = names_of
    return environment


def _finalize(value: Any) -> Any:
    """Every text on its way into the page, before it is escaped."""
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
