"""From requests in document order to micro-batches and shards. Pure functions on columns."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np

from eval_core.model_files import ModelShape
from eval_core.plan.types import Int32, Int64, MicroBatchTable, offsets_of


@dataclass(frozen=True, kw_only=True)
class Unique:
    """Requests without duplicates.

    Attributes:
        kept: int64, rows of the requests that stay, in the order of first use.
        index: int64[n], for every request the place in `kept` of the one that answers it.
    """

    kept: Int64
    index: Int64


def remove_duplicates(tokens: Int32, offsets: Int64, n_scored: Int32, generation: Int32) -> Unique:
    """Identical requests (same tokens, same number scored, generated in the same way) are computed once."""
    lengths = np.diff(offsets)
    first = np.empty(len(lengths), dtype=np.int64)
    for members in _by_value(lengths):
        place = offsets[members][:, None] + np.arange(lengths[members[0]])
        rows = np.column_stack([n_scored[members], generation[members], tokens[place]])
        _, own, same = np.unique(rows.view(f"V{rows.strides[0]}").ravel(), return_index=True, return_inverse=True)
        first[members] = members[own[same]]
    kept, index = np.unique(first, return_inverse=True)
    return Unique(kept=kept, index=index.astype(np.int64))


def _by_value(values: Int64) -> list[Int64]:
    """For each different value the places where it stands, ascending."""
    order = np.argsort(values, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(values[order])) + 1) if len(values) else []


def order_by_length(lengths: Int64, groups: Int64) -> Int64:
    """int64: rows, longest group first; a group (the answers of one question) stays together.

    `groups` is the group of each row, ascending. Ties keep the order of the documents.
    """
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    longest = np.maximum.reduceat(lengths, starts)
    sizes = np.diff(np.append(starts, len(groups)))
    return np.lexsort((np.arange(len(groups)), np.repeat(-longest, sizes))).astype(np.int64)


def cut_micro_batches(lengths: Int64, groups: Int64, *, tokens: int, multiple: int) -> tuple[Int64, Int32]:
    """Cut ordered rows into micro-batches of at most `tokens` tokens, padding included.

    A group is split only where it alone is too large. A row above the budget is a micro-batch of
    its own.

    Returns:
        (int64[n + 1] first row of each micro-batch, int32[n] padded length of each).
    """
    edges = np.flatnonzero(np.diff(groups, prepend=-1, append=-1)).tolist()
    inputs = lengths.tolist()
    firsts: list[int] = [0]
    padded: list[int] = []
    longest = 0

    def round_up(length: int) -> int:
        return -(-length // multiple) * multiple

    def close(at: int) -> None:
        nonlocal longest
        firsts.append(at)
        padded.append(round_up(longest))
        longest = 0

    for start, stop in itertools.pairwise(edges):
        widest = max(longest, *inputs[start:stop])
        fits = (stop - firsts[-1]) * round_up(widest) <= tokens
        if not fits and start > firsts[-1]:
            close(start)
        for i in range(start, stop):
            if i > firsts[-1] and (i + 1 - firsts[-1]) * round_up(max(longest, inputs[i])) > tokens:
                close(i)
            longest = max(longest, inputs[i])
    close(len(inputs))
    return np.array(firsts, dtype=np.int64), np.array(padded, dtype=np.int32)


def cut_evenly(lengths: Int64, *, tokens: int) -> Int64:
    """Cut ordered rows into as few micro-batches as have at most `tokens` tokens on average, all of about the same size.

    Returns:
        int64[n + 1], first row of each micro-batch.
    """
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    _, first = np.unique(before * -(-total // tokens) // total, return_index=True)
    return np.append(first, len(lengths)).astype(np.int64)


def cut_shards(
    first_request: Int64, rows: Int32, length: Int32, max_new: Int32, scored: Int64, shape: ModelShape, shard_cost: int
) -> MicroBatchTable:
    """Price every micro-batch and put consecutive ones together up to `shard_cost` FLOPs.

    `max_new` is how many tokens each of a micro-batch's rows may generate, `scored` how many tokens it scores.
    """
    each = zip(rows.tolist(), (length + max_new).tolist(), (scored + rows * max_new).tolist(), strict=True)
    cost = [shape.cost(*sizes) for sizes in each]
    firsts, total = [0], 0
    for i, flops in enumerate(cost):
        if i > firsts[-1] and total + flops > shard_cost:
            firsts.append(i)
            total = 0
        total += flops
    return MicroBatchTable(
        first_request=first_request,
        rows=rows,
        length=length,
        cost=np.array(cost, dtype=np.int64),
        first_of_shard=np.array([*firsts, len(cost)], dtype=np.int64),
    )


def join_micro_batches(tables: list[MicroBatchTable]) -> MicroBatchTable:
    """The micro-batches of all `tables`, whose requests follow each other; none of their shards is joined with another's."""

    def end_to_end(offsets: list[Int64]) -> Int64:
        return offsets_of(np.concatenate([np.diff(part) for part in offsets]))

    return MicroBatchTable(
        first_request=end_to_end([table.first_request for table in tables]),
        rows=np.concatenate([table.rows for table in tables]),
        length=np.concatenate([table.length for table in tables]),
        cost=np.concatenate([table.cost for table in tables]),
        first_of_shard=end_to_end([table.first_of_shard for table in tables]),
    )


_AUDITED_PART, _AUDITED_LEAST, _AUDITED_MOST = 8, 2, 4


def choose_audited(n_batches: int, wanted: int | None, seed: int) -> Int64:
    """int64: a sample of `wanted` micro-batches, ascending; all where there are fewer.

    None: an eighth of them, so that a small run isn't mostly audit, but 2, without which there is no interval, and at most 4.
    One at random from each of `wanted` equal stretches, so that large tasks, long and short requests have their part. Formulas for
    simple random samples err on the safe side with it, because neighbours are alike.
    """
    if wanted is None:
        wanted = min(max(n_batches // _AUDITED_PART, _AUDITED_LEAST), _AUDITED_MOST)
    draw = random.Random(f"{seed} audit")
    wanted = min(wanted, n_batches)
    edges = [i * n_batches // wanted for i in range(wanted + 1)] if wanted else [0]
    return np.array([draw.randrange(low, high) for low, high in itertools.pairwise(edges)], dtype=np.int64)
