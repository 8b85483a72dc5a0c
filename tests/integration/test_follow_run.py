"""The metrics port of a real run on two processes: one of them serves, and what it says grows."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path


def test_prometheus_can_follow_a_run(tiny_spec: Callable[..., Path], tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    spec = tiny_spec(shard_cost=1, tokens=64)
    run = subprocess.Popen(
        [sys.executable, "-m", "eval_core.cli", "run", str(spec), "--run", str(tmp_path / "run"), "--nproc", "2"],
        env=os.environ | {"CONCORD_METRICS_PORT": str(port)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    seen: list[str] = []
    while run.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                seen.append(answer.read().decode())
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.02)  # the last standing, which has every value, is there for a fraction of a second
    _, errors = run.communicate()
    assert run.returncode == 0, errors
    committed = [
        int(found[1]) for text in seen if (found := re.search(r"^concord_shards_committed (\d+)$", text, re.M))
    ]
    assert committed
    assert committed == sorted(committed)
    assert committed[-1] > 0
    assert re.search(r'^concord_task_value\{task="docs"\} \d', seen[-1], re.M)
