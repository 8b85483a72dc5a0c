"""One rank of an attempt: claim, compute, commit, until nothing is missing; then meet the others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed import DistError

from eval_core.errors import CalledOffError, ConcordError, ModelError, WorkerError, first_line
from eval_core.metrics.score import Scores, initial_states, score_items
from eval_core.metrics.states import State, merge_states, states_to_json
from eval_core.model_files import hash_file
from eval_core.plan.files import load_plan, model_folder
from eval_core.plan.types import Plan, ShardKind, parse_shard_id, shard_id
from eval_core.shard_file import Provenance, ShardResult
from eval_core.storage import Store
from eval_core.tokenizer import Tokenizer, load_tokenizer
from eval_core.work.agenda import Agenda, draw_up
from eval_core.work.allreduce import Member, all_reduce, arrange
from eval_core.work.board import Board, open_store
from eval_core.work.claims import main_claims
from eval_core.work.commit import commit_shard, scan_committed
from eval_core.work.environment import describe_environment
from eval_core.work.forward import Scored, score_alone, score_micro_batch
from eval_core.work.generate import generate_micro_batch
from eval_core.work.live import Live
from eval_core.work.model import Model, free, load_model, set_up_compute
from eval_core.work.place import Place, read_place
from eval_core.work.takeover import take_over
from eval_core.work.vectors import pack, unpack

ATTEMPTS = "attempts"


def work(uri: str, reuse: Sequence[str]) -> None:
    """Do this rank's part of what is missing in the run at `uri`, and in the runs `reuse`.

    Raises:
        ConcordError: the plan, the storage, the model, another run or another rank stands in the way.
    """
    place = read_place()
    store = Store(uri)
    plan = load_plan(store)
    try:
        shared = open_store(place, plan.spec.work.stall_timeout)
        board = Board(shared, place, plan.spec.work.stall_timeout)
        try:
            _attempt(store, plan, board, shared, place, reuse)
        except CalledOffError:
            raise
        except ConcordError as error:
            board.call_off(f"rank {place.rank}: {error}", error.exit_code)
            raise
    except DistError as error:
        raise CalledOffError(
            f"rank {place.rank} lost the rendezvous store, so rank 0 or its node is gone: {first_line(error)}"
        ) from error


def _attempt(store: Store, plan: Plan, board: Board, shared: Any, place: Place, reuse: Sequence[str]) -> None:
    live = Live(store, plan, board)
    try:
        if place.rank == 0:
            store.probe()
            committed = scan_committed(store, plan, board.attempt)
            missing = [
                shard for shard in plan.shard_ids() if shard.startswith("main/") and shard not in committed.files
            ]
            taken = take_over(store, plan, missing, reuse)
            committed.files |= taken
            agenda = draw_up(plan, committed)
            live.begin(committed, agenda)
            if reuse:
                live.say(f"reused {len(taken)} of {len(missing)} missing main shards from {', '.join(reuse)}")
            board.publish("agenda", agenda.to_json())
        agenda = Agenda(**board.read("agenda"))
        device = set_up_compute(plan.spec.compute, place.local_rank)
        if device.type == "cpu" and torch.cuda.is_available() and place.rank == 0:
            live.say("a GPU is here, but the spec says `compute: {device: cpu}`; with cuda it is another plan")
        folder = _check_weights(plan, board)
        worker = Worker(store, plan, board, live, agenda, folder, device)
        worker.run()
        reports = board.meet({"node": place.node, "device": str(device)}, idle=live.look_round)
        live.conclude()
        members = [Member(rank=rank, **report) for rank, report in enumerate(reports)]
        _reduce_over_ranks(store, plan, members, board, shared, worker, live)
        board.leave()
    finally:
        live.close()


class Worker:
    """What one rank has done in this attempt.

    Attributes:
        states: exact states of the main shards that it committed.
        committed: how often it committed each main shard (0 or 1), int64[n shards].
        outcomes: how its commits ended.
    """

    def __init__(
        self, store: Store, plan: Plan, board: Board, live: Live, agenda: Agenda, folder: Path, device: torch.device
    ) -> None:
        self.store = store
        self.plan = plan
        self.board = board
        self.live = live
        self.agenda = agenda
        self.folder = folder
        self.device = device
        self.states: dict[str, State] = initial_states(plan)
        self.committed = np.zeros(plan.n_shards, dtype=np.int64)
        self.outcomes = {"committed": 0, "duplicate": 0, "violation": 0}
        self.busy_seconds = 0.0
        self._model: tuple[str, Model] | None = None

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's, which only generation needs."""
        return load_tokenizer(self.folder)

    def run(self) -> None:
        """Claim and compute until nothing is left: main shards first, then replays and requests alone, then the reference."""
        for number in self._main_claims():
            self._do("main", number)
        self.board.wait_for_tickets(len(self.agenda.main))
        for number in self._replay_claims():
            self._do("replay", number)
        for number in self._claims("alone", self.agenda.alone):
            self._do("alone", number)
        for number in self._claims("reference", self.agenda.reference):
            self._do("reference", number)
        self._model = None
        free(self.device)
        self.live.finish()
        self._record()

    def _main_claims(self) -> Iterator[int]:
        replayed = set(self.plan.main_shard_of_batch[self.agenda.replay].tolist())
        for ticket in main_claims(self.board, self.plan.main_costs[self.agenda.main].tolist()):
            number = self.agenda.main[ticket]
            if number in replayed:
                self.board.publish(f"author/{number}", self._name)
            yield number

    def _replay_claims(self) -> Iterator[int]:
        """Replays whose original is another process's; one's own only where there is no other."""
        for number in self.agenda.replay:
            original = int(self.plan.main_shard_of_batch[number])
            author = self.agenda.authors.get(shard_id("main", original))
            if author is None:
                author = self.board.read(f"author/{original}")
            own = author == self._name and self.board.place.world_size > 1
            if not own and self.board.claim(shard_id("replay", number)):
                yield number

    def _claims(self, kind: ShardKind, numbers: list[int]) -> Iterator[int]:
        return (number for number in numbers if self.board.claim(shard_id(kind, number)))

    @property
    def _name(self) -> str:
        return f"{self.board.attempt}:{self.board.place.rank}"

    def _do(self, kind: ShardKind, number: int) -> None:
        shard = shard_id(kind, number)
        model = self._load(self.plan.reference_dtype if kind == "reference" else self.plan.spec.compute.dtype)
        requests = self.plan.shard_requests(shard)
        started = time.time()
        parts: list[Scored] = []
        for batch in self.plan.shard_batches(shard):
            parts.append(self._score(kind, batch, model))
            self.board.beat()
            self.live.after_micro_batch(batch, lambda: self._with_unfinished(shard, parts))
        scores = _joined(self.plan, requests, parts)
        states = score_items(self.plan, self.plan.items_of(number), scores) if kind == "main" else {}
        finished = time.time()
        self.busy_seconds += finished - started
        result = ShardResult(
            plan=self.plan.digest,
            shard=shard,
            nll=scores.nll,
            greedy=scores.greedy,
            generated=tuple(scores.generated.values()),
            states=states,
        )
        outcome = commit_shard(self.store, result, self._provenance(started, finished, shard))
        self.outcomes[outcome] += 1
        if outcome == "violation":
            self.live.say(f"determinism violation: {shard} differs from what is committed; see violations/ in the run")
        if kind == "main" and outcome == "committed":
            self.committed[number] = 1
            self.states = merge_states(self.states, states)
        self.live.after_shard(self.plan.shard_cost(shard), self.states)

    def _score(self, kind: ShardKind, batch: int, model: Model) -> Scored:
        try:
            if kind == "alone":
                return score_alone(self.plan, self.plan.shard_requests(shard_id(kind, batch)), model)
            if self.plan.generation_of(batch) is None:
                return score_micro_batch(self.plan, batch, model)
            return generate_micro_batch(self.plan, batch, model, self.tokenizer, self.board.beat)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            rows, length = (
                int(column[batch]) for column in (self.plan.micro_batches.rows, self.plan.micro_batches.length)
            )
            raise WorkerError(
                f"out of memory in a micro-batch of {rows} rows of {length} tokens; a smaller batch.tokens, batch.generated_tokens or "
                "compute.head_rows makes a new plan that needs less"
            ) from error

    def _with_unfinished(self, shard: str, parts: list[Scored]) -> dict[str, State]:
        """The running states with what is done of an unfinished main shard."""
        kind, number = parse_shard_id(shard)
        if kind != "main":
            return self.states
        requests = self.plan.shard_requests(shard)
        batches = self.plan.shard_batches(shard)
        stop = int(self.plan.micro_batches.first_request[batches.start + len(parts)])
        done = range(requests.start, stop)
        items = self.plan.items_of(number)
        finished = items[self.plan.last_request[items] < stop]
        return merge_states(self.states, score_items(self.plan, finished, _joined(self.plan, done, parts)))

    def _load(self, dtype: str) -> Model:
        """The model in `dtype`; only one is held at a time, and none by a rank that finds no work."""
        if self._model is None or self._model[0] != dtype:
            self._model = None
            free(self.device)
            spec = self.plan.spec
            model = load_model(
                self.folder,
                spec.compute,
                dtype,
                self.device,
                allow_pickle=spec.allow_pickle,
                trees=bool(self.plan.requests.shared.any()),
                generates=bool(self.plan.generations),
            )
            self._model = (dtype, model)
            self.board.beat()
        return self._model[1]

    def _provenance(self, started: float, finished: float, shard: str) -> Provenance:
        place = self.board.place
        batches = self.plan.shard_batches(shard)
        return Provenance(
            attempt=self.board.attempt,
            rank=place.rank,
            world_size=place.world_size,
            host=place.host,
            node=place.node,
            device=str(self.device),
            started=started,
            finished=finished,
            tokens=int(self.plan.micro_batches.tokens[batches.start : batches.stop].sum()),
        )

    def _record(self) -> None:
        record = {
            "rank": self.board.place.rank,
            "world_size": self.board.place.world_size,
            "host": self.board.place.host,
            "node": self.board.place.node,
            "outcomes": self.outcomes,
            "busy_seconds": self.busy_seconds,
            "environment": describe_environment(self.device),
        }
        key = f"{ATTEMPTS}/{self.board.attempt}/rank-{self.board.place.rank:05d}.json"
        self.store.put_new(key, json.dumps(record, indent=1).encode())


def _joined(plan: Plan, requests: range, parts: list[Scored]) -> Scores:
    nll: Any = np.concatenate([part.nll for part in parts])
    greedy = np.concatenate([part.greedy for part in parts])
    return Scores.of(plan, requests, nll, greedy, [text for part in parts for text in part.generated])


def _check_weights(plan: Plan, board: Board) -> Path:
    """Prove, once on each node, that the model here is the one that was planned; returns its folder."""
    place = board.place
    if place.local_rank == 0:
        folder = model_folder(plan)
        for name, expected in plan.model["files"].items():
            path = folder / name
            if not path.is_file():
                raise ModelError(f"{path}: missing on {place.host}; every node needs the model at this path")
            if path.stat().st_size != expected["size"] or hash_file(path) != expected["sha256"]:
                raise ModelError(
                    f"{path}: not the file that was planned (its digest differs); restore it, or start a new run"
                )
        board.publish(f"weights/{place.node}", str(folder))
    return Path(board.read(f"weights/{place.node}"))


def _reduce_over_ranks(
    store: Store, plan: Plan, members: list[Member], board: Board, shared: Any, worker: Worker, live: Live
) -> None:
    place = board.place
    levels = arrange(members, place.rank)
    started = time.time()
    vector = pack(worker.states, worker.committed)
    try:
        total = all_reduce(vector, levels, place.rank, shared, worker.device, plan.spec.work.stall_timeout)
    except RuntimeError as error:
        raise WorkerError(
            f"the all-reduce broke off ({first_line(error)}); start again, all shards are committed"
        ) from error
    if place.rank != 0:
        return
    states, covered = unpack(total, worker.states)
    if place.world_size > 1:
        between = f", {levels.backend_leaders} between {len(levels.leaders)} nodes" if len(levels.leaders) > 1 else ""
        live.say(f"all-reduce of {place.world_size} ranks: {levels.backend_node} within the node{between}")
    record = {
        "attempt": board.attempt,
        "plan": plan.digest,
        "world_size": place.world_size,
        "nodes": len(levels.leaders),
        "backend_node": levels.backend_node,
        "backend_leaders": levels.backend_leaders,
        "seconds": time.time() - started,
        "states": states_to_json(states),
        "shards": np.flatnonzero(covered).tolist(),
        "times_counted": sorted(set(covered[covered > 0].tolist())),
    }
    store.put_new(f"{ATTEMPTS}/{board.attempt}/allreduce.json", json.dumps(record).encode())
