"""One exact, hierarchical all-reduce at the end: within each node, then between the nodes, then back.

int64 vectors only, so no order of additions matters. It checks the ranks' memory against the committed files;
the result of the run is taken from the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from eval_core.exact import IntArray


@dataclass(frozen=True, kw_only=True)
class Member:
    """What a rank says of itself when the ranks meet."""

    rank: int
    node: int
    device: str


@dataclass(frozen=True, kw_only=True)
class Levels:
    """The groups that this rank belongs to, by rank, ascending.

    Attributes:
        node: all ranks of its node.
        leaders: the first rank of every node, in the nodes' order.
        backend_node, backend_leaders: nccl or gloo.
    """

    node: list[int]
    leaders: list[int]
    backend_node: str
    backend_leaders: str


def arrange(members: Sequence[Member], rank: int) -> Levels:
    """The levels of `rank`; the same members give consistent levels on every rank."""
    nodes: dict[int, list[Member]] = {}
    for member in sorted(members, key=lambda m: m.rank):
        nodes.setdefault(member.node, []).append(member)
    mine = next(group for group in nodes.values() if any(m.rank == rank for m in group))
    leaders = sorted((group[0] for group in nodes.values()), key=lambda m: m.rank)
    return Levels(
        node=[m.rank for m in mine],
        leaders=[m.rank for m in leaders],
        backend_node=choose_backend(mine),
        backend_leaders=choose_backend(leaders),
    )


def choose_backend(members: Sequence[Member]) -> str:
    """nccl where every member has a GPU of its own, gloo otherwise."""
    on_gpu = all(m.device.startswith("cuda") for m in members)
    distinct = len({(m.node, m.device) for m in members}) == len(members)
    return "nccl" if on_gpu and distinct and dist.is_nccl_available() else "gloo"


def all_reduce(
    vector: IntArray, levels: Levels, rank: int, store: Any, device: torch.device, timeout: float
) -> IntArray:
    """The element-by-element sum of every rank's int64 `vector`, on every rank.

    Groups are made directly over `store`, one for each level, so that no group spans all ranks: a
    flat gloo group costs O(n^2) connections.
    """
    join = partial(_join, rank=rank, store=store, timeout=timedelta(seconds=timeout))
    total = torch.from_numpy(np.ascontiguousarray(vector)).clone()
    with join(levels.node, levels.backend_node, f"node{levels.node[0]}") as node:
        total = _sum(total, node, device)
        if rank == levels.node[0]:
            with join(levels.leaders, levels.backend_leaders, "leaders") as leaders:
                total = _sum(total, leaders, device)
        else:
            total.zero_()
        total = _sum(total, node, device)
    result: IntArray = total.numpy()
    return result


@contextmanager
def _join(ranks: list[int], backend: str, name: str, *, rank: int, store: Any, timeout: timedelta) -> Iterator[Any]:
    """A group of `ranks` for as long as it is needed; None where this rank is alone."""
    if len(ranks) == 1:
        yield None
        return
    own, size = ranks.index(rank), len(ranks)
    prefixed = PrefixStore(name, store)
    if backend == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        group: Any = dist.ProcessGroupNCCL(prefixed, own, size, options)
    else:
        group = dist.ProcessGroupGloo(prefixed, own, size, timeout)
    yield group
    group.shutdown()


def _sum(value: torch.Tensor, group: Any, device: torch.device) -> torch.Tensor:
    if group is None:
        return value
    moved = value.to(device) if group.name() == "nccl" else value
    group.allreduce([moved]).wait()
    return moved.cpu()
