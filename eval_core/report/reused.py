"""What a run took over from others: how much, and from where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eval_core.plan.types import Plan
from eval_core.reduce import Loaded
from eval_core.report.text import percent, plural
from eval_core.shard_file import Origin, Provenance


@dataclass(frozen=True, kw_only=True)
class Reused:
    """What came from one run.

    Attributes:
        run, plan: its URI, as it was given, and the digest of its plan.
        shards, requests: main shards, and what they ask.
        cost: their part of the FLOPs of all main shards, 0 to 1.
        hosts, machines: where they were computed; a machine that is not on record is "".
    """

    run: str
    plan: str
    shards: int
    requests: int
    cost: float
    hosts: tuple[str, ...]
    machines: tuple[str, ...]


def reused_of(plan: Plan, loaded: Loaded) -> list[Reused]:
    """The runs that shards were taken over from."""
    by_run: dict[tuple[str, str], list[tuple[str, Provenance, Origin]]] = {}
    for shard, file in loaded.files.items():
        if origin := file.provenance.origin:
            by_run.setdefault((origin.run, origin.plan), []).append((shard, file.provenance, origin))
    total = int(plan.micro_batches.cost.sum())
    return [
        Reused(
            run=run,
            plan=digest,
            shards=len(taken),
            requests=sum(len(plan.shard_requests(shard)) for shard, _, _ in taken),
            cost=sum(plan.shard_cost(shard) for shard, _, _ in taken) / total,
            hosts=tuple(sorted({provenance.host for _, provenance, _ in taken})),
            machines=tuple(sorted({origin.machine for _, _, origin in taken})),
        )
        for (run, digest), taken in sorted(by_run.items())
    ]


def reused_json(reused: Sequence[Reused]) -> dict[str, Any]:
    """The block "reuse" of results.json; nothing where nothing was reused."""
    if not reused:
        return {}
    runs = [{"run": r.run, "plan": r.plan, "shards": r.shards, "requests": r.requests, "cost": r.cost} for r in reused]
    return {"reuse": runs}


def describe_reused(reused: Reused, plan: Plan) -> str:
    """How much came from a run, and what it was computed on, in one sentence."""
    machines = ", ".join(machine or "a machine that left no record" for machine in reused.machines)
    return (
        f"{reused.shards:,} of {plural(plan.n_shards, 'shard')} ({plural(reused.requests, 'request')}, {percent(reused.cost)} of the "
        f"cost) were not computed here but taken over from {reused.run}, computed on {', '.join(reused.hosts)}: {machines}."
    )
