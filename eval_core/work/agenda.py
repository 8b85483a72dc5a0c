"""What is left to do, in which order: decided once by rank 0, from what is committed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eval_core.plan.types import Plan, ShardKind, shard_id
from eval_core.work.commit import Committed


@dataclass(frozen=True, kw_only=True)
class Agenda:
    """The missing shards.

    Attributes:
        main: numbers of main shards, most expensive first, so that the tail is short.
        replay, alone, reference: micro-batches, most expensive first.
        authors: main shard -> "attempt:rank" that committed it in an earlier attempt, where its
            micro-batches are to be replayed.
    """

    main: list[int]
    replay: list[int]
    alone: list[int]
    reference: list[int]
    authors: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def draw_up(plan: Plan, committed: Committed) -> Agenda:
    """The agenda of an attempt that finds `committed`."""
    done = committed.files

    def missing(kind: ShardKind, numbers: Iterable[int]) -> list[int]:
        return [n for n in numbers if shard_id(kind, n) not in done]

    of_batch = plan.micro_batches.cost.tolist()
    audited = [int(b) for b in plan.audited]
    replayed = {shard_id("main", int(plan.main_shard_of_batch[b])) for b in audited}
    return Agenda(
        main=dearest_first(missing("main", range(plan.n_shards)), plan.main_costs.tolist()),
        replay=dearest_first(missing("replay", audited), of_batch),
        alone=dearest_first(missing("alone", plan.taken_apart.tolist()), of_batch),
        reference=dearest_first(missing("reference", plan.referenced.tolist()), of_batch),
        authors={shard: done[shard].provenance.worker for shard in sorted(replayed & done.keys())},
    )


def dearest_first(numbers: Iterable[int], costs: Sequence[int]) -> list[int]:
    """`numbers` by falling `costs[number]`, equal ones in their own order."""
    return sorted(numbers, key=lambda n: (-costs[n], n))


def leaves_the_rest(before: Sequence[int], last: int, given: int, ranks: int) -> bool:
    """Whether a slow rank had better take no further shard, because the others will have done all of them before it has done one.

    It compares what it did with what the others took in the same time, so no clock is needed: it is slow when that is less than
    half of what each of them took on average, and late when (next shard / own pace) > (what is left / the others' pace).

    Args:
        before: total cost of the shards before each of the agenda's, and of all of them at the end; integers.
        last: the rank's last ticket, whose shard it has done.
        given: tickets given by now.
        ranks: how many there are.
    """
    if given >= len(before) - 1:
        return False
    own = before[last + 1] - before[last]
    others = before[given] - before[last + 1]
    following = before[given + 1] - before[given]
    left = before[-1] - before[given]
    return 2 * (ranks - 1) * own < others and following * others > left * own
