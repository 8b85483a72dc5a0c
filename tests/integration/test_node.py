"""Nodes of a PyTorchJob as the operator starts them, with its environment, as real processes of one machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import children, frozen, until

from eval_core.errors import UsageError
from eval_core.plan.files import load_plan
from eval_core.reduce import load_reduction, load_shards, reduce_run
from eval_core.storage import Store
from eval_core.verify.run import verify_run
from eval_core.work.node import describe_failure, read_settings, root_cause

OPERATOR = {
    "PYTHONUNBUFFERED": "1",
    "MASTER_PORT": "23456",
    "PET_MASTER_PORT": "23456",
    "MASTER_ADDR": "concord-x-1-master-0",
    "PET_MASTER_ADDR": "concord-x-1-master-0",
    "WORLD_SIZE": "4",
    "RANK": "1",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "2",
    "PET_NNODES": "2",
    "CONCORD_RUN": "s3://bucket/run",
}

NODE = ("-m", "eval_core.work.node")
IMPATIENT = (
    "-c",
    "import sys; from eval_core.work.gathering import Patience; from eval_core.work.node import read_settings, run_node; "
    "sys.exit(run_node(read_settings(), Patience(silent=3)))",
)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The pods of a job. `start` is what the kubelet does, first and after a failure; logs are per pod."""

    run: Path
    nodes: int
    processes: int
    port: int
    logs: Path
    program: tuple[str, ...]

    def start(self, node: int) -> subprocess.Popen[bytes]:
        environment = {
            "CONCORD_RUN": str(self.run),
            "PET_NNODES": str(self.nodes),
            "PET_NODE_RANK": str(node),
            "PET_NPROC_PER_NODE": str(self.processes),
            "PET_MASTER_ADDR": "127.0.0.1",
            "PET_MASTER_PORT": str(self.port),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "RANK": str(node),
            "WORLD_SIZE": str(self.nodes * self.processes),
        }
        with (self.logs / f"{node}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, *self.program],
                env=os.environ | environment,
                stdout=log,
                stderr=log,
            )

    def log(self, node: int) -> str:
        return (self.logs / f"{node}.log").read_text()


@contextmanager
def job(run: Path, nodes: int, processes: int = 1, program: tuple[str, ...] = NODE) -> Iterator[Job]:
    """A job on the run at `run`, its logs beside it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    logs = run.parent / f"{run.name}-logs"
    logs.mkdir()
    yield Job(run=run, nodes=nodes, processes=processes, port=port, logs=logs, program=program)


def kill_pod(process: subprocess.Popen[bytes]) -> None:
    """What the end of a container's first process does to all of them."""
    for pid in [*children(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()


def committed(run: Path) -> int:
    return len(list(run.glob("shards/*/*.json")))


def finish(job: Job, pods: list[subprocess.Popen[bytes]]) -> None:
    for node, pod in enumerate(pods):
        assert pod.wait(240) == 0, job.log(node)


def check(run: Path, digest: str) -> set[str]:
    """The bits are those of one process, and verified; returns the attempts that committed shards."""
    store = Store(str(run))
    plan = load_plan(store)
    loaded = load_shards(store, plan)
    reduction = reduce_run(store, plan, loaded)
    assert reduction.digest == digest
    assert verify_run(store, plan, loaded, reduction).verdict == "passed"
    assert not list(run.glob("violations/*"))
    return {file.provenance.attempt for file in loaded.files.values()}


SPEC = """
name: nodes
model: {model}
tasks:
  - {{name: docs, type: perplexity, data: {data}/documents.jsonl, window: 64, stride: 48}}
batch: {{tokens: 64, shard_cost: 1}}
audit: {{micro_batches: 2}}
work: {{progress_interval: 0.5, stall_timeout: 60}}
report: {{bootstrap: 50}}
"""


@pytest.fixture(scope="module")
def whole(
    concord: Callable, tiny_model: Path, small_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """(the plan of many small shards, the digest that one process gives)."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "spec.yaml").write_text(SPEC.format(model=tiny_model, data=small_data), encoding="utf-8")
    assert concord("plan", folder / "spec.yaml", "--run", folder / "planned").returncode == 0
    assert concord("run", folder / "spec.yaml", "--run", folder / "one").returncode == 0
    return folder / "planned", load_reduction(Store(str(folder / "one"))).digest


@pytest.fixture
def planned(whole: tuple[Path, str], tmp_path: Path) -> tuple[Path, str]:
    """(a run that is planned and not begun, the digest that it must get)."""
    shutil.copytree(whole[0], tmp_path / "run")
    return tmp_path / "run", whole[1]


def test_nodes_with_several_ranks_give_the_bits_of_one_process(planned: tuple[Path, str]) -> None:
    run, digest = planned
    with job(run, 2, processes=2) as two:
        finish(two, [two.start(node) for node in range(2)])
        assert len(check(run, digest)) == 1
        assert "group 1 of 2 nodes" in two.log(1)
        assert "nothing is missing" not in two.log(0)
        again = [two.start(node) for node in range(2)]
        finish(two, again)
        assert "node 0: nothing is missing" in two.log(0)
        assert "node 1: nothing is missing" in two.log(1)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_pod_that_is_killed_and_started_again(victim: int, planned: tuple[Path, str]) -> None:
    """The other pod isn't started again: it joins the next group, and nothing of the first attempt is in its way."""
    run, digest = planned
    with job(run, 2) as two:
        pods = [two.start(node) for node in range(2)]
        until(lambda: committed(run) >= 5)
        with frozen(children(pods[1 - victim].pid)):
            kill_pod(pods[victim])
            pods[victim] = two.start(victim)
        finish(two, pods)
        assert len(check(run, digest)) == 2
        assert two.log(1 - victim).count(f"node {1 - victim}: group") == 2
        assert "Traceback" not in two.log(0) + two.log(1)


def test_a_rank_that_is_killed_ends_its_pod_with_the_signals_code(planned: tuple[Path, str]) -> None:
    run, digest = planned
    with job(run, 2) as two:
        pods = [two.start(node) for node in range(2)]
        until(lambda: committed(run) >= 5)
        (rank,) = children(pods[1].pid)
        os.kill(rank, signal.SIGKILL)
        assert pods[1].wait(60) == 137
        assert "node 1: rank 1 was ended by SIGKILL; out of memory?" in two.log(1)
        pods[1] = two.start(1)
        finish(two, pods)
        check(run, digest)
        assert "Traceback" not in two.log(0) + two.log(1)


def test_a_pod_that_never_comes_back_is_not_waited_for(planned: tuple[Path, str]) -> None:
    run, digest = planned
    with job(run, 3, program=IMPATIENT) as three:
        pods = [three.start(node) for node in range(3)]
        until(lambda: committed(run) >= 5)
        with frozen([rank for pod in pods[:2] for rank in children(pod.pid)]):
            kill_pod(pods[2])
        finish(three, pods[:2])
        assert "going on without node 2" in three.log(0)
        assert len(check(run, digest)) == 2


def test_an_error_of_rank_0_ends_its_pod_and_not_the_others(planned: tuple[Path, str]) -> None:
    """The others are called off, and don't form a new group before the one with the error has ended."""
    run, _ = planned
    (run / "probe").write_text("in the way", encoding="utf-8")
    with job(run, 2) as two:
        pods = [two.start(node) for node in range(2)]
        assert pods[0].wait(120) == 1
        assert "node 0: rank 0 failed (exit code 1; its reason stands above)" in two.log(0)
        assert two.log(0).count("can't write probe/") == 1
        assert pods[1].poll() is None
        pods[1].terminate()
        assert pods[1].wait(30) == 143


def test_wrong_input_ends_every_pod_with_code_2(
    concord: Callable, tiny_spec: Callable, tiny_model: Path, tmp_path: Path
) -> None:
    """One rank finds it, on one node; the others say the same, so that no launcher starts any of them again."""
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    run = tmp_path / "run"
    assert concord("plan", tiny_spec(model=model), "--run", run).returncode == 0
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-5] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    with job(run, 2) as two:
        pods = [two.start(node) for node in range(2)]
        assert [pod.wait(120) for pod in pods] == [2, 2]
        for node in range(2):
            assert "not the file that was planned" in two.log(node)
            assert "Traceback" not in two.log(node)
    assert committed(run) == 0


def test_a_run_without_a_plan_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with job(tmp_path / "run", 1) as one:
        assert one.start(0).wait(60) == 1
        assert one.log(0).splitlines() == [
            f"error: {tmp_path / 'run'} has no plan/plan.json: make the plan first: concord plan SPEC --run URI"
        ]


def test_sigterm_ends_a_pod_and_its_ranks(planned: tuple[Path, str]) -> None:
    run, _ = planned
    with job(run, 1, processes=2) as one:
        pod = one.start(0)
        until(lambda: committed(run) >= 2)
        ranks = children(pod.pid)
        pod.terminate()
        assert pod.wait(30) == 143
        until(lambda: not any(Path(f"/proc/{rank}").exists() for rank in ranks), 5)
        assert "Traceback" not in one.log(0)


def test_sigterm_ends_a_pod_that_waits_for_the_others(planned: tuple[Path, str]) -> None:
    run, _ = planned
    with job(run, 2) as two:
        pod = two.start(1)
        time.sleep(6)
        assert pod.poll() is None
        pod.terminate()
        assert pod.wait(30) == 143


def test_settings_come_from_the_operators_environment() -> None:
    settings = read_settings(OPERATOR)
    assert (settings.run, settings.node, settings.nodes) == ("s3://bucket/run", 1, 2)
    assert (settings.processes, settings.host, settings.port) == ("2", "concord-x-1-master-0", 23456)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"PET_NNODES": ""}, "PET_NNODES is not set"),
        ({"PET_NNODES": "1:4"}, "PET_NNODES is '1:4', not a whole number"),
        ({"PET_NODE_RANK": "2"}, "PET_NODE_RANK is 2, but PET_NNODES is 2"),
        ({"CONCORD_RUN": ""}, "CONCORD_RUN is not set"),
    ],
)
def test_a_setting_that_is_wrong_is_named(change: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_settings(OPERATOR | change)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ({0: 1}, (0, 1)),
        ({1: 3, 0: 1}, (0, 1)),
        ({1: 3, 0: -15}, (1, 3)),
        ({0: 3, 1: 3}, (0, 3)),
        ({0: -9, 1: -15}, (0, -9)),
        ({1: -15}, (1, -15)),
        ({0: 2, 1: 2}, (0, 2)),
    ],
)
def test_the_root_cause_is_no_rank_that_only_followed(codes: dict[int, int], expected: tuple[int, int]) -> None:
    assert root_cause(codes) == expected


def test_a_failure_is_described() -> None:
    assert describe_failure(3, -9) == "rank 3 was ended by SIGKILL; out of memory?"
    assert describe_failure(3, -11) == "rank 3 was ended by SIGSEGV"
    assert describe_failure(3, 1) == "rank 3 failed (exit code 1; its reason stands above)"
