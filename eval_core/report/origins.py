"""Who computed what, where and when: the content of provenance.json, and what the report says of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from eval_core import __version__
from eval_core.canonical import digest_json
from eval_core.metrics.states import ChoiceState, State
from eval_core.plan.types import Plan
from eval_core.reduce import Loaded, Reduction
from eval_core.report.records import AllReduceRecord, RankRecord, Records
from eval_core.report.reused import reused_of
from eval_core.report.text import plain
from eval_core.shard_file import Provenance
from eval_core.work.progress import HEADLINE

PROVENANCE_FORMAT = 1
_SHOWN_STRETCHES = 10


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt, as the shards that it committed and the records that it left tell it.

    Attributes:
        name: its id.
        world_size: ranks.
        hosts, devices: on which they ran.
        shards: committed, audit included.
        tokens: input tokens of these, padding included.
        started, finished: of the first and the last of them, Unix seconds.
        busy_seconds: sum over the shards of the time that each took.
        all_reduce: None where the attempt didn't come to its end.
    """

    name: str
    world_size: int
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    shards: int
    tokens: int
    started: float
    finished: float
    busy_seconds: float
    all_reduce: AllReduceRecord | None

    @property
    def seconds(self) -> float:
        """From the first shard's start to the last one's end."""
        return self.finished - self.started

    @property
    def busy(self) -> float:
        """Part of the ranks' time in which they computed, 0 to 1."""
        return self.busy_seconds / (self.seconds * self.world_size) if self.seconds > 0 else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Input tokens a second, all ranks together."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What some ranks ran on.

    Attributes:
        values: flat: `packages.torch` -> `2.13.0`.
        workers: the processes, as ATTEMPT:RANK.
    """

    values: Mapping[str, str]
    workers: tuple[str, ...]

    @property
    def ranks(self) -> str:
        """The processes in few words: `ranks 0-3, 8 of ATTEMPT`."""
        by_attempt: dict[str, list[int]] = {}
        for worker in self.workers:
            attempt, _, rank = worker.rpartition(":")
            by_attempt.setdefault(attempt, []).append(int(rank))
        return "; ".join(f"ranks {_ranges(ranks)} of {attempt}" for attempt, ranks in by_attempt.items())


@dataclass(frozen=True, kw_only=True)
class Subtotal:
    """What one host contributed to a task.

    Attributes:
        host: its name; "" for what several shards contribute together.
        task, metric: the headline metric of the task.
        value: of the examples counted here, NaN without any.
        examples: documents that begin here, or questions.
        tokens: tokens scored; None for multiple choice.
    """

    host: str
    task: str
    metric: str
    value: float
    examples: int
    tokens: int | None


def attempts_of(loaded: Loaded, records: Records) -> list[Attempt]:
    """The attempts that computed a shard for this run, in the order of their names, which is that of time."""
    by_name: dict[str, list[Provenance]] = {}
    for file in loaded.files.values():
        if file.provenance.origin is None:
            by_name.setdefault(file.provenance.attempt, []).append(file.provenance)
    reduced = {record.attempt: record for record in records.all_reduces}
    return [_attempt(name, by_name[name], reduced.get(name)) for name in sorted(by_name)]


def environments_of(ranks: Sequence[RankRecord]) -> list[Environment]:
    """The different environments among `ranks`, the most frequent first."""
    groups: dict[str, tuple[Mapping[str, str], list[str]]] = {}
    for record in ranks:
        values = _flat(record.environment)
        groups.setdefault(digest_json(values), (values, []))[1].append(record.worker)
    found = [Environment(values=values, workers=tuple(workers)) for values, workers in groups.values()]
    return sorted(found, key=lambda environment: -len(environment.workers))


def differing(environments: Sequence[Environment]) -> list[str]:
    """Names whose values differ between environments, in the order of `names_of`."""
    return [
        name
        for name in names_of(environments)
        if len({environment.values.get(name) for environment in environments}) > 1
    ]


def names_of(environments: Sequence[Environment]) -> list[str]:
    """The names of all values, in the order in which they were recorded."""
    return list(dict.fromkeys(name for environment in environments for name in environment.values))


def subtotals(plan: Plan, reduction: Reduction) -> list[Subtotal]:
    """By host, then task; last, what spans several shards, where there is such."""
    parts = {**{host: reduction.hosts[host] for host in sorted(reduction.hosts)}, "": reduction.spanning}
    return [
        _subtotal(host, task.name, HEADLINE[task.type], states[task.name])
        for host, states in parts.items()
        for task in plan.spec.tasks
        if task.name in states and states[task.name] != type(states[task.name]).zero()
    ]


def provenance_json(plan: Plan, loaded: Loaded, reduction: Reduction, records: Records) -> dict[str, Any]:
    """The content of provenance.json, JSON-able: everything that may differ between two equal runs."""
    return {
        "format": PROVENANCE_FORMAT,
        "concord": __version__,
        "plan": plan.digest,
        "reduction": reduction.digest,
        "locations": dict(plan.locations),
        "attempts": [_attempt_json(attempt, records) for attempt in attempts_of(loaded, records)],
        "environments": [
            {"values": dict(environment.values), "workers": list(environment.workers)}
            for environment in environments_of(records.ranks)
        ],
        "hosts": {
            host: {task: {"state": state.to_json(), "values": plain(state.value())} for task, state in states.items()}
            for host, states in sorted(reduction.hosts.items())
        },
        "unreadable": list(records.unreadable),
        **({"reused": [asdict(part) for part in reused]} if (reused := reused_of(plan, loaded)) else {}),
    }


def _attempt(name: str, shards: Sequence[Provenance], all_reduce: AllReduceRecord | None) -> Attempt:
    return Attempt(
        name=name,
        world_size=max(shard.world_size for shard in shards),
        hosts=tuple(sorted({shard.host for shard in shards})),
        devices=tuple(sorted({shard.device for shard in shards})),
        shards=len(shards),
        tokens=sum(shard.tokens for shard in shards),
        started=min(shard.started for shard in shards),
        finished=max(shard.finished for shard in shards),
        busy_seconds=sum(shard.finished - shard.started for shard in shards),
        all_reduce=all_reduce,
    )


def _attempt_json(attempt: Attempt, records: Records) -> dict[str, Any]:
    reduced = attempt.all_reduce
    return {
        "attempt": attempt.name,
        "world_size": attempt.world_size,
        "hosts": list(attempt.hosts),
        "devices": list(attempt.devices),
        "shards": attempt.shards,
        "tokens": attempt.tokens,
        "started": attempt.started,
        "finished": attempt.finished,
        "wall_seconds": attempt.seconds,
        "busy_seconds": attempt.busy_seconds,
        "all_reduce": None
        if reduced is None
        else {
            "nodes": reduced.nodes,
            "backend_node": reduced.backend_node,
            "backend_leaders": reduced.backend_leaders,
            "seconds": reduced.seconds,
            "shards": reduced.n_shards,
        },
        "ranks": [
            {
                "rank": record.rank,
                "host": record.host,
                "node": record.node,
                "outcomes": dict(record.outcomes),
                "busy_seconds": record.busy_seconds,
            }
            for record in records.ranks
            if record.attempt == attempt.name
        ],
    }


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 8`; only the first ten stretches."""
    stretches: list[list[int]] = []
    for number in sorted(numbers):
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1][1] = number
        else:
            stretches.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in stretches[:_SHOWN_STRETCHES]]
    return ", ".join([*shown, "…"] if len(stretches) > len(shown) else shown)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + str(name)] = value if isinstance(value, str) else str(value)
    return flat


def _subtotal(host: str, task: str, metric: str, state: State) -> Subtotal:
    choice = isinstance(state, ChoiceState)
    return Subtotal(
        host=host,
        task=task,
        metric=metric,
        value=state.value()[metric],
        examples=state.examples if isinstance(state, ChoiceState) else state.documents,
        tokens=None if choice else state.tokens,  # type: ignore[union-attr]
    )
