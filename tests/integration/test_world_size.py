"""Any number of processes, in float32 and bfloat16, gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eval_core.plan.files import load_plan
from eval_core.reduce import load_reduction, load_shards
from eval_core.storage import Store

WORLD_SIZES = (1, 2, 3, 4, 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_world_size_gives_the_same_bytes(
    dtype: str, concord: Callable, tiny_spec: Callable, tmp_path: Path
) -> None:
    spec = tiny_spec(dtype=dtype, tolerance=0.01)
    results, digests, authors = set(), set(), {}
    for world_size in WORLD_SIZES:
        run = tmp_path / f"run{world_size}"
        done = concord("run", spec, "--run", run, "--nproc", world_size)
        assert done.returncode == 0, done.stderr
        results.add((run / "results.json").read_bytes())
        store = Store(str(run))
        loaded = load_shards(store, load_plan(store))
        digests.add(json.dumps({shard: file.digest for shard, file in sorted(loaded.files.items())}))
        authors[world_size] = {file.provenance.rank for file in loaded.files.values()}
        assert load_reduction(store).digest in done.stdout + (run / "reduction.json").read_text()
    assert len(results) == 1
    assert len(digests) == 1
    assert len(authors[1]) == 1
    assert len(authors[2]) == 2, "two processes ran, so both must have computed something"


def test_replays_are_done_by_another_process(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    done = concord("run", tiny_spec(), "--run", tmp_path / "run", "--nproc", 2)
    assert done.returncode == 0, done.stderr
    store = Store(str(tmp_path / "run"))
    plan = load_plan(store)
    files = load_shards(store, plan).files
    for batch in plan.audited.tolist():
        original = files[f"main/{int(plan.main_shard_of_batch[batch]):06d}"].provenance
        assert files[f"replay/{batch:06d}"].provenance.worker != original.worker


def test_more_ranks_than_work(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    """Field note 4: fewer documents than ranks is an error elsewhere."""
    spec = tiny_spec(shard_cost=10**12)
    done = concord("run", spec, "--run", tmp_path / "run", "--nproc", 6)
    assert done.returncode == 0, done.stderr
    assert len(load_reduction(Store(str(tmp_path / "run"))).shards) == 2  # one of the large task, one of the small


def test_compare_says_identical_or_what_differs(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    for name, dtype in (("a", "float32"), ("b", "float32"), ("c", "bfloat16")):
        spec = tiny_spec(dtype=dtype, tolerance=0.01)
        assert concord("run", spec, "--run", tmp_path / name).returncode == 0
    same = concord("compare", tmp_path / "a", tmp_path / "b")
    assert same.returncode == 0
    assert same.stdout.startswith("identical")
    other = concord("compare", tmp_path / "a", tmp_path / "c")
    assert other.returncode == 1
    assert "different plans" in other.stdout
    assert "docs loss" in other.stdout
