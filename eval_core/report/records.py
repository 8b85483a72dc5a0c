"""What attempts left in the run's storage besides shards: for display only, so what is missing or torn is passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from eval_core.storage import Store
from eval_core.work.progress import PROGRESS

ATTEMPTS = "attempts"
_SHOWN_POINTS = 400
_READERS = 8

COUNTED: Mapping[str, str] = {"perplexity": "tokens", "multiple_choice": "examples", "lm_eval": "tokens"}
"""The field of a metric's state that says how much it has counted."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one rank said at the end of its work.

    Attributes:
        attempt, rank, world_size, host, node: who.
        outcomes: committed, duplicate, violation -> how many shards.
        busy_seconds: seconds in which it computed.
        environment: hardware, software and variables.
    """

    attempt: str
    rank: int
    world_size: int
    host: str
    node: int
    outcomes: Mapping[str, int]
    busy_seconds: float
    environment: Mapping[str, Any]

    @property
    def worker(self) -> str:
        """The process, as one string."""
        return f"{self.attempt}:{self.rank}"


@dataclass(frozen=True, kw_only=True)
class AllReduceRecord:
    """The one all-reduce at an attempt's end: over how many ranks and nodes, by what, and how long it took."""

    attempt: str
    world_size: int
    nodes: int
    backend_node: str
    backend_leaders: str
    seconds: float
    n_shards: int


@dataclass(frozen=True, kw_only=True)
class ProgressPoint:
    """The running metric at one moment.

    Attributes:
        attempt, time: where in the run (Unix seconds).
        values: task -> headline metric; a task without a number is absent.
        counted: task -> tokens scored (perplexity) or questions that stand behind it.
    """

    attempt: str
    time: float
    values: Mapping[str, float]
    counted: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Records:
    """Everything that `attempts/` and `progress/` hold.

    Attributes:
        ranks: by attempt, then rank.
        all_reduces: by attempt.
        progress: by time; of a long run, evenly thinned out.
        unreadable: keys that hold no record.
    """

    ranks: tuple[RankRecord, ...] = ()
    all_reduces: tuple[AllReduceRecord, ...] = ()
    progress: tuple[ProgressPoint, ...] = ()
    unreadable: tuple[str, ...] = ()


def read_records(store: Store) -> Records:
    """Read the records of all attempts.

    Raises:
        StorageError: the storage is out of reach.
    """
    keys = [key for key in store.list(ATTEMPTS) if key.endswith(".json")]
    unreadable: list[str] = []
    ranks = _read(store, [key for key in keys if "/rank-" in key], _rank, unreadable)
    all_reduces = _read(store, [key for key in keys if key.endswith("/allreduce.json")], _all_reduce, unreadable)
    progress = _read(store, _thin(store.list(PROGRESS)), _point, unreadable)
    return Records(
        ranks=tuple(sorted(ranks, key=lambda r: (r.attempt, r.rank))),
        all_reduces=tuple(sorted(all_reduces, key=lambda r: r.attempt)),
        progress=tuple(sorted(progress, key=lambda p: p.time)),
        unreadable=tuple(unreadable),
    )


def _read(store: Store, keys: list[str], parse: Callable[[str, Any], T], unreadable: list[str]) -> list[T]:
    found = []
    with ThreadPoolExecutor(_READERS) as pool:
        for key, data in zip(keys, pool.map(store.get, keys), strict=True):
            if data is None:
                continue
            try:
                found.append(parse(key, json.loads(data)))
            except (ValueError, KeyError, TypeError, AttributeError):
                unreadable.append(key)
    return found


def _thin(keys: list[str]) -> list[str]:
    """At most `_SHOWN_POINTS` of `keys`, evenly, the last one always."""
    step = -(-len(keys) // _SHOWN_POINTS) or 1
    return keys[::-1][::step][::-1]


def _rank(key: str, data: Any) -> RankRecord:
    return RankRecord(
        attempt=key.split("/")[1],
        rank=int(data["rank"]),
        world_size=int(data["world_size"]),
        host=str(data["host"]),
        node=int(data["node"]),
        outcomes={str(name): int(n) for name, n in data["outcomes"].items()},
        busy_seconds=float(data["busy_seconds"]),
        environment=dict(data["environment"]),
    )


def _all_reduce(key: str, data: Any) -> AllReduceRecord:
    return AllReduceRecord(
        attempt=key.split("/")[1],
        world_size=int(data["world_size"]),
        nodes=int(data["nodes"]),
        backend_node=str(data["backend_node"]),
        backend_leaders=str(data["backend_leaders"]),
        seconds=float(data["seconds"]),
        n_shards=len(data["shards"]),
    )


def _point(key: str, data: Any) -> ProgressPoint:
    return ProgressPoint(
        attempt=str(data["attempt"]),
        time=float(data["time"]),
        values={str(task): float(value) for task, value in data["values"].items() if value is not None},
        counted={str(task): int(state[COUNTED[state["kind"]]]) for task, state in data["states"].items()},
    )
