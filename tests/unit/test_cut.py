"""Requests become micro-batches and shards: nothing lost, nothing twice, budgets kept, groups together."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import SHAPE

from eval_core.plan.cut import (
    choose_audited,
    cut_evenly,
    cut_micro_batches,
    cut_shards,
    order_by_length,
    remove_duplicates,
)

requests = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=2, max_size=4), st.integers(1, 3)), max_size=20)
sizes = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), min_size=1, max_size=15)
budgets = st.integers(1, 120)
multiples = st.sampled_from([1, 2, 8, 16])


def flat(groups: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(lengths, group of each), int64."""
    numbers = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    return np.array(list(itertools.chain(*groups)), dtype=np.int64), numbers.astype(np.int64)


def batches(groups: list[list[int]], tokens: int, multiple: int) -> list[tuple[list[int], int]]:
    """(requests, padded length) of each micro-batch."""
    first, padded = cut_micro_batches(*flat(groups), tokens=tokens, multiple=multiple)
    assert len(first) == len(padded) + 1
    return [(list(range(a, b)), int(p)) for (a, b), p in zip(itertools.pairwise(first), padded, strict=True)]


def scored_only(rows: list[tuple[list[int], int]]) -> np.ndarray:
    """The column that says of each of `rows` that it is no prompt."""
    return np.full(len(rows), -1, dtype=np.int32)


@given(requests)
def test_duplicates_are_answered_by_their_first(rows: list[tuple[list[int], int]]) -> None:
    tokens = np.array(list(itertools.chain(*(t for t, _ in rows))), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(t) for t, _ in rows])]).astype(np.int64)
    unique = remove_duplicates(tokens, offsets, np.array([n for _, n in rows], dtype=np.int32), scored_only(rows))
    kept = [rows[i] for i in unique.kept]
    assert [kept[i] for i in unique.index] == rows
    assert kept == [row for i, row in enumerate(rows) if row not in rows[:i]]


@given(sizes)
def test_order_is_a_permutation_that_keeps_groups_together(groups: list[list[int]]) -> None:
    lengths, numbers = flat(groups)
    order = order_by_length(lengths, numbers)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    runs = [number for number, _ in itertools.groupby(numbers[order].tolist())]
    assert len(runs) == len(groups)
    for number in runs:
        own = order[numbers[order] == number]
        assert own.tolist() == sorted(own.tolist())


@given(sizes)
def test_order_is_longest_first_and_stable(groups: list[list[int]]) -> None:
    lengths, numbers = flat(groups)
    runs = [number for number, _ in itertools.groupby(numbers[order_by_length(lengths, numbers)].tolist())]
    assert runs == sorted(range(len(groups)), key=lambda number: (-max(groups[number]), number))


@given(sizes, budgets, multiples)
def test_micro_batches_cover_every_request_once(groups: list[list[int]], tokens: int, multiple: int) -> None:
    covered = [r for rows, _ in batches(groups, tokens, multiple) for r in rows]
    assert covered == list(range(sum(map(len, groups))))


@given(sizes, budgets, multiples)
def test_a_micro_batch_is_padded_as_little_as_it_can_be(groups: list[list[int]], tokens: int, multiple: int) -> None:
    lengths, _ = flat(groups)
    for rows, padded in batches(groups, tokens, multiple):
        longest = max(lengths[rows])
        assert padded % multiple == 0
        assert longest <= padded < longest + multiple


@given(sizes, budgets, multiples)
def test_the_budget_is_kept_but_by_a_single_request(groups: list[list[int]], tokens: int, multiple: int) -> None:
    for rows, padded in batches(groups, tokens, multiple):
        assert len(rows) >= 1
        assert len(rows) * padded <= tokens or len(rows) == 1


@given(sizes, budgets, multiples)
def test_a_group_is_split_only_where_it_alone_is_too_large(groups: list[list[int]], tokens: int, multiple: int) -> None:
    _, numbers = flat(groups)
    where: dict[int, set[int]] = {}
    for batch, (rows, _) in enumerate(batches(groups, tokens, multiple)):
        for row in rows:
            where.setdefault(int(numbers[row]), set()).add(batch)
    for number, group in enumerate(groups):
        padded = -(-max(group) // multiple) * multiple
        if len(group) * padded <= tokens:
            assert len(where[number]) == 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), budgets)
def test_even_micro_batches_differ_by_less_than_a_row(rows: list[int], tokens: int) -> None:
    lengths = np.array(rows, dtype=np.int64)
    first = cut_evenly(lengths, tokens=tokens)
    assert first[0] == 0
    assert first[-1] == len(rows)
    assert (np.diff(first) > 0).all()
    wanted = -(-sum(rows) // tokens)
    assert len(first) - 1 <= wanted
    assert np.add.reduceat(lengths, first[:-1]).max() < sum(rows) / wanted + max(rows)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_a_budget_of_one_token_makes_every_row_a_micro_batch(rows: list[int]) -> None:
    assert cut_evenly(np.array(rows, dtype=np.int64), tokens=1).tolist() == list(range(len(rows) + 1))


@given(sizes, budgets, multiples)
def test_a_batch_is_closed_only_where_the_next_group_does_not_fit(
    groups: list[list[int]], tokens: int, multiple: int
) -> None:
    lengths, numbers = flat(groups)
    for (rows, _), (after, _) in itertools.pairwise(batches(groups, tokens, multiple)):
        both = rows + [r for r in range(after[0], len(lengths)) if numbers[r] == numbers[after[0]]]
        padded = -(-max(lengths[both]) // multiple) * multiple
        assert len(both) * padded > tokens


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), min_size=1, max_size=20), st.integers(1, 20_000))
def test_shards_cover_the_micro_batches_and_keep_their_cost(shapes: list[tuple[int, int]], shard_cost: int) -> None:
    rows = np.array([r for r, _ in shapes], dtype=np.int32)
    first = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    length = np.array([n for _, n in shapes], dtype=np.int32)
    table = cut_shards(first, rows, length, np.zeros_like(length), rows.astype(np.int64), SHAPE, shard_cost)
    assert table.tokens.tolist() == [r * n for r, n in shapes]
    assert table.cost.tolist() == [SHAPE.cost(r, n, r) for r, n in shapes]
    bounds = table.first_of_shard.tolist()
    assert (bounds[0], bounds[-1]) == (0, len(shapes))
    for a, b in itertools.pairwise(bounds):
        assert b > a
        assert table.cost[a:b].sum() <= shard_cost or b == a + 1
        if b < len(shapes):
            assert table.cost[a : b + 1].sum() > shard_cost


def test_cost_counts_body_attention_and_head() -> None:
    assert SHAPE.cost(rows=4, length=5, scored=6) == 2 * 10 * 20 + 4 * 4 * 25 * 2 * 3 + 2 * 7 * 2 * 6
    headless = replace(SHAPE, vocab_size=0)
    assert headless.cost(4, 5, 6) == SHAPE.cost(4, 5, 0)


@given(st.integers(1, 200), st.integers(0, 50), st.integers())
def test_the_audit_is_a_seeded_sample(n_batches: int, wanted: int, seed: int) -> None:
    chosen = choose_audited(n_batches, wanted, seed).tolist()
    assert chosen == sorted(set(chosen))
    assert all(0 <= b < n_batches for b in chosen)
    assert len(chosen) == min(wanted, n_batches)
    assert choose_audited(n_batches, wanted, seed).tolist() == chosen


def test_another_seed_audits_others_and_every_batch_has_its_chance() -> None:
    draws = [choose_audited(30, 5, seed).tolist() for seed in range(100)]
    assert len(set(map(tuple, draws))) > 50
    assert set(itertools.chain(*draws)) == set(range(30))


def test_the_audit_has_long_and_short_ones() -> None:
    for seed in range(20):
        chosen = choose_audited(30, 5, seed)
        assert (chosen // 6).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("n_batches", "audited"), [(0, 0), (1, 1), (2, 2), (7, 2), (24, 3), (32, 4), (1000, 4)])
def test_where_nothing_is_said_a_small_run_audits_less(n_batches: int, audited: int) -> None:
    assert len(choose_audited(n_batches, None, 0)) == audited


@pytest.mark.parametrize("wanted", [3, 4, 100])
def test_where_there_are_fewer_all_are_audited(wanted: int) -> None:
    assert choose_audited(3, wanted, 0).tolist() == [0, 1, 2]
