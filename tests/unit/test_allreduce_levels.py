"""Who reduces with whom, where a process stands, and states as one vector."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_core.errors import WorkerError
from eval_core.exact import ExactSum
from eval_core.metrics.states import ChoiceState, PerplexityState, State
from eval_core.work.allreduce import Levels, Member, arrange, choose_backend
from eval_core.work.place import Place, read_place
from eval_core.work.vectors import pack, unpack

layouts = st.lists(st.integers(0, 5), min_size=1, max_size=24)


def cpus(layout: list[int]) -> list[Member]:
    return [Member(rank=rank, node=node, device="cpu") for rank, node in enumerate(layout)]


@given(st.data(), layouts)
def test_all_ranks_agree_on_the_levels(data: st.DataObject, layout: list[int]) -> None:
    members = cpus(layout)
    levels = [arrange(data.draw(st.permutations(members)), rank) for rank in range(len(layout))]
    assert len({(tuple(own.leaders), own.backend_leaders) for own in levels}) == 1
    for (a, node_a), (b, node_b) in itertools.product(zip(levels, layout, strict=True), repeat=2):
        assert (a.node == b.node) == (node_a == node_b)


@given(layouts)
def test_nodes_part_the_ranks_and_their_first_ones_lead(layout: list[int]) -> None:
    levels = [arrange(cpus(layout), rank) for rank in range(len(layout))]
    for rank, own in enumerate(levels):
        assert own.node == [r for r, node in enumerate(layout) if node == layout[rank]]
    assert levels[0].leaders == sorted({own.node[0] for own in levels})


@given(layouts, st.integers(0, 1 << 40))
def test_three_sums_over_the_levels_give_every_rank_the_total(layout: list[int], seed: int) -> None:
    """The way of `all_reduce`, with the sums of each group done by hand."""
    values = np.random.default_rng(seed).integers(0, 1 << 30, len(layout)).tolist()
    levels = [arrange(cpus(layout), rank) for rank in range(len(layout))]

    def each(chosen: list[list[int] | None], held: list[int]) -> list[int]:
        return [held[r] if group is None else sum(held[m] for m in group) for r, group in enumerate(chosen)]

    leads = [rank == own.node[0] for rank, own in enumerate(levels)]
    held = each([own.node for own in levels], values)
    held = each([own.leaders if lead else None for own, lead in zip(levels, leads, strict=True)], held)
    held = [value if lead else 0 for value, lead in zip(held, leads, strict=True)]
    held = each([own.node for own in levels], held)
    assert held == [sum(values)] * len(layout)


def test_node_numbers_need_not_follow_the_ranks() -> None:
    members = cpus([7, 3, 7, 3])
    assert arrange(members, 2) == Levels(node=[0, 2], leaders=[0, 1], backend_node="gloo", backend_leaders="gloo")


@pytest.mark.parametrize(
    ("members", "nccl", "backend"),
    [
        ([(0, "cuda:0"), (0, "cuda:1")], True, "nccl"),
        ([(0, "cuda:0"), (1, "cuda:0")], True, "nccl"),
        ([(0, "cuda:0"), (0, "cuda:0")], True, "gloo"),  # two processes on one GPU
        ([(0, "cuda:0"), (0, "cpu")], True, "gloo"),
        ([(0, "cpu"), (1, "cpu")], True, "gloo"),
        ([(0, "cuda:0"), (0, "cuda:1")], False, "gloo"),
    ],
)
def test_nccl_needs_a_gpu_for_each(
    members: list[tuple[int, str]], nccl: bool, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: nccl)
    ranks = [Member(rank=rank, node=node, device=device) for rank, (node, device) in enumerate(members)]
    assert choose_backend(ranks) == backend


def test_each_level_has_the_backend_of_its_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    where = [(0, "cuda:0"), (0, "cuda:1"), (1, "cuda:0"), (1, "cuda:0")]
    members = [Member(rank=rank, node=node, device=device) for rank, (node, device) in enumerate(where)]
    levels = [arrange(members, rank) for rank in range(4)]
    assert [own.backend_node for own in levels] == ["nccl", "nccl", "gloo", "gloo"]
    assert [own.backend_leaders for own in levels] == ["nccl"] * 4


# --- the place of a process


def place(environ: dict[str, str]) -> tuple[int, int, int, int, bool]:
    own = read_place(environ)
    assert own.host
    return own.rank, own.world_size, own.local_rank, own.node, own.launched


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, 0, False)),
        ({"LOCAL_RANK": "3", "MASTER_ADDR": "x"}, (0, 1, 0, 0, False)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "GROUP_RANK": "2"}, (5, 8, 1, 2, True)),
        ({"RANK": "5", "WORLD_SIZE": "8", "PET_NODE_RANK": "4"}, (5, 8, 0, 4, True)),
        ({"RANK": "5", "WORLD_SIZE": "8", "GROUP_RANK": "2", "PET_NODE_RANK": "4"}, (5, 8, 0, 2, True)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, (5, 8, 0, 5, True)),
    ],
)
def test_place_from_the_environment(environ: dict[str, str], expected: tuple[int, int, int, int, bool]) -> None:
    assert place(environ) == expected


@pytest.mark.parametrize("environ", [{"RANK": "0"}, {"WORLD_SIZE": "2"}, {"RANK": "a", "WORLD_SIZE": "2"}])
def test_half_an_environment_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(WorkerError, match="the launcher's environment is not whole"):
        read_place(environ)


def test_the_place_is_read_from_the_process_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    own = read_place()
    assert own == Place(rank=2, world_size=3, local_rank=0, node=1, host=own.host, launched=True)


# --- vectors

counts = st.integers(0, 1 << 30)
tokens = st.lists(st.floats(0, 20), max_size=4)
states = st.tuples(
    st.builds(PerplexityState, nll=tokens.map(ExactSum.of), tokens=counts, words=counts),
    st.builds(ChoiceState, examples=counts, correct=counts, nonfinite=counts),
    st.builds(PerplexityState, nll=tokens.map(ExactSum.of), bytes=counts),
).map(lambda own: dict(zip(("docs", "quiz", "more"), own, strict=True)))


@given(st.lists(st.tuples(states, st.lists(st.integers(0, 1), min_size=3, max_size=3)), min_size=1, max_size=5))
def test_the_sum_of_packed_ranks_is_the_merged_states(ranks: list[tuple[dict[str, State], list[int]]]) -> None:
    vectors = [pack(own, np.array(committed, dtype=np.int64)) for own, committed in ranks]
    assert {v.dtype for v in vectors} == {np.dtype(np.int64)}
    merged, covered = unpack(np.sum(vectors, axis=0), ranks[0][0])
    expected = dict(ranks[0][0])
    for own, _ in ranks[1:]:
        expected = {task: expected[task].merge(own[task]) for task in expected}
    assert merged == expected
    assert list(merged) == list(expected)
    assert covered.tolist() == np.sum([committed for _, committed in ranks], axis=0).tolist()
