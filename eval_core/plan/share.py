"""Which requests share a row, so that the tokens they begin with are computed once. Pure functions on columns.

A row holds a tree of requests: each takes its first tokens from the path of the one before it and adds its own to the
row. Positions count along the path, and a token sees its own path only, so the model computes what it would compute for
each request alone (up to the last bits: kernels and row lengths differ, which is why the rows are part of the plan).
"""

from __future__ import annotations

import itertools

import numpy as np

from eval_core.plan.types import Int32, Int64, ranges

_BLOCK = 1 << 14


def join_groups(tokens: Int32, offsets: Int64, groups: Int64) -> Int64:
    """int64[n]: the group of each request, where groups that begin alike are one: questions with the same solved examples.

    `groups` is ascending. A group joins another where its first request has at least half of its inputs in common with
    the other's; the joined group has the lowest number of its members.
    """
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    inputs = np.diff(offsets)[starts] - 1
    data, bounds = _sortable(tokens, offsets)
    first = [data[bounds[i] : bounds[i + 1] - 4].tobytes() for i in starts.tolist()]
    order = np.array(sorted(range(len(first)), key=first.__getitem__), dtype=np.int64)
    common = common_prefixes(tokens, offsets, starts[order[1:]], starts[order[:-1]])
    chains = np.concatenate([[0], np.flatnonzero(2 * common < inputs[order[1:]]) + 1])
    joined = np.empty(len(order), dtype=np.int64)
    joined[order] = np.repeat(np.minimum.reduceat(order, chains), np.diff(np.append(chains, len(order))))
    return np.repeat(groups[starts[joined]], np.diff(np.append(starts, len(groups))))


def arrange_groups(tokens: Int32, offsets: Int64, groups: Int64) -> Int64:
    """int64: the requests, group by group, each group's in the order of their tokens, so that neighbours begin alike."""
    data, bounds = _sortable(tokens, offsets)
    by_group = np.argsort(groups, kind="stable")
    order: list[int] = []
    for start, stop in itertools.pairwise(np.flatnonzero(np.diff(groups[by_group], prepend=-1, append=-1)).tolist()):
        order += sorted(by_group[start:stop].tolist(), key=lambda i: data[bounds[i] : bounds[i + 1]].tobytes())
    return np.array(order, dtype=np.int64)


def shared_prefixes(tokens: Int32, offsets: Int64, groups: Int64, order: Int64, longest_row: int) -> Int32:
    """int32[n]: how many input tokens each request takes from the one before it in `order`; 0: it starts a row.

    It does so within a group, where that is at least half of its inputs and the row stays within `longest_row` tokens.
    """
    inputs = np.diff(offsets)[order] - 1
    common = np.concatenate([[0], common_prefixes(tokens, offsets, order[1:], order[:-1])])
    common[1:][np.diff(groups[order]) != 0] = 0
    common[2 * common < inputs] = 0
    shared: list[int] = []
    row = 0
    for own, alike in zip(inputs.tolist(), common.tolist(), strict=True):
        joins = alike > 0 and row + own - alike <= longest_row
        shared.append(alike if joins else 0)
        row = row + own - alike if joins else own
    return np.array(shared, dtype=np.int32)


def common_prefixes(tokens: Int32, offsets: Int64, one: Int64, other: Int64) -> Int64:
    """int64[n]: how many input tokens (all but the last) the requests `one` and `other` begin with in common, pair by pair."""
    sizes = np.minimum(offsets[one + 1] - offsets[one], offsets[other + 1] - offsets[other]) - 1
    common: Int64 = sizes.copy()
    for first in range(0, len(one), _BLOCK):
        block = slice(first, first + _BLOCK)
        size = sizes[block]
        pair = np.repeat(np.arange(len(size)), size)
        differ = np.flatnonzero(
            tokens[ranges(offsets[one[block]], size)] != tokens[ranges(offsets[other[block]], size)]
        )
        pairs, at = np.unique(pair[differ], return_index=True)
        common[block][pairs] = differ[at] - (np.cumsum(size) - size)[pairs]
    return common


def _sortable(tokens: Int32, offsets: Int64) -> tuple[memoryview, list[int]]:
    """(bytes whose slices sort as the tokens do, where each request's slice begins)."""
    return tokens.astype(">i4").view(np.uint8).data, (4 * offsets).tolist()
