"""What claiming and committing cost with a thousand ranks on one machine: `make bench-claims`.

Every rank is a real process (forked from one that has imported torch) that runs the library's own worker, board and storage; only the
model is replaced, by a sleep as long as the plan says. The rendezvous store is a process of its own, as torchrun's agent is, and
the run a folder. Costs of the shards are lognormal with a mean of one second.

CPU seconds are those of whole processes (`CLOCK_PROCESS_CPUTIME_ID`, every thread counts), latencies are wall time, and so
contain the wait for a core: with 1,024 processes on two cores that is most of it. What was committed is counted from the files.
The table goes to `benchmarks/README.md` with `--write`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe_machine, write_block
from torch.distributed import TCPStore

import eval_core.work.worker as worker_module
from eval_core.metrics.score import NOT_ASKED
from eval_core.plan.types import ExampleTable, ItemTable, MicroBatchTable, Plan, RequestTable, ShardKind, shard_id
from eval_core.spec import Audit, EvalSpec, PerplexityTask
from eval_core.storage import Store
from eval_core.work.agenda import Agenda, draw_up
from eval_core.work.allreduce import Member, all_reduce, arrange
from eval_core.work.board import Board, open_store
from eval_core.work.commit import commit_shard, scan_committed
from eval_core.work.forward import Scored
from eval_core.work.live import Live
from eval_core.work.place import Place
from eval_core.work.vectors import pack

RANKS_PER_NODE = 8
TOKENS = 256
"""Scored tokens of a shard."""
SIGMA = 0.5
"""Of the logarithm of a shard's seconds."""
UNIT = 1e9
"""Cost units of a second."""
PATIENCE = 300.0
LIMIT = 900.0
"""Seconds after which a run that hasn't ended is ended."""

Ledger = dict[str, list[tuple[float, float]]]
"""Step -> wall and CPU seconds of each call."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--shards", type=int, default=65536)
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    options = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    plan = make_plan(options.shards)
    with tempfile.TemporaryDirectory() as scratch:
        store_cpu = run(plan, options.ranks, Path(scratch))
        table = describe(plan, options.ranks, store_cpu, Path(scratch))
    print(table)
    if options.write:
        write_block("claims", table)


def make_plan(n: int) -> Plan:
    """A plan of `n` shards of one micro-batch, one document each."""
    draw = np.random.default_rng(0).lognormal(-(SIGMA**2) / 2, SIGMA, n)
    each, ones = np.arange(n + 1, dtype=np.int64), np.ones(n, dtype=np.int32)
    plan = Plan(
        spec=EvalSpec(
            name="claims",
            model="none",
            tasks=(PerplexityTask(type="perplexity", name="docs", data="none"),),
            audit=Audit(micro_batches=0),
        ),
        model={"files": {}, "total_parameters": 0},
        tokenizer="",
        requests=RequestTable(
            tokens=np.zeros(n * TOKENS, dtype=np.int32),
            offsets=each * TOKENS,
            n_scored=ones * TOKENS,
            generation=-ones,
            shared=0 * ones,
        ),
        micro_batches=MicroBatchTable(
            first_request=each,
            rows=ones,
            length=ones * TOKENS,
            cost=np.ceil(draw / draw.mean() * UNIT).astype(np.int64),
            first_of_shard=each,
        ),
        items=ItemTable(
            example=each[:-1],
            first=ones,
            link_offsets=each,
            link_request=each[:-1],
            link_characters=ones * TOKENS,
            link_bytes=ones * TOKENS,
        ),
        examples=ExampleTable(
            task=0 * ones,
            gold=-ones,
            truncated=0 * ones,
            rejoined=0 * ones,
            words=ones,
            bytes=each[:-1],
            seed=each[:-1],
            documents=[""] * n,
            prompts=[""] * n,
            targets=[""] * n,
        ),
        audited=np.empty(0, dtype=np.int64),
        generations=(),
        n_requested=n,
        locations={},
    )
    _ = (
        plan.digest,
        plan.main_costs,
        plan.items_by_home,
        plan.last_request,
        plan.main_shard_of_batch,
    )  # once, before the fork
    return plan


class Sleeper(worker_module.Worker):
    """A worker that sleeps where others compute."""

    nll = np.random.default_rng(1).gamma(2, 1, 4096).astype(np.float32)

    def __init__(self, ledger: Ledger, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ledger = ledger

    def _load(self, dtype: str) -> Any:
        return None

    def _score(self, kind: ShardKind, batch: int, model: Any) -> Scored:
        time.sleep(float(self.plan.micro_batches.cost[batch]) / UNIT)
        start = batch % (len(self.nll) - TOKENS)
        return Scored(nll=self.nll[start : start + TOKENS], greedy=NOT_ASKED)

    def _main_claims(self) -> Iterator[int]:
        claim = timed(self.ledger["claim"], super()._main_claims().__next__)
        while True:
            try:
                number = claim()
            except StopIteration:
                return
            yield number


def timed(times: list[tuple[float, float]], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose calls leave their wall and CPU seconds in `times`."""

    def call(*arguments: Any, **named: Any) -> Any:
        wall, cpu = time.perf_counter(), time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            times.append((time.perf_counter() - wall, time.process_time() - cpu))

    return call


def work(plan: Plan, place: Place, folder: Path) -> None:
    """One rank, from the rendezvous to the goodbye. The store's process goes first where they share the cores."""
    os.nice(10)
    ledger: Ledger = defaultdict(list)
    store = Store(str(folder / "run"))
    shared = timed(ledger["rendezvous"], open_store)(place, PATIENCE)
    board = Board(shared, place, PATIENCE)
    live = timed(ledger["live start"], Live)(store, plan, board)
    board.publish(f"here/{place.rank}", True)
    if place.rank == 0:
        board.wait_for([f"here/{rank}" for rank in range(place.world_size)], "rank 0 waited for the others to start")
        committed = scan_committed(store, plan, board.attempt)
        agenda = draw_up(plan, committed)
        live.begin(committed, agenda)
        board.publish("agenda", agenda.to_json())
    agenda = Agenda(**timed(ledger["agenda"], board.read)("agenda"))
    worker_module.commit_shard = timed(ledger["commit"], commit_shard)  # type: ignore[attr-defined]
    board.beat = timed(ledger["beat"], board.beat)  # type: ignore[method-assign]
    worker = Sleeper(ledger, store, plan, board, live, agenda, folder, torch.device("cpu"))
    began = time.monotonic()
    worker.run()
    ended = time.monotonic()
    report = {"node": place.node, "device": "cpu"}
    reports = timed(ledger["meet"], board.meet)(report, idle=live.look_round)
    live.conclude()
    members = [Member(rank=r, **said) for r, said in enumerate(reports)]
    levels = arrange(members, place.rank)
    vector = pack(worker.states, worker.committed)
    total = timed(ledger["all-reduce"], all_reduce)(vector, levels, place.rank, shared, worker.device, PATIENCE)
    assert total[-plan.n_shards :].tolist() == [1] * plan.n_shards
    timed(ledger["leave"], board.leave)()
    live.close()
    used = resource.getrusage(resource.RUSAGE_SELF)
    left = {"ledger": dict(ledger), "began": began, "ended": ended, "cpu": used.ru_utime + used.ru_stime}
    (folder / f"rank-{place.rank}.pickle").write_bytes(pickle.dumps(left))


def host_store(port: int, folder: Path) -> None:
    """The rendezvous store, until it is told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=PATIENCE))
    try:
        while True:
            signal.pause()
    finally:
        used = resource.getrusage(resource.RUSAGE_SELF)
        (folder / "store.json").write_text(json.dumps(used.ru_utime + used.ru_stime))
        del store


def run(plan: Plan, ranks: int, folder: Path) -> float:
    """All ranks on `plan`; returns the CPU seconds of the store's process.

    Raises:
        SystemExit: a rank failed, or they took too long; all were ended.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    gc.freeze()
    hosting = fork(lambda: host_store(port, folder))
    running = set()
    try:
        for rank in range(ranks):
            node, local = divmod(rank, RANKS_PER_NODE)
            place = Place(rank=rank, world_size=ranks, local_rank=local, node=node, host=f"node-{node}", launched=True)
            environment = {"RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
            os.environ |= {name: str(value) for name, value in environment.items()}
            running.add(fork(lambda place=place: work(plan, place, folder)))
        deadline = time.monotonic() + LIMIT
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            running.discard(pid)
            if status != 0 or pid == hosting or time.monotonic() > deadline:
                raise SystemExit("a rank failed; its reason stands above" if status else "the ranks took too long")
            if pid == 0:
                time.sleep(0.1)
    finally:
        for pid in running:
            os.kill(pid, signal.SIGKILL)
        os.kill(hosting, signal.SIGTERM)
        os.waitpid(hosting, 0)
    return float(json.loads((folder / "store.json").read_text()))


def fork(body: Callable[[], None]) -> int:
    """Run `body` in a process of its own; returns its number."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        body()
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def describe(plan: Plan, ranks: int, store_cpu: float, folder: Path) -> str:
    """The table; first the committed files are counted."""
    store = Store(str(folder / "run"))
    found = scan_committed(store, plan, "bench")
    wanted = [shard_id("main", n) for n in range(plan.n_shards)]
    whole = sorted(found.files) == wanted and not found.set_aside and not store.list("violations")
    left = [pickle.loads((folder / f"rank-{rank}.pickle").read_bytes()) for rank in range(ranks)]
    seconds = int(plan.micro_batches.cost.sum()) / UNIT
    wall = max(one["ended"] for one in left) - min(one["began"] for one in left)
    steps = {name: np.array([call for one in left for call in one["ledger"][name]]) for name in left[0]["ledger"]}
    both = float(sum(steps[name][:, 1].sum() for name in ("claim", "beat", "commit"))) + store_cpu
    everything = sum(one["cpu"] for one in left) + store_cpu
    n = len(steps["commit"])
    lines = [
        describe_machine("numpy", "obstore", "torch"),
        "",
        f"{ranks:,} processes, {plan.n_shards:,} shards of {seconds:,.0f} s in all (lognormal, sigma {SIGMA:g}): "
        f"{len(found.files):,} files, {'every shard exactly once' if whole and n == len(wanted) else 'NOT EVERY SHARD ONCE'} "
        f"({n:,} commits).",
        "",
        "| | value | to reach |",
        "| :-- | --: | --: |",
        f"| CPU of claims, heartbeats, commits and the store's process, of the shards' time | {both / seconds:.2%} | 1 % |",
        f"| CPU of all processes, start and end included, of the shards' time | {everything / seconds:.2%} | |",
        f"| first claim to last commit | {wall:.1f} s | {seconds / ranks:.1f} s |",
        "",
        "| step | calls | CPU s of all | of the shards' time | CPU ms a call | p50 ms | p99 ms | longest s |",
        "| :-- | --: | --: | --: | --: | --: | --: | --: |",
        *(row(name, times, seconds) for name, times in steps.items()),
        f"| the store's process | | {store_cpu:.1f} | {store_cpu / seconds:.3%} | | | | |",
    ]
    return "\n".join(lines)


def row(name: str, times: np.ndarray, seconds: float) -> str:
    wall, cpu = times[:, 0], float(times[:, 1].sum())
    p50, p99 = np.quantile(wall, [0.5, 0.99]) * 1e3
    return (
        f"| {name} | {len(wall):,} | {cpu:.1f} | {cpu / seconds:.3%} | {1e3 * cpu / len(wall):.2f} "
        f"| {p50:.1f} | {p99:.1f} | {wall.max():.2f} |"
    )


if __name__ == "__main__":
    main()
