"""Laws that every metric state keeps, and the values of each kind."""

from __future__ import annotations

import json
import math
from decimal import Context, Decimal
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eval_core.canonical import canonical_json
from eval_core.exact import ExactSum
from eval_core.metrics.states import (
    STATE_KINDS,
    ChoiceState,
    LikelihoodState,
    PerplexityState,
    State,
    merge_states,
    state_from_json,
    states_from_json,
    states_to_json,
)
from eval_core.metrics.uncertainty import mean_stderr, perplexity_stderr, seeded_generator

counts = st.integers(0, 1 << 40)
sums = st.lists(st.floats() | st.floats(0, 100), max_size=5).map(ExactSum.of)
STATES: dict[type, st.SearchStrategy[Any]] = {
    PerplexityState: st.builds(PerplexityState, nll=sums, tokens=counts, documents=counts, words=counts, bytes=counts),
    LikelihoodState: st.builds(LikelihoodState, nll=sums, tokens=counts, documents=counts),
    ChoiceState: st.builds(
        ChoiceState, examples=counts, correct=counts, correct_norm=counts, correct_bytes=counts, nonfinite=counts
    ),
}
every_kind = pytest.mark.parametrize("kind", STATES, ids=lambda kind: kind.__name__)


def fold(states: list[Any], zero: Any) -> Any:
    return reduce(lambda a, b: a.merge(b), states, zero)


def test_the_laws_cover_every_kind() -> None:
    assert set(STATES) == set(STATE_KINDS.values())


@every_kind
@given(data=st.data())
def test_zero_is_neutral(kind: type[State], data: st.DataObject) -> None:
    state = data.draw(STATES[kind])
    assert state.merge(kind.zero()) == kind.zero().merge(state) == state


@every_kind
@given(data=st.data())
def test_merge_is_associative_and_commutative(kind: type[State], data: st.DataObject) -> None:
    a, b, c = (data.draw(STATES[kind]) for _ in range(3))
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(b) == b.merge(a)


@every_kind
@given(data=st.data())
def test_value_does_not_depend_on_grouping(kind: type[State], data: st.DataObject) -> None:
    states = data.draw(st.lists(STATES[kind], max_size=6))
    middle = data.draw(st.integers(0, len(states)))
    shuffled = data.draw(st.permutations(states))
    halves = fold(shuffled[:middle], kind.zero()).merge(fold(shuffled[middle:], kind.zero()))
    whole = fold(states, kind.zero())
    assert halves.to_json() == whole.to_json()
    np.testing.assert_equal(halves.value(), whole.value())


@every_kind
@given(data=st.data())
def test_json_round_trip(kind: type[State], data: st.DataObject) -> None:
    state = data.draw(STATES[kind])
    assert state_from_json(json.loads(canonical_json(state.to_json()))) == state


@every_kind
@given(data=st.data())
def test_vector_round_trip(kind: type[State], data: st.DataObject) -> None:
    state = data.draw(STATES[kind])
    vector = state.to_vector()
    assert vector.dtype == np.int64
    assert vector.shape == kind.zero().to_vector().shape
    assert kind.from_vector(vector) == state


@every_kind
@given(data=st.data())
def test_sum_of_vectors_is_the_merged_state(kind: type[State], data: st.DataObject) -> None:
    states = data.draw(st.lists(STATES[kind], min_size=1, max_size=6))
    total = np.sum([state.to_vector() for state in states], axis=0)
    assert kind.from_vector(total) == fold(states, kind.zero())


@every_kind
def test_zero_has_only_nan(kind: type[State]) -> None:
    values = kind.zero().value()
    assert values
    assert all(math.isnan(v) for v in values.values())


def perplexity(nll: list[float], tokens: int, words: int = 0, size: int = 0) -> PerplexityState:
    return PerplexityState(nll=ExactSum.of(nll), tokens=tokens, documents=1, words=words, bytes=size)


def test_perplexity_is_weighted_by_tokens() -> None:
    two_tokens, ninety_tokens = perplexity([1.0] * 2, 2), perplexity([9.0] * 90, 90)
    value = two_tokens.merge(ninety_tokens).value()
    assert value["loss"] == 812 / 92
    assert value["loss"] != (1 + 9) / 2
    assert value["token_ppl"] == pytest.approx(math.exp(812 / 92), rel=1e-15)


@example([0.0, 1.0, 15.493236166615157, 1.8371677412984368e-211], 1, 1)  # just above the middle between two floats
@given(st.lists(st.floats(0, 50), min_size=1, max_size=20), st.integers(1, 500), st.integers(1, 5000))
def test_perplexity_values_are_rounded_once(nll: list[float], words: int, size: int) -> None:
    exact = sum(map(Fraction, nll), Fraction(0))
    wide = Context(prec=120)

    def per(count: int) -> Decimal:
        return wide.divide(wide.divide(Decimal(exact.numerator), Decimal(exact.denominator)), Decimal(count))

    assert perplexity(nll, len(nll), words, size).value() == {
        "loss": float(exact / len(nll)),
        "token_ppl": float(wide.exp(per(len(nll)))),
        "word_ppl": float(wide.exp(per(words))),
        "byte_ppl": float(wide.exp(per(size))),
        "bits_per_byte": float(wide.divide(per(size), wide.ln(Decimal(2)))),
    }


@given(st.lists(st.floats(0, 10), min_size=1, max_size=20), st.integers(1, 500), st.integers(1, 5000))
def test_perplexity_values_are_near_those_of_libm(nll: list[float], words: int, size: int) -> None:
    total, tokens = math.fsum(nll), len(nll)
    assert perplexity(nll, tokens, words, size).value() == pytest.approx(
        {
            "loss": total / tokens,
            "token_ppl": math.exp(total / tokens),
            "word_ppl": math.exp(total / words),
            "byte_ppl": math.exp(total / size),
            "bits_per_byte": total / size / math.log(2),
        },
        rel=1e-12,
    )


@pytest.mark.parametrize(
    ("counts", "undefined"),
    [
        ({"tokens": 0, "words": 1, "size": 1}, {"loss", "token_ppl"}),
        ({"tokens": 1, "words": 0, "size": 1}, {"word_ppl"}),
        ({"tokens": 1, "words": 1, "size": 0}, {"byte_ppl", "bits_per_byte"}),
    ],
)
def test_a_denominator_of_zero_gives_nan(counts: dict[str, int], undefined: set[str]) -> None:
    value = perplexity([1.0], **counts).value()
    assert {name for name, v in value.items() if math.isnan(v)} == undefined


@pytest.mark.parametrize(
    ("nll", "expected"), [([1.0, math.nan], math.nan), ([1.0, math.inf], math.inf), ([math.inf, -math.inf], math.nan)]
)
def test_a_token_that_is_not_finite_shows_in_every_perplexity_value(nll: list[float], expected: float) -> None:
    np.testing.assert_equal(list(perplexity(nll, 2, 2, 2).value().values()), [expected] * 5)


def test_an_overflowing_perplexity_is_infinite_and_its_loss_is_not() -> None:
    value = perplexity([1e300], 1, 1, 1).value()
    assert value["loss"] == 1e300
    assert value["token_ppl"] == value["word_ppl"] == value["byte_ppl"] == math.inf


def test_choice_values_are_shares_of_the_examples() -> None:
    state = ChoiceState(examples=7, correct=3, correct_norm=5, correct_bytes=0, nonfinite=2)
    assert state.value() == {"acc": 3 / 7, "acc_norm": 5 / 7, "acc_bytes": 0.0}


def test_merge_states_takes_over_a_task_that_only_one_has() -> None:
    one, other, extra = ChoiceState(examples=1), ChoiceState(examples=2), perplexity([1.0], 1)
    merged = merge_states({"quiz": one}, {"quiz": other, "docs": extra})
    assert merged == {"quiz": ChoiceState(examples=3), "docs": extra}
    assert states_from_json(json.loads(json.dumps(states_to_json(merged)))) == merged


@pytest.mark.parametrize(("hits", "n"), [(3, 8), (0, 5), (5, 5)])
def test_stderr_of_a_proportion_is_that_of_its_zeros_and_ones(hits: int, n: int) -> None:
    sample = np.array([1.0] * hits + [0.0] * (n - hits))
    assert mean_stderr(hits, n) == pytest.approx(sample.std(ddof=1) / math.sqrt(n), abs=1e-15)


def test_stderr_needs_two_examples() -> None:
    assert math.isnan(mean_stderr(1, 1))
    one = np.ones(1)
    assert all(map(math.isnan, perplexity_stderr(one, one, one, one, resamples=10, seed=0).values()))


def test_bootstrap_of_equal_documents_is_zero() -> None:
    equal = np.full(20, 3.0)
    errors = perplexity_stderr(equal, equal, equal, equal, resamples=50, seed=1)
    assert errors == pytest.approx(dict.fromkeys(errors, 0.0), abs=1e-12)


def test_bootstrap_of_a_mean_agrees_with_its_formula() -> None:
    nll = np.random.default_rng(0).exponential(2.0, 400)
    ones = np.ones(400)
    errors = perplexity_stderr(nll, ones, ones, ones, resamples=2000, seed=1)
    assert errors["loss"] == pytest.approx(nll.std(ddof=1) / math.sqrt(400), rel=0.1)


@given(st.integers(2, 200), st.integers(0, 2**31))
def test_bootstrap_has_the_bits_of_a_plain_loop(n: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    columns = np.stack([draw.exponential(50, n), *(draw.integers(1, 90, n).astype(np.float64) for _ in range(3))])
    errors = perplexity_stderr(*columns, resamples=11, seed=seed)
    generator = seeded_generator(seed)
    samples = []
    for _ in range(11):
        totals = [0.0] * 4
        for i in generator.integers(0, n, n).tolist():
            totals = [total + value for total, value in zip(totals, columns[:, i].tolist(), strict=True)]
        samples.append(totals[0] / totals[1])
    assert errors["loss"] == float(np.std(samples, ddof=1))
