"""Under torchrun itself: one node, and two nodes whose all-reduce has two levels."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from eval_core.reduce import load_reduction
from eval_core.storage import Store


def torchrun(run: Path, nodes: int, per_node: int) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agents = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={per_node}"),
                *(f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"),
                *("-m", "eval_core.cli", "work"),
            ],
            env=os.environ | {"CONCORD_RUN": str(run)},
            stderr=subprocess.PIPE,
        )
        for node in range(nodes)
    ]
    for agent in agents:
        _, stderr = agent.communicate(timeout=300)
        assert agent.returncode == 0, stderr.decode()


def test_torchrun_gives_the_bits_of_one_process(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    spec = tiny_spec()
    assert concord("run", spec, "--run", tmp_path / "one").returncode == 0
    digest = load_reduction(Store(str(tmp_path / "one"))).digest
    for nodes, per_node in ((1, 2), (2, 2)):
        run = tmp_path / f"{nodes}x{per_node}"
        assert concord("plan", spec, "--run", run).returncode == 0
        torchrun(run, nodes, per_node)
        assert concord("reduce", "--run", run).returncode == 0
        verified = concord("verify", "--run", run)
        assert verified.returncode == 0, verified.stderr
        assert load_reduction(Store(str(run))).digest == digest
        (path,) = run.glob("attempts/*/allreduce.json")
        record = json.loads(path.read_text())
        assert (record["world_size"], record["nodes"]) == (nodes * per_node, nodes)
        assert record["backend_leaders"] == "gloo"
        assert record["shards"] == list(range(len(load_reduction(Store(str(run))).shards)))
