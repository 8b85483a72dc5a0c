"""The step generate_report: whatever the run has, there is a report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from components.generate_report import step as module
from eval_core.errors import ConcordError

FAILED = {"state": "FAILED", "pipeline_task_name": "chain", "error": {"code": 1, "message": "Task chain failed."}}
SUCCEEDED = {"state": "SUCCEEDED", "error": {}}


class _Loads(HTMLParser):
    """What a page would fetch, and the text that it shows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.shown: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, value in attrs if name in ("src", "srcset", "data", "action")]
        self.fetched += [f"{tag} {v}" for name, v in attrs if name == "href" and not (v or "").startswith("#")]
        self.fetched += [tag] if tag in ("link", "iframe", "object", "embed", "img") else []

    def handle_data(self, data: str) -> None:
        self.shown.append(data)


def page_of(done: Any) -> str:
    """The text of the page, which must stand alone."""
    page = _Loads(done.text("report"))
    assert page.fetched == []
    return " ".join("".join(page.shown).split())


def test_complete(step: Callable[..., Any], own_run: Path) -> None:
    """Without the steps between: a pipeline may have been stopped before them."""
    assert not (own_run / "verification.json").exists()
    done = step("generate_report", {"run": str(own_run), "status": SUCCEEDED})
    assert done.code == 0, done.stderr
    assert done.text("report") == (own_run / "report.html").read_text(encoding="utf-8")
    assert done.text("summary") == (own_run / "report.md").read_text(encoding="utf-8")
    assert "Verified" in page_of(done)
    metrics = done.metadata("metrics")
    assert metrics["verdict"] == "passed"
    assert 0 <= metrics["quiz acc"] <= 1


def test_complete_after_a_failure(step: Callable[..., Any], own_run: Path) -> None:
    done = step("generate_report", {"run": str(own_run), "status": FAILED})
    assert done.code == 0
    assert done.text("summary").endswith("\n- The steps before ended as FAILED: Task chain failed.\n")


def test_incomplete(step: Callable[..., Any], own_run: Path) -> None:
    shards = sorted((own_run / "shards" / "main").iterdir())
    shards[0].unlink()
    shards[1].write_bytes(shards[1].read_bytes()[:-20])
    done = step("generate_report", {"run": str(own_run), "status": FAILED})
    assert done.code == 0, done.stderr
    said = f"{len(shards) - 2} of {len(shards)} shards are committed, so there is no number yet."
    page, summary = page_of(done), done.text("summary")
    for text in (page, summary, done.stderr):
        assert said in text
        assert f"concord resume --run {own_run} --nproc N" in text
        assert "The steps before ended as FAILED: Task chain failed." in text
    assert "shards/main/000001.json" in page
    assert "1 file can't be used" in page
    assert "damaged: shards/main/000001.json" in summary
    metrics = done.metadata("metrics")
    assert metrics == {"state": "incomplete", "shards committed": len(shards) - 2, "shards": len(shards)}


def test_nothing_planned(step: Callable[..., Any], tmp_path: Path) -> None:
    done = step("generate_report", {"run": str(tmp_path / "run"), "status": FAILED})
    assert done.code == 0
    page = page_of(done)
    assert "Nothing planned" in page
    assert f"concord run SPEC.yaml --run {tmp_path}/run" in page
    assert done.metadata("metrics") == {"state": "nothing planned"}


def test_unreadable(step: Callable[..., Any], own_run: Path) -> None:
    (own_run / "plan" / "plan.json").write_text("{")
    done = step("generate_report", {"run": str(own_run), "status": FAILED})
    assert done.code == 1
    assert "error: " in done.stderr
    assert "not the head of a plan" in page_of(done)
    assert done.metadata("metrics") == {"state": "unreadable"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A pod in the namespace `evals`, whose API server deletes two jobs; `asked` holds what it was asked."""
    fake: Any = ModuleType("components.evaluate.cluster")
    fake.asked = []
    fake.OperatorMissingError = type("OperatorMissingError", (ConcordError,), {})

    def delete_run_jobs(run: str, namespace: str) -> list[str]:
        fake.asked.append((run, namespace))
        return ["concord-1-1", "concord-1-2"]

    fake.delete_run_jobs = delete_run_jobs
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(module, "own_namespace", lambda: "evals")
    return fake


def test_the_jobs_of_the_run_are_deleted(cluster: Any, own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = module.generate_report(run=str(own_run), backend="pytorchjob", status=SUCCEEDED)
    assert cluster.asked == [(str(own_run), "evals")]
    assert "deleted the job concord-1-1\ndeleted the job concord-1-2\n" in capsys.readouterr().err
    assert outputs.exit_code == 0


def test_jobs_that_may_not_be_deleted(cluster: Any, own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(run: str, namespace: str) -> list[str]:
        raise ConcordError("RBAC lacks the verb 'list'")

    cluster.delete_run_jobs = refuse
    outputs = module.generate_report(run=str(own_run), backend="pytorchjob", status=SUCCEEDED)
    assert outputs.exit_code == 1
    assert "error: RBAC lacks the verb 'list'" in capsys.readouterr().err
    assert b"Jobs of this run may still be there: RBAC lacks the verb 'list'" in outputs.files["summary"]
    assert outputs.metrics["metrics"]["verdict"] == "passed"


def test_a_cluster_without_the_operator_has_no_jobs(cluster: Any, own_run: Path) -> None:
    def missing(run: str, namespace: str) -> list[str]:
        raise cluster.OperatorMissingError("no such kind")

    cluster.delete_run_jobs = missing
    assert module.generate_report(run=str(own_run), backend="pytorchjob").exit_code == 0


def test_the_backend_local_has_no_jobs(cluster: Any, own_run: Path) -> None:
    assert module.generate_report(run=str(own_run), backend="local").exit_code == 0
    assert cluster.asked == []


def test_outside_a_cluster_nothing_is_deleted(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "components.evaluate.cluster", None)
    assert module.generate_report(run=str(own_run), backend="pytorchjob").exit_code == 0


def test_a_hostile_name_stays_text(step: Callable[..., Any], tmp_path: Path) -> None:
    done = step("generate_report", {"run": f"{tmp_path}/<script>alert(1)</script>", "status": SUCCEEDED})
    assert done.code == 0
    assert "<script>" not in done.text("report")
    assert "<script>alert(1)</script>" in page_of(done)
