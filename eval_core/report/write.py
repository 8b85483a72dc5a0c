"""Write the report of a run into its storage."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from eval_core.errors import ConcordError
from eval_core.plan.types import Plan, shard_id
from eval_core.reduce import Loaded, Reduction, gather_scores, sample_key
from eval_core.report.extremes import choose_extremes
from eval_core.report.headline import headline
from eval_core.report.html import Material, render_html
from eval_core.report.markdown import render_markdown
from eval_core.report.origins import provenance_json
from eval_core.report.records import read_records
from eval_core.report.results import results_json
from eval_core.report.reused import reused_of
from eval_core.report.samples import RequestScores, TaskScores, sample_lines, score_examples
from eval_core.report.text import encode_json
from eval_core.storage import Store
from eval_core.verify.types import Verification

RESULTS_KEY = "results.json"
PROVENANCE_KEY = "provenance.json"
MARKDOWN_KEY = "report.md"
HTML_KEY = "report.html"
_LINES = 1 << 12


@dataclass(frozen=True, kw_only=True)
class ReportPaths:
    """Keys of what was written, below the run's storage.

    Attributes:
        results, provenance, markdown, html: one file each.
        samples: one file per task, in the spec's order; none where rows are missing.
    """

    results: str
    provenance: str
    markdown: str
    html: str
    samples: tuple[str, ...]


def write_report(
    store: Store, plan: Plan, loaded: Loaded, reduction: Reduction, verification: Verification
) -> ReportPaths:
    """Write results.json, samples, provenance.json, report.md and report.html, the page last.

    Where main shards are missing or damaged, which a verification says, there are no samples.

    Raises:
        ConcordError: the verification is of other numbers than these.
        StorageError: the storage is full or out of reach.
    """
    if (verification.plan, verification.reduction) != (plan.digest, reduction.digest):
        raise ConcordError(
            f"{store.uri}: the verification is of other numbers than reduction.json holds; verify again: concord verify --run {store.uri}"
        )
    complete = not loaded.missing(shard_id("main", i) for i in range(plan.n_shards))
    scored = score_examples(plan, gather_scores(plan, loaded)) if complete else None
    records = read_records(store)
    reused = reused_of(plan, loaded)
    results = results_json(plan, reduction, verification, reused)

    samples = tuple(_write_samples(store, plan, task) for task in scored or ())
    store.put(PROVENANCE_KEY, encode_json(provenance_json(plan, loaded, reduction, records), indent=1) + b"\n")
    store.put(RESULTS_KEY, encode_json(results, indent=2) + b"\n")
    rows = headline(plan, reduction, verification)
    store.put(MARKDOWN_KEY, render_markdown(plan, reduction, verification, rows, reused))
    material = Material(
        uri=store.uri,
        plan=plan,
        loaded=loaded,
        reduction=reduction,
        verification=verification,
        records=records,
        samples=None if scored is None else choose_extremes(plan, scored),
        results=results,
        reused=reused,
    )
    store.put(HTML_KEY, render_html(material))
    return ReportPaths(
        results=RESULTS_KEY, provenance=PROVENANCE_KEY, markdown=MARKDOWN_KEY, html=HTML_KEY, samples=samples
    )


def _write_samples(store: Store, plan: Plan, scored: TaskScores) -> str:
    task = plan.spec.tasks[int(plan.examples.task[scored.rows.start])]
    key = sample_key(task.name)
    if isinstance(scored, RequestScores):  # the reduction wrote them, where the harness's code was at hand
        return key
    lines = sample_lines(plan, scored)
    store.put_parts(key, iter(lambda: b"".join(islice(lines, _LINES)), b""))
    return key
