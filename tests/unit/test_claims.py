"""Every main shard is taken once, whatever the ranks' speeds, and a slow rank doesn't take the last ones."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from eval_core.work.agenda import dearest_first, leaves_the_rest
from eval_core.work.board import Board
from eval_core.work.claims import main_claims
from eval_core.work.place import Place


def drive(costs: Sequence[int], seconds_of_unit: Sequence[Sequence[float]]) -> tuple[list[list[int]], float]:
    """(the tickets of each rank, when the last is done), in virtual time: rank r does its k-th shard at `seconds_of_unit[r][k % ...]`."""
    store, ranks = HashStore(), len(seconds_of_unit)
    places = [Place(rank=r, world_size=ranks, local_rank=r, node=0, host="host", launched=True) for r in range(ranks)]
    claims = [main_claims(Board(store, place, 60.0), costs) for place in places]
    taken: list[list[int]] = [[] for _ in claims]
    free, end = [(0.0, rank) for rank in range(ranks)], 0.0
    while free:
        now, rank = heapq.heappop(free)
        ticket = next(claims[rank], None)
        if ticket is None:
            end = max(end, now)
            continue
        pace = seconds_of_unit[rank][len(taken[rank]) % len(seconds_of_unit[rank])]
        taken[rank].append(ticket)
        heapq.heappush(free, (now + costs[ticket] * pace, rank))
    return taken, end


paces = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=3)


@given(st.lists(st.integers(0, 1 << 70), max_size=40), st.lists(paces, min_size=1, max_size=6))
def test_every_shard_is_taken_once_whatever_the_speeds(costs: list[int], seconds_of_unit: list[list[float]]) -> None:
    taken, _ = drive(sorted(costs, reverse=True), seconds_of_unit)
    assert sorted(ticket for own in taken for ticket in own) == list(range(len(costs)))


@given(st.integers(0, 40), st.integers(1, 6))
def test_ranks_that_are_equally_fast_leave_nothing(shards: int, ranks: int) -> None:
    _, end = drive([9] * shards, [[1.0]] * ranks)
    assert end == 9.0 * -(-shards // ranks)


@pytest.mark.parametrize(("slow", "end"), [(3, 180.0), (0, 240.0)])
def test_a_slow_rank_leaves_the_last_shards_but_not_rank_0(slow: int, end: float) -> None:
    """8 ranks, one of them eight times slower, 128 shards of 10 s: 179.6 s where work could be divided at will."""
    seconds_of_unit = [[8.0 if rank == slow else 1.0] for rank in range(8)]
    taken, ended = drive([10] * 128, seconds_of_unit)
    assert (len(taken[slow]), ended) == ((2, end) if slow else (3, end))


@pytest.mark.parametrize(
    ("last", "given", "leaves"),
    [
        (0, 8, False),  # 7 shards by the other three while it did one: slow; but 12 are left
        (0, 13, True),  # 12 shards by the others, and 7 are left
        (0, 20, False),  # nothing is left to leave
        (17, 19, False),  # not slow
    ],
)
def test_who_leaves(last: int, given: int, leaves: bool) -> None:
    assert leaves_the_rest(list(range(21)), last, given, 4) == leaves


@given(st.lists(st.integers(0, 5), max_size=20))
def test_dearest_first_and_equals_in_their_order(costs: list[int]) -> None:
    order = dearest_first(range(len(costs)), costs)
    assert [costs[n] for n in order] == sorted(costs, reverse=True)
    assert all(a < b for a, b in pairwise(order) if costs[a] == costs[b])
