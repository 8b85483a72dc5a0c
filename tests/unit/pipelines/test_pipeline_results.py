"""The numbers from a run's storage, and the token from where it lies: what is not within reach is said."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from eval_core.errors import UsageError
from pipelines import bearer, results
from pipelines.bearer import token_source
from pipelines.results import read_results


def test_a_storage_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr(results, "_PATIENCE", 0.05)
    monkeypatch.setattr(results, "_read", lambda uri: released.wait(60))
    started = time.monotonic()
    assert read_results("s3://bucket/run") == "s3://bucket/run doesn't answer"
    assert time.monotonic() - started < 30
    released.set()


def test_a_folder_without_a_run_has_no_results(tmp_path: Path) -> None:
    assert "no folder" in str(read_results(str(tmp_path / "nowhere")))
    assert "make the plan first" in str(read_results(str(tmp_path)))


def test_the_token_that_a_cluster_projects_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    projected, named = tmp_path / "projected", tmp_path / "named"
    monkeypatch.setattr(bearer, "PROJECTED", projected)
    assert token_source(None, {})() is None
    projected.write_text("of the pod\n".replace(" ", "-"))
    named.write_text("named")
    assert token_source(None, {})() == "of-the-pod"
    assert token_source(None, {bearer.TOKEN_PATH: str(named)})() == "named"
    assert token_source(None, {bearer.TOKEN_PATH: str(named), bearer.TOKEN: "given"})() == "given"


@pytest.mark.parametrize("text", ["", " \n", "two words", "naïve", "a\nb", "\x00"])
def test_what_can_be_no_header_is_no_token(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="holds no token"):
        token_source(path, {})
