"""What is left to do, in which order: decided once by rank 0, from what is committed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eval_core.plan.types import Plan, shard_id
from eval_core.work.commit import Committed


@dataclass(frozen=True, kw_only=True)
class Agenda:
    """The missing shards.

    Attributes:
        main: numbers of main shards, most expensive first, so that the tail is short.
        replay, reference: micro-batches, most expensive first.
        authors: main shard -> "attempt:rank" that committed it in an earlier attempt, where its
            micro-batches are to be replayed.
    """

    main: list[int]
    replay: list[int]
    reference: list[int]
    authors: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def draw_up(plan: Plan, committed: Committed) -> Agenda:
    """The agenda of an attempt that finds `committed`."""
    done = committed.files

    def dearest_first(kind: Any, numbers: range | list[int]) -> list[int]:
        missing = [n for n in numbers if shard_id(kind, n) not in done]
        return sorted(missing, key=lambda n: (-plan.shard_cost(shard_id(kind, n)), n))

    audited = [int(b) for b in plan.audited]
    replayed = {shard_id("main", int(plan.main_shard_of_batch[b])) for b in audited}
    return Agenda(
        main=dearest_first("main", range(plan.n_shards)),
        replay=dearest_first("replay", audited),
        reference=dearest_first("reference", plan.referenced.tolist()),
        authors={shard: done[shard].provenance.worker for shard in sorted(replayed & done.keys())},
    )
