"""A model by its hub name, fetched over HTTP from a server that answers as the hub does; and a hub that can't be reached."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

NAME = "somebody/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """One model in one revision: what it has, and its files. Asked for anything else it says what the hub says."""

    def __init__(self, folder: Path, asked: Counter[str], *arguments: object) -> None:
        self.folder = folder
        self.asked = asked
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.asked[f"{self.command} {path}"] += 1
        files = {f.name: f for f in self.folder.iterdir()}
        name = path.rpartition("/")[2]
        if path.startswith(f"/api/models/{NAME}/revision/"):
            siblings = [{"rfilename": file} for file in sorted(files)]
            self._send(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings}).encode(), "application/json", body)
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            tree = [{"type": "file", "path": n, "size": f.stat().st_size, "oid": _sha1(f)} for n, f in files.items()]
            self._send(json.dumps(tree).encode(), "application/json", body)
        elif path.startswith(f"/{NAME}/resolve/") and name in files:
            self._send(files[name].read_bytes(), "application/octet-stream", body, _sha1(files[name]))
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, data: bytes, kind: str, body: bool, etag: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{etag}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _sha1(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


@pytest.fixture
def hub(tiny_model: Path) -> Iterator[tuple[str, Counter[str]]]:
    """(URL, how often each path was asked for) of a hub with one model."""
    asked: Counter[str] = Counter()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, tiny_model, asked))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    thread.join()


def spec(folder: Path, model: object, data: Path) -> Path:
    path = folder / "spec.yaml"
    path.write_text(
        f"name: hub\nmodel: {model}\ntasks:\n  - {{name: docs, type: perplexity, data: {data}/documents.jsonl, limit: 3}}\n"
        "audit: {micro_batches: 1}\n"
    )
    return path


def test_a_name_gives_what_the_folder_gives(
    concord: Callable, hub: tuple[str, Counter[str]], tiny_model: Path, small_data: Path, tmp_path: Path
) -> None:
    url, asked = hub
    cache = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    by_name = concord("run", spec(tmp_path, NAME, small_data), "--run", tmp_path / "name", **cache)
    assert by_name.returncode == 0, by_name.stderr
    assert asked[f"GET /{NAME}/resolve/{COMMIT}/model.safetensors"] == 1

    by_path = concord("run", spec(tmp_path, tiny_model, small_data), "--run", tmp_path / "folder")
    assert by_path.returncode == 0, by_path.stderr
    same = concord("compare", tmp_path / "name", tmp_path / "folder")
    assert same.returncode == 0, same.stdout


def test_a_hub_out_of_reach_is_one_line(concord: Callable, small_data: Path, tmp_path: Path) -> None:
    cache = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "cache")}
    refused = concord("plan", spec(tmp_path, NAME, small_data), "--run", tmp_path / "run", **cache)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: model '{NAME}': there is no folder ")
    assert refused.stderr.rstrip().endswith("give the path of a local copy")
    assert len(refused.stderr.strip().split("\n")) == 1


def test_a_name_that_the_hub_lacks_is_one_line(
    concord: Callable, hub: tuple[str, Counter[str]], small_data: Path, tmp_path: Path
) -> None:
    cache = {"HF_ENDPOINT": hub[0], "HF_HOME": str(tmp_path / "cache")}
    refused = concord("plan", spec(tmp_path, "somebody/else", small_data), "--run", tmp_path / "run", **cache)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: model 'somebody/else'")
    assert len(refused.stderr.strip().split("\n")) == 1
