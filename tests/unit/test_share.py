"""Requests that share a row: what each is computed with is what it would be computed with alone."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import SHAPE

from eval_core.plan.build import lay_out
from eval_core.plan.share import arrange_groups, common_prefixes, join_groups, shared_prefixes
from eval_core.plan.types import MicroBatchTable, RequestTable
from eval_core.spec import Batch
from eval_core.work import forward

MAX_LENGTH = 12


@st.composite
def groups_of_requests(draw: st.DrawFn) -> list[list[tuple[list[int], int]]]:
    """Groups of (tokens, number scored) whose members often begin alike."""
    groups = []
    for _ in range(draw(st.integers(1, 6))):
        prompt = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
        group = []
        for _ in range(draw(st.integers(1, 5))):
            kept = draw(st.sampled_from([prompt, prompt, prompt[: len(prompt) // 2], []]))
            tail = draw(st.lists(st.integers(0, 3), min_size=2, max_size=4))
            tokens = kept + tail
            request = (tokens, draw(st.integers(1, len(tokens) - 1)))
            if request not in group:
                group.append(request)
        groups.append(group)
    return groups


def flat(groups: list[list[tuple[list[int], int]]]) -> tuple[RequestTable, np.ndarray]:
    rows = list(itertools.chain(*groups))
    table = RequestTable(
        tokens=np.array(list(itertools.chain(*(t for t, _ in rows))), dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum([len(t) for t, _ in rows])]).astype(np.int64),
        n_scored=np.array([n for _, n in rows], dtype=np.int32),
        generation=np.full(len(rows), -1, dtype=np.int32),
        shared=np.zeros(len(rows), dtype=np.int32),
    )
    return table, np.repeat(np.arange(len(groups)), [len(g) for g in groups]).astype(np.int64)


def requests_of(table: RequestTable) -> list[tuple[list[int], int]]:
    pairs = itertools.pairwise(table.offsets.tolist())
    return [(table.tokens[a:b].tolist(), int(n)) for (a, b), n in zip(pairs, table.n_scored, strict=True)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8), st.data())
def test_common_prefixes_are_those_of_plain_loops(requests: list[list[int]], data: st.DataObject) -> None:
    tokens = np.array(list(itertools.chain(*requests)), dtype=np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in requests])]).astype(np.int64)
    pairs = data.draw(st.lists(st.tuples(*[st.integers(0, len(requests) - 1)] * 2), max_size=8))
    one, other = (np.array([pair[k] for pair in pairs], dtype=np.int64) for k in (0, 1))
    expected = []
    for a, b in ((requests[i][:-1], requests[j][:-1]) for i, j in pairs):
        expected.append(next(n for n in range(min(len(a), len(b)), -1, -1) if a[:n] == b[:n]))
    assert common_prefixes(tokens, offsets, one, other).tolist() == expected


@given(groups_of_requests())
def test_groups_keep_their_order_and_their_members(groups: list[list[tuple[list[int], int]]]) -> None:
    table, numbers = flat(groups)
    order = arrange_groups(table.tokens, table.offsets, numbers)
    assert sorted(order.tolist()) == list(range(len(table)))
    assert numbers[order].tolist() == numbers.tolist()


@given(groups_of_requests())
def test_groups_that_begin_alike_are_joined(groups: list[list[tuple[list[int], int]]]) -> None:
    table, numbers = flat(groups)
    requests = requests_of(table)
    joined = join_groups(table.tokens, table.offsets, numbers)
    for group in set(numbers.tolist()):
        assert len(set(joined[numbers == group])) == 1, "a group stays whole"
        assert joined[numbers == group][0] <= group
    firsts = {int(group): requests[int(np.flatnonzero(numbers == group)[0])][0][:-1] for group in set(numbers.tolist())}
    for left, right in itertools.pairwise(sorted(firsts, key=lambda group: firsts[group])):
        equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(firsts[left], firsts[right], strict=False))
        common = len(list(equal))
        alike = joined[numbers == left][0] == joined[numbers == right][0]
        assert alike or 2 * common < len(firsts[right])


def test_questions_with_the_same_solved_examples_read_them_once() -> None:
    shots = list(range(10, 40))
    table, numbers = flat([[([*shots, question, answer], 1) for answer in (3, 4)] for question in (1, 2, 5)])
    moved, _, micro_batches = lay_out(
        table, numbers, np.zeros_like(table.n_scored), (), Batch(tokens=64), SHAPE, MAX_LENGTH
    )
    assert micro_batches.rows.tolist() == [1]
    assert micro_batches.tokens.tolist() == [len(shots) + 3]
    assert moved.shared.tolist() == [0, 31, 30, 31, 30, 31]


@given(groups_of_requests(), st.integers(1, 40))
def test_a_request_shares_only_what_it_has_in_common(groups: list[list[tuple[list[int], int]]], longest: int) -> None:
    table, numbers = flat(groups)
    requests = requests_of(table)
    order = arrange_groups(table.tokens, table.offsets, numbers)
    shared = shared_prefixes(table.tokens, table.offsets, numbers, order, longest).tolist()
    row = 0
    for place, request in enumerate(order.tolist()):
        inputs = requests[request][0][:-1]
        if shared[place] == 0:
            row = len(inputs)
            continue
        row += len(inputs) - shared[place]
        assert row <= longest
        assert numbers[order[place - 1]] == numbers[request]
        assert requests[order[place - 1]][0][:-1][: shared[place]] == inputs[: shared[place]]
        assert 2 * shared[place] >= len(inputs)


@given(groups_of_requests(), st.integers(1, 60), st.sampled_from([1, 4]), st.booleans())
def test_every_scored_token_sees_its_own_request_and_nothing_else(
    groups: list[list[tuple[list[int], int]]], tokens: int, multiple: int, share: bool
) -> None:
    table, numbers = flat(groups)
    batch = Batch(tokens=tokens, pad_to_multiple=multiple, share_prefixes=share)
    moved, order, micro_batches = lay_out(table, numbers, np.zeros_like(table.n_scored), (), batch, SHAPE, MAX_LENGTH)
    requests = requests_of(moved)
    assert requests == [requests_of(table)[i] for i in order]
    if not share:
        assert not moved.shared.any()

    plan = SimpleNamespace(requests=moved, micro_batches=micro_batches)
    found = []
    for number in range(len(micro_batches)):
        layout = forward.lay_out(plan, number)
        assert layout.tokens.size == micro_batches.tokens[number]
        for row, column, target in zip(layout.scored_row, layout.scored_column, layout.targets, strict=True):
            found.append(([*seen_from(layout, row, column), target], 1))
    wanted = [
        (sequence[:stop], 1) for sequence, n in requests for stop in range(len(sequence) - n + 1, len(sequence) + 1)
    ]
    assert found == wanted


def seen_from(layout: forward.Layout, row: int, column: int) -> list[int]:
    """The tokens that a token of the micro-batch sees, by their positions, which must be 0, 1, 2, ..."""
    columns = np.arange(column + 1) if layout.sees is None else np.flatnonzero(layout.sees[row, column])
    columns = columns[np.argsort(layout.position[row, columns], kind="stable")]
    assert layout.position[row, columns].tolist() == list(range(len(columns)))
    return layout.tokens[row, columns].tolist()


@given(groups_of_requests(), st.integers(20, 60))
def test_rows_lie_in_one_micro_batch_and_are_counted(groups: list[list[tuple[list[int], int]]], tokens: int) -> None:
    table, numbers = flat(groups)
    moved, _, micro_batches = lay_out(
        table, numbers, np.zeros_like(table.n_scored), (), Batch(tokens=tokens), SHAPE, MAX_LENGTH
    )
    first: MicroBatchTable = micro_batches.first_request
    assert not moved.shared[first[:-1]].any()
    assert micro_batches.rows.tolist() == [int((moved.shared[a:b] == 0).sum()) for a, b in itertools.pairwise(first)]


def test_four_answers_read_their_prompt_once() -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    table, numbers = flat([[([*prompt, answer, 9], 2) for answer in (4, 3, 2, 1)]])
    _, order, micro_batches = lay_out(
        table, numbers, np.zeros_like(table.n_scored), (), Batch(tokens=64), SHAPE, MAX_LENGTH
    )
    assert order.tolist() == [3, 2, 1, 0]
    assert micro_batches.rows.tolist() == [1]
    assert micro_batches.tokens.tolist() == [len(prompt) + 4]


def test_answers_of_one_token_add_none() -> None:
    table, numbers = flat([[([1, 2, 3, answer], 1) for answer in (4, 5, 6)]])
    moved, _, micro_batches = lay_out(
        table, numbers, np.zeros_like(table.n_scored), (), Batch(tokens=64), SHAPE, MAX_LENGTH
    )
    assert moved.shared.tolist() == [0, 3, 3]
    assert micro_batches.tokens.tolist() == [3]


@pytest.mark.parametrize(
    ("model_type", "window", "shares"),
    [("llama", None, True), ("llama", 8, False), ("llama", 12, True), ("mamba", None, False)],
)
def test_rows_are_shared_only_where_the_architecture_allows(model_type: str, window: int | None, shares: bool) -> None:
    table, numbers = flat([[([1, 2, 3, answer], 1) for answer in (4, 5, 6)]])
    shape = replace(SHAPE, model_type=model_type, sliding_window=window)
    moved, _, _ = lay_out(table, numbers, np.zeros_like(table.n_scored), (), Batch(), shape, MAX_LENGTH)
    assert bool(moved.shared.any()) is shares
