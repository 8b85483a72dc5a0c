"""Which main shards a rank takes: always the next one, until a slow rank leaves the rest to the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from eval_core.work.agenda import leaves_the_rest
from eval_core.work.board import Board


def main_claims(board: Board, costs: Sequence[int]) -> Iterator[int]:
    """This rank's tickets for the main shards, whose `costs` stand in the order of the agenda. The next is asked for when the last is done.

    Rank 0 leaves nothing, so that all shards are taken whatever the ranks think of their speed.
    """
    before = list(accumulate(costs, initial=0))
    place = board.place
    while (ticket := board.ticket()) < len(costs):
        yield ticket
        if place.rank != 0 and leaves_the_rest(before, ticket, board.given(), place.world_size):
            return
