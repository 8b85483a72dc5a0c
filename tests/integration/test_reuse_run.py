"""Shards of another run are taken over where they are the same work, and only there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eval_core.plan.files import load_plan
from eval_core.reduce import load_reduction, load_shards
from eval_core.reuse import reuse_key
from eval_core.shard_file import ShardFile, decode_shard, encode_shard, shard_key
from eval_core.storage import Store
from eval_core.verify.types import load_verification


@pytest.fixture(scope="module")
def old(
    concord: Callable, tiny_model: Path, small_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """(a spec, its finished run); for reading only."""
    folder = tmp_path_factory.mktemp("old")
    spec = folder / "spec.yaml"
    spec.write_text(
        f"""
name: tiny
model: {tiny_model}
tasks:
  - {{name: docs, type: perplexity, data: {small_data}/documents.jsonl, window: 64, stride: 48}}
  - {{name: quiz, type: multiple_choice, data: {small_data}/questions.jsonl, prompt: "Q: {{input}}\\nA:"}}
compute: {{dtype: float32}}
batch: {{tokens: 256, shard_cost: 50000000}}
audit: {{micro_batches: 4}}
work: {{stall_timeout: 60}}
report: {{bootstrap: 50}}
""",
        encoding="utf-8",
    )
    done = concord("run", spec, "--run", folder / "run")
    assert done.returncode == 0, done.stderr
    return spec, folder / "run"


def changed(spec: Path, folder: Path, *changes: tuple[str, str]) -> Path:
    """`spec` with pieces of its text replaced, written into `folder`."""
    text = spec.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    (folder / "changed.yaml").write_text(text, encoding="utf-8")
    return folder / "changed.yaml"


def files(run: Path) -> dict[str, ShardFile]:
    store = Store(str(run))
    return dict(load_shards(store, load_plan(store)).files)


def reused(run: Path) -> set[str]:
    return {shard for shard, file in files(run).items() if file.provenance.origin is not None}


def main(run: Path) -> set[str]:
    return {shard for shard in files(run) if shard.startswith("main/")}


def status(run: Path, check: str) -> str:
    return next(c.status for c in load_verification(Store(str(run))).checks if c.name == check)


def without_reuse(run: Path) -> dict[str, Any]:
    """results.json without what it says of reuse."""
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    results["concord"].pop("reuse", None)
    results["concord"]["checks"].pop("reuse", None)
    return results


def test_the_same_spec_is_reused_whole_by_two_ranks(old: tuple[Path, Path], concord: Callable, tmp_path: Path) -> None:
    spec, run = old
    new = tmp_path / "new"
    done = concord("run", spec, "--run", new, "--nproc", 2, "--reuse", run)
    assert done.returncode == 0, done.stderr
    n = len(main(run))
    assert f"reused {n} of {n} missing main shards" in done.stderr
    assert reused(new) == main(new)
    assert load_reduction(Store(str(new))).digest == load_reduction(Store(str(run))).digest
    assert without_reuse(new) == without_reuse(run)
    assert (status(new, "reuse"), status(new, "replay")) == ("passed", "passed")
    for shard in reused(new):
        origin = files(new)[shard].provenance.origin
        assert origin is not None
        assert (origin.run, origin.shard, origin.digest) == (str(run), shard, files(run)[shard].digest)
        assert "torch" in origin.machine


MORE = '  - {{name: again, type: multiple_choice, data: {data}, prompt: "Question: {{input}}\\nAnswer:"}}\ncompute:'


def test_a_task_more_leaves_the_large_one_but_what_is_spoiled(
    old: tuple[Path, Path], small_data: Path, concord: Callable, tmp_path: Path
) -> None:
    """By hand, as under torchrun: `plan`, then `work --reuse`. Torn and lost shards of the old run are computed."""
    spec, run = old
    more = changed(spec, tmp_path, ("compute:", MORE.format(data=f"{small_data}/questions.jsonl")))
    alone, spoiled, new = tmp_path / "alone", tmp_path / "spoiled", tmp_path / "new"
    assert concord("run", more, "--run", alone).returncode == 0
    shutil.copytree(run, spoiled)
    torn, lost = spoiled / "shards/main/000000.json", spoiled / "shards/main/000003.json"
    torn.write_bytes(torn.read_bytes()[:-100])
    lost.unlink()

    assert concord("plan", more, "--run", new).returncode == 0
    before, after = (load_plan(Store(str(path))) for path in (run, new))
    common = {reuse_key(before, s) for s in main(run)} & {reuse_key(after, s) for s in after.shard_ids() if "main" in s}
    done = concord("work", "--run", new, "--reuse", spoiled)
    assert done.returncode == 0, done.stderr
    taken = len(common) - 2
    assert taken > after.n_shards / 2
    assert f"reused {taken} of {len(main(new))} missing main shards from {spoiled}" in done.stderr
    assert len(reused(new)) == taken < len(main(new))
    again = concord("resume", "--run", new)
    assert again.returncode == 0, again.stderr
    assert ": 1 ranks, 0 of" in again.stderr
    assert load_reduction(Store(str(new))).digest == load_reduction(Store(str(alone))).digest
    assert without_reuse(new) == without_reuse(alone)
    said = json.loads((new / "results.json").read_text(encoding="utf-8"))["concord"]["reuse"]
    assert [(part["run"], part["shards"]) for part in said] == [(str(spoiled), taken)]
    assert f"Reused: {taken} of {len(main(new))} shards" in (new / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "change",
    [("dtype: float32", "dtype: bfloat16"), ("dtype: float32", "threads: 2, dtype: float32")],
)
def test_other_arithmetic_reuses_nothing(
    change: tuple[str, str], old: tuple[Path, Path], concord: Callable, tmp_path: Path
) -> None:
    spec, run = old
    other = changed(spec, tmp_path, change, ("audit:", "precision: {tolerance: 0.01}\naudit:"))
    done = concord("run", other, "--run", tmp_path / "new", "--reuse", run)
    assert done.returncode == 0, done.stderr
    assert "reused 0 of" in done.stderr
    assert reused(tmp_path / "new") == set()
    assert "reuse" not in json.loads((tmp_path / "new/results.json").read_text(encoding="utf-8"))["concord"]


def test_rows_that_this_machine_would_not_compute_are_found(
    old: tuple[Path, Path], concord: Callable, tmp_path: Path
) -> None:
    """Every row of the old run a bit off, as another kind of machine might compute it, each digest in order."""
    spec, run = old
    other, new = tmp_path / "other", tmp_path / "new"
    shutil.copytree(run, other)
    for shard in main(other):
        path = other / shard_key(shard)
        file = decode_shard(path.read_bytes(), shard)
        moved = replace(file.result, nll=np.nextafter(file.result.nll, np.float32(99)))
        path.write_bytes(encode_shard(moved, file.provenance)[0])
    done = concord("run", spec, "--run", new, "--reuse", other)
    assert done.returncode == 1, done.stderr
    assert reused(new) == main(new)
    assert (status(new, "reuse"), status(new, "replay")) == ("passed", "failed")
    assert f"(reused from {other})" in done.stderr


def test_what_is_no_run_is_one_line(old: tuple[Path, Path], concord: Callable, tmp_path: Path) -> None:
    done = concord("run", old[0], "--run", tmp_path / "new", "--reuse", tmp_path / "nowhere")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: --reuse {tmp_path / 'nowhere'}: there is no run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_s3_is_reused(
    old: tuple[Path, Path],
    s3: dict[str, str],
    concord: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec, run = old
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    there = Store("s3://evaluations/old")
    for path in run.rglob("*"):
        if path.is_file():
            there.put(str(path.relative_to(run)), path.read_bytes())
    done = concord("run", spec, "--run", tmp_path / "new", "--reuse", there.uri)
    assert done.returncode == 0, done.stderr
    assert reused(tmp_path / "new") == main(run)
    none = concord("run", spec, "--run", tmp_path / "newer", "--reuse", "s3://evaluations/nowhere")
    assert none.returncode == 2
    assert none.stderr.startswith("error: --reuse s3://evaluations/nowhere: there is no run")
