"""Which requests share a row, so that the tokens they begin with are computed once. Pure functions on columns.

A row holds a tree of requests: each takes its first tokens from the path of the one before it and adds its own to the
row. Positions count along the path, and a token sees its own path only, so the model computes what it would compute for
each request alone (up to the last bits: kernels and row lengths differ, which is why the rows are part of the plan).
"""

from __future__ import annotations

import itertools

import numpy as np

from eval_core.plan.types import Int32, Int64


def join_groups(tokens: Int32, offsets: Int64, groups: Int64) -> Int64:
    """int64[n]: the group of each request, where groups that begin alike are one: questions with the same solved examples.

    `groups` is ascending. A group joins another where its first request has at least half of its inputs in common with
    the other's; the joined group has the lowest number of its members.
    """
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    bounds = offsets.tolist()
    first = [tokens[bounds[i] : bounds[i + 1] - 1] for i in starts.tolist()]
    order = sorted(range(len(first)), key=lambda g: first[g].astype(">i4").tobytes())
    joined = np.arange(len(first))
    chain: list[int] = []
    for group in order:
        if chain and 2 * _common(first[group], first[chain[-1]]) < len(first[group]):
            joined[chain] = min(chain)
            chain = []
        chain.append(group)
    joined[chain] = min(chain)
    return np.repeat(groups[starts[joined]], np.diff(np.append(starts, len(groups))))


def arrange_groups(tokens: Int32, offsets: Int64, groups: Int64) -> Int64:
    """int64: the requests, group by group, each group's in the order of their tokens, so that neighbours begin alike."""
    bounds = offsets.tolist()
    by_group = np.argsort(groups, kind="stable")
    order: list[int] = []
    for start, stop in itertools.pairwise(np.flatnonzero(np.diff(groups[by_group], prepend=-1, append=-1)).tolist()):
        members = by_group[start:stop].tolist()
        order += (
            sorted(members, key=lambda i: tokens[bounds[i] : bounds[i + 1]].tolist()) if stop - start > 1 else members
        )
    return np.array(order, dtype=np.int64)


def shared_prefixes(tokens: Int32, offsets: Int64, groups: Int64, order: Int64, longest_row: int) -> Int32:
    """int32[n]: how many input tokens each request takes from the one before it in `order`; 0: it starts a row.

    It does so within a group, where that is at least half of its inputs and the row stays within `longest_row` tokens.
    """
    bounds = offsets.tolist()
    group = groups.tolist()
    shared = np.zeros(len(order), dtype=np.int32)
    row = 0
    for place, request in enumerate(order.tolist()):
        inputs = bounds[request + 1] - bounds[request] - 1
        before = int(order[place - 1])
        if place and group[before] == group[request]:
            common = _common(tokens[bounds[request] :][:inputs], tokens[bounds[before] : bounds[before + 1] - 1])
            if 2 * common >= inputs and row + inputs - common <= longest_row:
                shared[place] = common
                row += inputs - common
                continue
        row = inputs
    return shared


def _common(one: Int32, other: Int32) -> int:
    n = min(len(one), len(other))
    differing = np.flatnonzero(one[:n] != other[:n])
    return int(differing[0]) if len(differing) else n
