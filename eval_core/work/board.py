"""The board that the ranks of one attempt share: tickets, owners, running states, signs of life.

It is the rendezvous store (a TCPStore; torchrun prefixes its keys by the attempt), so no collective stands on
the path of the work, and ranks never wait for each other to get some.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import HashStore, PrefixStore
from torch.distributed.rendezvous import rendezvous

from eval_core.errors import CalledOffError, UsageError, WorkerError
from eval_core.work.place import Place

_POLL = 0.05
_LOOKS = 2000.0
"""A second, that all waiting ranks together take at the store."""
_READING_TIME = 1.0
_ABORT = "abort"


def open_store(place: Place, timeout: float) -> Any:
    """The store that the launcher provides, or one in memory for a process that is alone.

    torchrun's store outlives an attempt that it restarts, so every key stands below the group's name and the attempt's number.
    """
    if not place.launched:
        return HashStore()
    store, _, _ = next(rendezvous("env://", place.rank, place.world_size))
    store.set_timeout(timedelta(seconds=timeout))
    group, attempt = os.environ.get("TORCHELASTIC_RUN_ID", ""), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"concord/{group}/{attempt}", store)


class Board:
    """One attempt's shared state, as seen by one rank."""

    def __init__(self, store: Any, place: Place, stall_timeout: float) -> None:
        self.store = store
        self.place = place
        self.stall_timeout = stall_timeout
        self._beats = 0
        self._others_pause = max(_POLL, place.world_size / _LOOKS)
        self._pause = _POLL if place.rank == 0 else self._others_pause
        if place.rank == 0:
            self.lay_out("beat", 0)
            self.lay_out("met", None)
            attempt = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + uuid.uuid4().hex[:8]
            self._set("attempt", attempt)
        self.attempt: str = self._get("attempt")

    def publish(self, name: str, value: Any) -> None:
        """Set `name` to a JSON value, for everyone."""
        self._set(name, value)

    def lay_out(self, name: str, value: Any) -> None:
        """Set `name/RANK` of all ranks to `value`, before they do, so that `read_all` finds each."""
        keys = [f"{name}/{rank}" for rank in range(self.place.world_size)]
        if self.store.has_extended_api():
            self.store.multi_set(keys, [json.dumps(value)] * len(keys))
        else:
            for key in keys:
                self._set(key, value)

    def read(self, name: str) -> Any:
        """The value of `name`; waits until someone publishes it.

        Raises:
            WorkerError: nobody did within the stall timeout, or the attempt was called off.
        """
        self.wait_for([name], f"rank {self.place.rank} waited for '{name}'")
        return self._get(name)

    def read_all(self, name: str) -> list[Any]:
        """The values of `name/RANK` of all ranks; each must have been laid out."""
        return self._multi_get([f"{name}/{rank}" for rank in range(self.place.world_size)])

    def ticket(self) -> int:
        """The next number, from 0; each is given once.

        Raises:
            CalledOffError: the attempt was called off.
        """
        self._stop_if_called_off()
        return int(self.store.add("ticket", 1)) - 1

    def given(self) -> int:
        """How many tickets have been asked for."""
        return int(self.store.add("ticket", 0))

    def wait_for_tickets(self, n: int) -> None:
        """Wait until `n` tickets have been given, the last of them perhaps to rank 0, which is watched.

        Raises:
            WorkerError: rank 0 gave no sign of life for the stall timeout.
        """
        watch = _Watch(self.stall_timeout)
        while self.given() < n:
            self._look_after([0], watch)
            self.beat()
            time.sleep(self._pause)

    def claim(self, shard: str) -> bool:
        """Whether this rank is the first to ask for `shard`."""
        return int(self.store.add(f"claim/{shard}", 1)) == 1

    def beat(self) -> None:
        """A sign of life: called after each micro-batch, so a rank that hangs inside one is found."""
        self._beats += 1
        self._set(f"beat/{self.place.rank}", self._beats)

    def call_off(self, reason: str, exit_code: int) -> None:
        """End the attempt for everyone. Rank 0, whose process may hold the board, leaves time to read why."""
        self._set(_ABORT, [reason, exit_code])
        if self.place.rank == 0 and self.place.world_size > 1:
            time.sleep(max(_READING_TIME, 4 * self._others_pause))

    def wait_for(self, names: Sequence[str], doing: str) -> None:
        """Wait until all `names` are published, or the attempt is called off, or the stall timeout is over."""
        deadline = time.monotonic() + self.stall_timeout
        while not self.store.check(list(names)):
            self._stop_if_called_off()
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"{doing} for {self.stall_timeout:.0f} s in vain; start again, what was committed is kept"
                )
            time.sleep(self._pause)

    def meet(self, report: Any, idle: Callable[[], None]) -> list[Any]:
        """Wait until every rank is here; returns the ranks' reports.

        Rank 0 watches the others' signs of life and the others watch rank 0: a look costs the store one request or two, and
        the more ranks wait, the less often each looks. `idle` is called before each look.

        Raises:
            WorkerError: a rank gave no sign of life for the stall timeout; it is named.
        """
        self._set(f"met/{self.place.rank}", report)
        watch = _Watch(self.stall_timeout)
        while late := self._late():
            self._look_after(late, watch)
            idle()
            time.sleep(2 * self._pause)
            if self.place.rank == 0:
                self.beat()
        if self.place.rank == 0:
            self._set("all met", self.read_all("met"))
        reports: list[Any] = self._get("all met")
        return reports

    def leave(self) -> None:
        """Say goodbye; rank 0, whose process may hold the store, stays until all did."""
        self._set(f"bye/{self.place.rank}", True)
        if self.place.rank == 0:
            self.wait_for([f"bye/{r}" for r in range(self.place.world_size)], "rank 0 waited for the others to leave")

    def _look_after(self, ranks: list[int], watch: _Watch) -> None:
        self._stop_if_called_off()
        beats = self._multi_get([f"beat/{rank}" for rank in ranks])
        if stalled := watch.stalled(dict(zip(ranks, beats, strict=True))):
            reason = (
                f"no sign of life from rank {', '.join(map(str, stalled))} for {self.stall_timeout:.0f} s; the attempt ends, "
                "start again on any number of ranks (work.stall_timeout in the spec gives more patience)"
            )
            self.call_off(reason, WorkerError.exit_code)
            raise WorkerError(reason)

    def _late(self) -> list[int]:
        """Whom this rank waits for: rank 0 for those who haven't come, the others for rank 0 to say that all have."""
        if self.place.rank != 0:
            return [] if self.store.check(["all met"]) else [0]
        return [rank for rank, report in enumerate(self.read_all("met")) if report is None]

    def _stop_if_called_off(self) -> None:
        if self.store.check([_ABORT]):
            reason, exit_code = self._get(_ABORT)
            error = CalledOffError(reason)
            if exit_code == UsageError.exit_code:  # every launcher must see that starting again is no use
                error.exit_code = exit_code
            raise error

    def _set(self, name: str, value: Any) -> None:
        self.store.set(name, json.dumps(value))

    def _get(self, name: str) -> Any:
        return json.loads(self.store.get(name))

    def _multi_get(self, keys: list[str]) -> list[Any]:
        if self.store.has_extended_api():
            return [json.loads(value) for value in self.store.multi_get(keys)]
        return [self._get(key) for key in keys]


class _Watch:
    """Remembers when each rank's count of beats last moved, by this process's own clock."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.moved: dict[int, tuple[int, float]] = {}

    def stalled(self, beats: dict[int, int]) -> list[int]:
        now = time.monotonic()
        for rank, count in beats.items():
            if self.moved.get(rank, (-1, now))[0] != count:
                self.moved[rank] = (count, now)
        return [rank for rank in beats if now - self.moved[rank][1] > self.timeout]
