"""Storage on a local folder: creation without overwriting, by many processes at once, and on a full disk."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval_core.errors import ConcordError, StorageError, UsageError
from eval_core.storage import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "run"))


def test_put_new_creates_once(store: Store) -> None:
    assert store.put_new("a/b.json", b"first") is True
    assert store.put_new("a/b.json", b"second") is False
    assert store.get("a/b.json") == b"first"


def test_put_writes_over(store: Store) -> None:
    store.put("a", b"first")
    store.put("a", b"2nd")
    assert store.get("a") == b"2nd"


@pytest.mark.parametrize("parts", [[], [b"one"], [b"one", b"", b"two"], [b"x" * 3_000_000] * 5])
def test_parts_are_written_one_after_the_other_over_what_was_there(parts: list[bytes], store: Store) -> None:
    store.put("a/b", b"before")
    store.put_parts("a/b", iter(parts))
    assert store.get("a/b") == b"".join(parts)
    assert store.list("a") == ["a/b"]


def test_parts_that_break_off_change_nothing(store: Store) -> None:
    def parts() -> Iterator[bytes]:
        yield b"x" * 6_000_000
        raise RuntimeError("broken off")

    store.put("a/b", b"before")
    with pytest.raises(RuntimeError, match="broken off"):
        store.put_parts("a/b", parts())
    assert store.get("a/b") == b"before"
    assert store.list("a") == ["a/b"]


@pytest.mark.parametrize("data", [b"", b"\0" * 3, b"x" * 3_000_000])
def test_bytes_come_back_as_they_were(data: bytes, store: Store) -> None:
    store.put_new("k", data)
    assert store.get("k") == data


def test_what_is_missing(store: Store) -> None:
    assert store.get("none") is None
    assert store.list("none") == []
    store.delete("none")
    store.move("none", "other")
    assert store.get("other") is None
    with pytest.raises(StorageError, match="has no none: make it first"):
        store.require("none", "make it first")


def test_list_is_sorted_and_of_one_folder(store: Store) -> None:
    for key in ("shards/main/2", "shards/main/10", "shards/audit", "shards2/x", "other"):
        store.put(key, b"")
    assert store.list("shards") == ["shards/audit", "shards/main/10", "shards/main/2"]


def test_move_and_delete(store: Store) -> None:
    store.put("a/x", b"1")
    store.move("a/x", "bad/y")
    assert (store.get("a/x"), store.get("bad/y")) == (None, b"1")
    store.delete("bad/y")
    assert store.list("bad") == []


def test_a_relative_path_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store("runs/one")
    store.put("k", b"1")
    assert store.local_path == tmp_path / "runs" / "one"
    assert (tmp_path / "runs" / "one" / "k").read_bytes() == b"1"


def test_a_uri_has_no_local_path() -> None:
    assert Store("memory:///").local_path is None


@pytest.mark.parametrize("uri", ["nonsense://x", "s3://"])
def test_a_uri_that_cannot_be_opened(uri: str) -> None:
    with pytest.raises(StorageError, match="the storage can't be opened"):
        Store(uri)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        Store(str(tmp_path / "file")).put("k", b"1")


def test_a_storage_error_is_not_the_users_input() -> None:
    assert issubclass(StorageError, ConcordError)
    assert not issubclass(StorageError, UsageError)


RACER = """
import json, sys, time
from pathlib import Path
from eval_core.storage import Store
uri, me, go = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
store = Store(uri)
print("ready", flush=True)
while not go.exists():
    time.sleep(0.001)
keys = [f"shards/main/{k:06d}.json" for k in range(50)]
print(json.dumps([key for key in keys if store.put_new(key, f"by {me}".encode())]))
"""


def test_eight_processes_create_fifty_keys_and_each_has_one_winner(store: Store, tmp_path: Path) -> None:
    go = tmp_path / "go"
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER, store.uri, str(me), str(go)], stdout=subprocess.PIPE, text=True)
        for me in range(8)
    ]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    go.touch()
    won = [json.loads(racer.communicate(timeout=60)[0]) for racer in racers]
    keys = store.list("shards")
    assert len(keys) == 50
    assert sorted(key for mine in won for key in mine) == keys
    assert all(store.get(key) == f"by {me}".encode() for me, mine in enumerate(won) for key in mine)


# --- the probe


def test_a_local_folder_passes_the_probe_and_keeps_nothing_of_it(store: Store) -> None:
    store.probe()
    assert store.list("probe") == []


class Overwriting(Store):
    def put_new(self, key: str, data: bytes) -> bool:
        self.put(key, data)
        return True


class Forgetful(Store):
    """Says that the second creation was refused, and has written it all the same."""

    def put_new(self, key: str, data: bytes) -> bool:
        first = self.get(key) is None
        self.put(key, data)
        return first


class Refusing(Store):
    def put_new(self, key: str, data: bytes) -> bool:
        return False


@pytest.mark.parametrize("kind", [Overwriting, Forgetful, Refusing])
def test_storage_that_does_not_keep_the_promise_fails_the_probe(kind: type[Store], tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        kind(str(tmp_path)).probe()
    message = str(caught.value)
    assert "a second creation of one key was not refused" in message
    assert "needed is a file system with hard links" in message


def test_storage_without_put_if_absent_fails_the_probe(tmp_path: Path) -> None:
    from obstore.exceptions import NotSupportedError

    class Unable(Store):
        def put_new(self, key: str, data: bytes) -> bool:
            error = NotSupportedError("no If-None-Match here")
            raise self._error("write", key, error) from error

    with pytest.raises(StorageError, match="this storage has no put-if-absent; needed is"):
        Unable(str(tmp_path)).probe()


# --- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    done = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if not done or done.returncode != 0:
        pytest.skip("a small disk can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("create", [Store.put_new, Store.put])
def test_a_full_disk_is_said_and_what_was_written_is_kept(create: object, small_disk: Path) -> None:
    store = Store(str(small_disk))
    store.put_new("shards/first", b"x" * 20_000)
    with pytest.raises(StorageError, match="the disk is full; free room and start again, what was committed is kept"):
        create(store, "shards/second", b"y" * 60_000)
    assert store.list("shards") == ["shards/first"]
    assert store.get("shards/first") == b"x" * 20_000


def test_a_refused_write_takes_no_room(small_disk: Path) -> None:
    store = Store(str(small_disk))
    for _ in range(3):
        with pytest.raises(StorageError):
            store.put_new("shards/large", b"y" * 70_000)
    assert store.put_new("shards/small", b"z" * 40_000)
