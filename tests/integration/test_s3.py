"""The same run on an S3 server, spoken to by its own protocol."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eval_core.reduce import load_reduction
from eval_core.storage import Store


def test_a_run_on_s3_has_the_bits_of_a_run_on_a_folder(
    s3: dict[str, str], concord: Callable, tiny_spec: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tiny_spec()
    assert concord("run", spec, "--run", tmp_path / "local").returncode == 0
    done = concord("run", spec, "--run", "s3://evaluations/one", "--nproc", 2, **s3)
    assert done.returncode == 0, done.stderr
    again = concord("run", spec, "--run", "s3://evaluations/one", "--nproc", 1, **s3)
    assert again.returncode == 0, again.stderr
    assert "0 of" in again.stderr, "a second call has nothing left to do"
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    remote = Store("s3://evaluations/one")
    assert load_reduction(remote).digest == load_reduction(Store(str(tmp_path / "local"))).digest
    assert remote.get("results.json") == (tmp_path / "local/results.json").read_bytes()


def test_put_new_has_one_winner(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    stores = [Store("s3://evaluations/race") for _ in range(8)]
    stores[0].probe()
    for key in map(str, range(20)):
        with ThreadPoolExecutor(len(stores)) as pool:
            won = list(pool.map(lambda s, key=key: s.put_new(key, b"x"), stores))
        assert sum(won) == 1
