"""Under torchrun itself: one node, and two nodes whose all-reduce has two levels."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from processes import children, frozen, until

from eval_core.plan.files import load_plan
from eval_core.reduce import load_reduction, load_shards
from eval_core.storage import Store


def start_torchrun(run: Path, nodes: int, per_node: int, *options: str) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", f"--nproc-per-node={per_node}"),
                *options,
                *(f"--node-rank={node}", "--master-addr=127.0.0.1", f"--master-port={port}"),
                *("-m", "eval_core.cli", "work"),
            ],
            env=os.environ | {"CONCORD_RUN": str(run)},
            stderr=subprocess.PIPE,
        )
        for node in range(nodes)
    ]


def torchrun(run: Path, nodes: int, per_node: int) -> None:
    for agent in start_torchrun(run, nodes, per_node):
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


def test_torchrun_restarts_after_a_killed_rank(concord: Callable, tiny_spec: Callable, tmp_path: Path) -> None:
    """The agent's store outlives the attempt: a ticket of the first must not count in the second."""
    spec = tiny_spec(shard_cost=1, tokens=64)
    assert concord("run", spec, "--run", tmp_path / "one").returncode == 0
    run = tmp_path / "run"
    assert concord("plan", spec, "--run", run).returncode == 0
    (agent,) = start_torchrun(run, 1, 2, "--max-restarts=1")
    until(lambda: len(list(run.glob("shards/main/*.json"))) >= 10)
    survivor, victim = children(agent.pid)
    with frozen([survivor]):
        os.kill(victim, signal.SIGKILL)
    _, stderr = agent.communicate(timeout=300)
    assert agent.returncode == 0, stderr.decode()
    assert concord("reduce", "--run", run).returncode == 0
    assert concord("verify", "--run", run).returncode == 0
    assert load_reduction(Store(str(run))).digest == load_reduction(Store(str(tmp_path / "one"))).digest
    store = Store(str(run))
    assert len({file.provenance.attempt for file in load_shards(store, load_plan(store)).files.values()}) == 2
