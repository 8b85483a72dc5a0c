"""Which nodes work together: a rendezvous for torchrun's agent in which any node may be lost, and may come back.

Node 0's process holds the store and keeps the list. A round is open until node 0 closes it; whoever sits in it then is the
group, and its nodes start their ranks. Whoever comes later sits in the next round, which the agents of the group notice: they end
their ranks and sit down there too. What was committed stays, and any number of ranks gives the same bits, so a round needn't be full:
a node that was seen and is silent isn't waited for, one that was never seen for a while only.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from eval_core.errors import WorkerError, first_line

_POLL = 0.2
_BEAT_EVERY = 2.0
_CONNECT_TIMEOUT = 5.0
_STORE_TIMEOUT = 60.0
_READING_TIME = 3.0


class AllCommitted(Exception):
    """Nothing is missing, so no group is needed."""


@dataclass(frozen=True, kw_only=True)
class Seat:
    """Where a node belongs.

    Attributes:
        node, nodes: its number, and how many there should be.
        host, port: where node 0 listens.
    """

    node: int
    nodes: int
    host: str
    port: int


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Seconds.

    Attributes:
        unseen: node 0 waits for nodes that it never saw.
        silent: without a sign of life, then a node counts as lost.
        leader: the others look for node 0.
    """

    unseen: float = 300.0
    silent: float = 60.0
    leader: float = 1800.0


class Gathering(RendezvousHandler):
    """One node's view. `complete` tells whether nothing is missing; `say` takes a line for the user."""

    def __init__(
        self, seat: Seat, patience: Patience, complete: Callable[[], bool], say: Callable[[str], None]
    ) -> None:
        self.seat = seat
        self.patience = patience
        self._complete = complete
        self._say = say
        self._store: Any = None
        self._life = ""
        self._round = 0
        self._start = 0
        self._beats = 0
        self._beaten = 0.0
        self._roll = _Roll(seat.nodes, patience)

    def get_backend(self) -> str:
        return "concord"

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_run_id(self) -> str:
        """Different for every round, also where node 0 started again: ranks keep their keys below it."""
        return f"{self._life}-{self._round}"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nothing: the next process of a node is always welcome."""

    def shutdown(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Sit in the open round until a group with this node is made.

        Raises:
            AllCommitted: there is nothing to do.
            WorkerError: node 0 can't be found, or another process has taken this node's place.
        """
        while True:
            try:
                if self._store is None:
                    self._connect()
                members = self._sit()
            except DistError:
                self._lose_store()
                continue
            if members is not None:
                break
        rank = members.index(self.seat.node)
        self._say(f"node {self.seat.node}: group {self._round} of {len(members)} nodes")
        host = "127.0.0.1" if self._leads else self.seat.host
        return RendezvousInfo(
            PrefixStore(f"agents/{self.get_run_id()}", self._store),
            rank,
            len(members),
            RendezvousStoreInfo(master_addr=host, master_port=self.seat.port),
        )

    def num_nodes_waiting(self) -> int:
        """1 where a new group must be made: a node came (back), was lost, or node 0 is gone."""
        try:
            if self._beat_and_call_roll():
                self._store.set(f"knock/{self._round + 1}", "")
            return int(self._store.check([f"knock/{self._round + 1}"]))
        except DistError:
            self._lose_store()
            return 1

    @property
    def _leads(self) -> bool:
        return self.seat.node == 0

    def _connect(self) -> None:
        if self._leads:
            self._store = self._host_store()
            self._store.set("life", uuid.uuid4().hex[:8])
            self._store.set("open", "1")
            self._roll = _Roll(self.seat.nodes, self.patience)
        else:
            self._store = self._find_leader()
        self._life = self._store.get("life").decode()
        self._start = self._store.add(f"starts/{self.seat.node}", 1)

    def _host_store(self) -> Any:
        try:
            return TCPStore(
                "127.0.0.1",
                self.seat.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=_STORE_TIMEOUT),
            )
        except DistError as error:
            raise WorkerError(f"node 0 can't listen on port {self.seat.port}: {first_line(error)}") from error

    def _find_leader(self) -> Any:
        deadline = time.monotonic() + self.patience.leader
        while True:
            try:
                store = TCPStore(
                    self.seat.host,
                    self.seat.port,
                    is_master=False,
                    wait_for_workers=False,
                    timeout=timedelta(seconds=_CONNECT_TIMEOUT),
                )
            except DistError as error:
                if time.monotonic() > deadline:
                    raise WorkerError(
                        f"node 0 ({self.seat.host}:{self.seat.port}) can't be reached for {self.patience.leader:.0f} s; "
                        "start again, what was committed is kept"
                    ) from error
                time.sleep(_POLL)
                continue
            store.set_timeout(timedelta(seconds=_STORE_TIMEOUT))
            return store

    def _lose_store(self) -> None:
        if self._store is not None:
            self._say(f"node {self.seat.node}: node 0 is gone; looking for it again")
        self._store = None

    def _sit(self) -> list[int] | None:
        """The nodes of the group that came out of the open round; None where it was closed without this node."""
        if self._store.add(f"starts/{self.seat.node}", 0) != self._start:
            raise WorkerError(f"another process has taken the place of node {self.seat.node}; this one ends")
        number = int(self._store.get("open"))
        self._store.set(f"seat/{number}/{self.seat.node}", str(self._start))
        self._store.set(f"knock/{number}", "")
        if self._leads:
            self._close_when_ready(number)
        while not self._store.check([f"group/{number}"]):
            if self._store.check(["done"]):
                raise AllCommitted
            self._beat_and_call_roll()
            time.sleep(_POLL)
        group: dict[str, str] = json.loads(self._store.get(f"group/{number}"))
        if group.get(str(self.seat.node)) != str(self._start):
            time.sleep(_POLL)
            return None
        self._round = number
        return sorted(int(node) for node in group)

    def _close_when_ready(self, number: int) -> None:
        """On node 0: make the group of round `number`, when everyone who can be expected sits there."""
        if self._complete():
            self._store.set("done", "")
            time.sleep(_READING_TIME)
            raise AllCommitted
        seated = [0]
        while not self._roll.all_here(seated):
            self._beat_and_call_roll()
            time.sleep(_POLL)
            seated = [n for n in range(self.seat.nodes) if self._store.check([f"seat/{number}/{n}"])]
        if missing := sorted(set(range(self.seat.nodes)) - set(seated)):
            self._say(f"node 0: going on without {_names(missing)}; what they would do is done by the others")
        starts = self._store.multi_get([f"seat/{number}/{n}" for n in seated])
        group = {str(n): start.decode() for n, start in zip(seated, starts, strict=True)}
        self._store.set(f"group/{number}", json.dumps(group))
        self._store.set("open", str(number + 1))

    def _beat_and_call_roll(self) -> bool:
        """Give a sign of life now and then; on node 0, whether one of the others has stopped to."""
        if time.monotonic() - self._beaten < _BEAT_EVERY:
            return False
        self._beats += 1
        self._store.set(f"beat/{self.seat.node}", f"{self._start}.{self._beats}")
        self._beaten = time.monotonic()
        return self._leads and self._roll.call(self._beats_of_all())

    def _beats_of_all(self) -> dict[int, bytes]:
        seen = [n for n in range(1, self.seat.nodes) if self._store.check([f"beat/{n}"])]
        values = self._store.multi_get([f"beat/{n}" for n in seen]) if seen else []
        return dict(zip(seen, values, strict=True))


class _Roll:
    """On node 0: who can be expected, by when each node's beats last changed, by this process's own clock."""

    def __init__(self, nodes: int, patience: Patience) -> None:
        self._patience = patience
        self._began = time.monotonic()
        self._unseen = set(range(1, nodes))
        self._expected = set(range(nodes))
        self._changed: dict[int, tuple[bytes, float]] = {}

    def call(self, beats: dict[int, bytes]) -> bool:
        """Expect whoever beats, and nobody who has stopped to or kept away too long; whether one has stopped."""
        now = time.monotonic()
        for node, beat in beats.items():
            if node not in self._changed or self._changed[node][0] != beat:
                self._changed[node] = (beat, now)
                self._expected.add(node)
        self._unseen -= beats.keys()
        if now - self._began > self._patience.unseen:
            self._expected -= self._unseen
        silent = {n for n, (_, when) in self._changed.items() if now - when > self._patience.silent}
        lost = silent & self._expected
        self._expected -= lost
        return bool(lost)

    def all_here(self, seated: list[int]) -> bool:
        """Whether nobody who can be expected is missing among `seated`."""
        return self._expected <= set(seated)


def _names(nodes: list[int]) -> str:
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(map(str, nodes))}"
