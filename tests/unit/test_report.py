"""The report of a made-up run.

What a change of the report changes stands in tests/golden/. Renew it with

    CONCORD_RENEW_GOLDEN=1 pytest tests/unit/test_report.py

and read the difference before it is committed.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from synthetic import (
    ATTEMPT,
    QUESTIONS,
    START,
    TEXTS,
    URI,
    make_loaded,
    make_plan,
    make_reduction,
    make_store,
    make_verification,
    put_records,
)

from eval_core.errors import ConcordError
from eval_core.metrics.states import Metric
from eval_core.plan.types import Plan
from eval_core.reduce import Loaded, Reduction
from eval_core.report import html, markdown, origins, results
from eval_core.report.headline import headline, print_headline
from eval_core.report.html import spec_yaml
from eval_core.report.markdown import escape
from eval_core.report.plots import plot_timeline
from eval_core.report.text import cut, duration, encode_json, number, utc, visible
from eval_core.report.write import write_report
from eval_core.shard_file import ShardFile
from eval_core.spec import Report
from eval_core.spec_yaml import parse_spec

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
HOSTILE = (
    '<script>alert(1)</script> and </script> and <!-- | `code` & "quotes"',
    "lone \ud800 surrogate, \x00 control, \u202e bidi",
    "x" * 100_000 + "THE END",
)


def write(folder: Path, *, records: bool = True, plan: Plan | None = None, failed: bool = False, **loaded: Any) -> Path:
    """Write the report of a synthetic run below `folder`."""
    plan = plan or make_plan()
    shards = make_loaded(plan, **loaded)
    reduction = make_reduction(plan, shards)
    store = make_store(folder)
    if records:
        put_records(store, plan, shards)
    write_report(store, plan, shards, reduction, make_verification(plan, reduction, failed=failed))
    return folder


def samples(folder: Path, task: str) -> list[dict[str, Any]]:
    lines = (folder / "samples" / f"{task}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def without_svg(page: str) -> str:
    return re.sub(r"<svg.*?</svg>", "<svg/>", page, flags=re.DOTALL)


class Page(HTMLParser):
    """What a browser would make of a page: its elements, its text, the content of its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.mark.parametrize("name", ["results.json", "report.md", "report.html"])
def test_golden(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (results, markdown, html, origins):
        monkeypatch.setattr(module, "__version__", "0.0.0")
    written = (write(tmp_path) / name).read_text(encoding="utf-8")
    found = without_svg(written) if name == "report.html" else written
    if os.environ.get("CONCORD_RENEW_GOLDEN"):
        (GOLDEN / name).write_text(found, encoding="utf-8")
    assert found == (GOLDEN / name).read_text(encoding="utf-8"), "see the top of this file"


def test_results_know_nothing_of_the_way_there(tmp_path: Path) -> None:
    one = write(tmp_path / "one", ranks=1, hosts=("laptop",))
    other = write(tmp_path / "other", ranks=8, attempt="20270101T000000-bbbbbbbb", start=START + 1e7, records=False)
    for name in ("results.json", "report.md", "samples/docs.jsonl", "samples/quiz.jsonl"):
        assert (one / name).read_bytes() == (other / name).read_bytes()
    assert (one / "provenance.json").read_bytes() != (other / "provenance.json").read_bytes()


def test_the_harness_reads_the_results(tmp_path: Path) -> None:
    utils = pytest.importorskip("lm_eval.utils")
    read = json.loads((write(tmp_path) / "results.json").read_text(encoding="utf-8"))
    table = utils.make_table(read)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    metrics = {row[4]: row for row in rows}
    assert rows[0][0] == "docs"
    assert {"word_perplexity", "byte_perplexity", "bits_per_byte", "token_ppl", "acc", "acc_norm"} <= set(metrics)
    assert metrics["acc"][3:9] == ["2", "acc", "↑", "0.5000", "±", "0.0625"]
    assert metrics["word_perplexity"][5] == "↓"
    assert metrics["word_perplexity"][6] == metrics["word_ppl"][6]
    assert read["n-samples"] == {
        "docs": {"original": 3, "effective": 3},
        "quiz": {"original": 4, "effective": 4},
    }


def test_the_harness_reads_what_is_not_a_number(tmp_path: Path) -> None:
    utils = pytest.importorskip("lm_eval.utils")
    plan = make_plan()
    reduction = with_nan(make_reduction(plan, make_loaded(plan)))
    written = encode_json(results.results_json(plan, reduction, make_verification(plan, reduction)))
    read = json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert read["results"]["docs"]["token_ppl,none"] == "NaN"
    assert math.isnan(float(read["results"]["docs"]["token_ppl,none"]))
    assert read["results"]["docs"]["loss,none"] == "Infinity"
    assert read["results"]["docs"]["loss_stderr,none"] == "N/A"
    assert float.fromhex(read["concord"]["tasks"]["docs"]["metrics"]["loss"]["hex"]) == math.inf
    assert "N/A" in utils.make_table(read)


def with_nan(reduction: Reduction) -> Reduction:
    docs = {
        **reduction.metrics["docs"],
        "token_ppl": Metric(value=math.nan, stderr=math.nan, n=3, higher_is_better=False),
        "loss": Metric(value=math.inf, stderr=math.nan, n=3, higher_is_better=False),
    }
    return replace(reduction, metrics={**reduction.metrics, "docs": docs})


def test_hex_floats_are_the_values(tmp_path: Path) -> None:
    plan = make_plan()
    reduction = make_reduction(plan, make_loaded(plan))
    block = json.loads((write(tmp_path) / "results.json").read_text())["concord"]
    assert block["reduction"] == reduction.digest
    for task, metrics in reduction.metrics.items():
        for name, metric in metrics.items():
            assert float.fromhex(block["tasks"][task]["metrics"][name]["hex"]) == metric.value
            assert block["tasks"][task]["metrics"][name]["value"] == metric.value
    assert block["requests"] == {"requested": 18, "computed": 17, "duplicates_removed": 1}
    assert block["tasks"]["quiz"]["counts"] == {
        "examples": 4,
        "tokens_scored": 24,
        "truncated": 1,
        "rejoined": 1,
        "nonfinite": 0,
    }
    assert block["tasks"]["docs"]["counts"]["tokens_scored"] == 30


def test_samples_add_up_to_the_numbers(tmp_path: Path) -> None:
    plan = make_plan()
    reduction = make_reduction(plan, make_loaded(plan))
    write(tmp_path)
    docs, quiz = samples(tmp_path, "docs"), samples(tmp_path, "quiz")
    assert [s["index"] for s in docs + quiz] == [0, 1, 2, 0, 1, 2, 3]
    assert [s["doc"]["text"] for s in docs] == list(TEXTS)
    assert [s["tokens"] for s in docs] == [10, 5, 15]
    assert -sum(s["log_likelihood"] for s in docs) == reduction.states["docs"].nll.value()  # type: ignore[union-attr]
    for s in docs:
        assert s["bits_per_byte"] == pytest.approx(-s["log_likelihood"] / s["bytes"] / math.log(2))
    assert [s["targets"] for s in quiz] == [list(answers) for _, answers, _ in QUESTIONS]
    for metric in ("acc", "acc_norm", "acc_bytes"):
        hits = [s["correct"][metric] for s in quiz]
        assert sum(hits) / len(hits) == reduction.metrics["quiz"][metric].value
        assert hits == [s["chosen"][metric] == s["gold"] for s in quiz]
    for s in quiz:
        assert s["chosen"]["acc"] == int(np.argmax(s["log_likelihoods"]))
    assert quiz[-1]["truncated"] == 7
    assert quiz[-2]["rejoined"] == 1
    assert quiz[-1]["log_likelihoods"][-1] == quiz[-1]["log_likelihoods"][-2]


def test_samples_that_are_not_finite(tmp_path: Path) -> None:
    plan = make_plan()
    loaded = spoil(plan, make_loaded(plan))
    reduction = make_reduction(plan, loaded)
    write_report(make_store(tmp_path), plan, loaded, reduction, make_verification(plan, reduction, failed=True))
    docs, quiz = samples(tmp_path, "docs"), samples(tmp_path, "quiz")
    assert docs[0]["log_likelihood"] == "NaN"
    assert docs[0]["bits_per_byte"] == "NaN"
    assert quiz[0]["log_likelihoods"][0] == "-Infinity"
    assert quiz[0]["chosen"]["acc"] is None
    assert quiz[0]["correct"]["acc"] is False
    assert json.loads((tmp_path / "results.json").read_text())["concord"]["tasks"]["quiz"]["counts"]["nonfinite"] == 1
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.index("Example 0</b> · bits per byte NaN") < page.index("Example 1</b> · bits per byte")


def spoil(plan: Plan, loaded: Loaded) -> Loaded:
    """A NaN in the first token of the first document, +Inf in that of the first answer."""
    nll = np.concatenate([loaded.files[f"main/{i:06d}"].result.nll for i in range(plan.n_shards)])
    nll[0], nll[30] = np.nan, np.inf
    files: dict[str, ShardFile] = dict(loaded.files)
    start = 0
    for i in range(plan.n_shards):
        file = files[f"main/{i:06d}"]
        stop = start + len(file.result.nll)
        files[f"main/{i:06d}"] = replace(file, result=replace(file.result, nll=nll[start:stop]))
        start = stop
    return Loaded(files=files, damaged={})


def test_the_page_asks_no_network(tmp_path: Path) -> None:
    page = (write(tmp_path) / "report.html").read_text(encoding="utf-8")
    for request in ("http://", "https://", "src=", "@import", "<link", "<iframe", "<object"):
        assert request not in page
    assert not re.search(r"url\((?!#)", page)
    assert not re.search(r'href="(?!#)', page)
    assert not re.search(r"\son\w+=", page)
    assert page.count("<svg") == 2
    assert page.count('<svg role="img" aria-label="') == 2


def test_the_page_is_well_formed(tmp_path: Path) -> None:
    page = Page((write(tmp_path) / "report.html").read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"] for _, attributes in page.tags for a in [attributes] if "href" in attributes]
    assert {str(target).removeprefix("#") for target in targets} <= set(ids)
    assert json.loads(page.scripts[0]) == json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))


def test_the_same_page_twice(tmp_path: Path) -> None:
    assert (write(tmp_path / "a") / "report.html").read_bytes() == (write(tmp_path / "b") / "report.html").read_bytes()


def test_hostile_documents_are_only_text(tmp_path: Path) -> None:
    questions = (("<img onerror=alert(1)>", ("</pre><script>", "|", "\ud800"), 0), *QUESTIONS[1:])
    plan = make_plan(texts=HOSTILE, questions=questions)
    written = (write(tmp_path, plan=plan) / "report.html").read_bytes().decode("utf-8")
    page = Page(written)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "img" not in [tag for tag, _ in page.tags]
    assert HOSTILE[0] in page.text
    assert "<script>alert" not in written
    assert "lone \ufffd surrogate, \u2400 control, \ufffd bidi" in page.text
    assert "99,407 characters…]" in page.text
    assert "THE END" in page.text
    assert len(written) < 200_000
    docs, quiz = samples(tmp_path, "docs"), samples(tmp_path, "quiz")
    assert [s["doc"]["text"] for s in docs] == list(HOSTILE)
    assert quiz[0]["targets"] == ["</pre><script>", "|", "\ud800"]


def test_hostile_messages_are_only_text(tmp_path: Path) -> None:
    plan = make_plan()
    loaded = make_loaded(plan, hosts=('<b>"evil"</b>', "$x_1$ | y"))
    reduction = make_reduction(plan, loaded)
    verification = make_verification(plan, reduction, failed=True)
    check = replace(
        verification.checks[0], found="</script><script>alert(1)</script> | `x` *y* \ud800", details=("a\nb | c",)
    )
    verification = replace(verification, checks=(check, *verification.checks[1:]))
    store = make_store(tmp_path)
    put_records(store, plan, loaded)
    write_report(store, plan, loaded, reduction, verification)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert '<b>"evil"</b>' in page.text
    table = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert r"&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt; \| \`x\` \*y\* �" in table
    assert r"  - a b \| c" in table


def test_a_failure_is_said_first(tmp_path: Path) -> None:
    write(tmp_path, failed=True)
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    says = page.index("1 of 3 checks failed (coverage), so these numbers are not proven.")
    assert page.index("✗ Failed") < says < page.index("6 examples in the totals") < page.index("token_ppl")
    assert "✗ no" in page
    table = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert table.startswith("**Failed:** 1 of 3 checks failed (coverage), so these numbers are not proven.\n")
    assert "Failed checks:\n\n- **coverage** Is every example counted exactly once? Expected: 7 examples" in table
    assert "  - docs example 1 is not whole" in table
    assert json.loads((tmp_path / "results.json").read_text())["concord"]["verdict"] == "failed"


def test_what_is_undecided_is_said_so(tmp_path: Path) -> None:
    plan = make_plan()
    loaded = make_loaded(plan)
    reduction = make_reduction(plan, loaded)
    write_report(make_store(tmp_path), plan, loaded, reduction, make_verification(plan, reduction, undecided=True))
    assert (tmp_path / "report.md").read_text().startswith("**Undecided:** no check failed, but for 1 of 3")
    assert "? undecided" in (tmp_path / "report.html").read_text()


def test_without_records(tmp_path: Path) -> None:
    page = (write(tmp_path, records=False) / "report.html").read_text(encoding="utf-8")
    assert "No progress is on record." in page
    assert "No process left a record of its environment." in page
    assert "not reached" in page
    assert page.count("<svg") == 1


def test_torn_records_are_passed_over(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.put(f"attempts/{ATTEMPT}/rank-00099.json", b'{"rank": 99')
    store.put(f"progress/{ATTEMPT}-999999.json", b"[]")
    page = (write(tmp_path) / "report.html").read_text(encoding="utf-8")
    assert f"attempts/{ATTEMPT}/rank-00099.json" in page
    assert len(json.loads((tmp_path / "provenance.json").read_text())["unreadable"]) == 2


def test_without_all_rows_there_are_no_samples(tmp_path: Path) -> None:
    plan = make_plan()
    loaded = make_loaded(plan)
    reduction = make_reduction(plan, loaded)
    files = {shard: file for shard, file in loaded.files.items() if shard != "main/000001"}
    torn = Loaded(files=files, damaged={"main/000001": "torn"})
    paths = write_report(make_store(tmp_path), plan, torn, reduction, make_verification(plan, reduction, failed=True))
    assert paths.samples == ()
    assert "there are no samples" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_verification_of_other_numbers_is_refused(tmp_path: Path) -> None:
    plan = make_plan()
    loaded = make_loaded(plan)
    reduction = make_reduction(plan, loaded)
    verification = replace(make_verification(plan, reduction), reduction="0" * 64)
    with pytest.raises(ConcordError, match=f"verify again: concord verify --run {URI}"):
        write_report(make_store(tmp_path), plan, loaded, reduction, verification)
    assert not (tmp_path / "report.html").exists()


def test_ranks_on_different_machines_are_flagged(tmp_path: Path) -> None:
    plan = make_plan()
    loaded = make_loaded(plan, ranks=4)
    reduction = make_reduction(plan, loaded)
    store = make_store(tmp_path)
    put_records(store, plan, loaded, environments=({}, {"packages": {"torch": "2.12.0"}}))
    write_report(store, plan, loaded, reduction, make_verification(plan, reduction))
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8")).text
    assert "The ranks ran on 2 different environments." in page
    assert "≠ packages.torch" in page
    assert f"ranks 0, 2 of {ATTEMPT}" in page
    provenance = json.loads((tmp_path / "provenance.json").read_text())
    assert [len(e["workers"]) for e in provenance["environments"]] == [2, 2]
    assert provenance["attempts"][0]["world_size"] == 4


def test_the_spec_in_the_page_runs() -> None:
    plan = make_plan(report=Report(worst_samples=3))
    assert parse_spec(spec_yaml(plan), "report") == plan.spec


def test_the_headline_on_a_terminal() -> None:
    plan = make_plan()
    reduction = make_reduction(plan, make_loaded(plan))
    rows = headline(plan, reduction, make_verification(plan, reduction))
    console = Console(file=io.StringIO(), width=100)
    print_headline(rows, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert [row.metric for row in rows] == ["token_ppl", "word_ppl", "bits_per_byte", "acc", "acc_norm"]
    assert "✓ yes" in shown
    assert f"{reduction.metrics['docs']['token_ppl'].value:.4f}" in shown


def test_a_timeline_of_very_many_shards_stays_small() -> None:
    plan = make_plan()
    one = make_loaded(plan).files["main/000000"]
    files = {
        f"main/{i:06d}": replace(
            one,
            provenance=replace(
                one.provenance, rank=i % 500, world_size=500, started=START + i / 100, finished=START + i / 100 + 4.9
            ),
        )
        for i in range(50_000)
    }
    plot = plot_timeline(Loaded(files=files, damaged={}))
    assert plot is not None
    assert len(plot.svg) < 1_500_000
    assert "64 that finished last" in plot.notes


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.35, "0.3500"),
        (-12.00004, "-12.0000"),
        (1e-5, "1.0000e-05"),
        (0.0, "0.0000"),
        (1234567.0, "1.2346e+06"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
    ],
)
def test_number(value: float, shown: str) -> None:
    assert number(value) == shown


def test_texts_for_readers() -> None:
    assert utc(START) == "2026-01-02 03:04:05 UTC"
    assert utc(math.nan) == utc(1e99) == "–"
    assert [duration(s) for s in (0.0124, 12.34, 245, 7380)] == ["12 ms", "12.3 s", "4 min 05 s", "2 h 03 min"]
    assert cut("short") == "short"
    assert len(cut("x" * 10**6)) < 650
    assert visible("a\x1b[31m\tb\n\udfff") == "a␛[31m\tb\n\ufffd"
    assert escape("a|b`c`<d>\n*e* f_g") == r"a\|b\`c\`&lt;d&gt; \*e\* f_g"
    assert (
        encode_json({"x": [math.nan, -math.inf, 1.5, "ü\ud800"]})
        == b'{"x": ["NaN", "-Infinity", 1.5, "\\u00fc\\ud800"]}'
    )
