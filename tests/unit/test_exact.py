"""The laws of `ExactSum`, against `fractions` and `math.fsum`."""

from __future__ import annotations

import itertools
import json
import math
import sys
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval_core.canonical import canonical_json
from eval_core.exact import N_LIMBS, VECTOR_LENGTH, ExactSum, segment_sums

MAX = sys.float_info.max
SMALLEST_NORMAL = sys.float_info.min
SUBNORMAL = 5e-324

edges = st.sampled_from([0.0, -0.0, SUBNORMAL, -SUBNORMAL, SMALLEST_NORMAL, MAX, -MAX, 1.0, 2.0**53, -(2.0**53)])
finite = st.floats(allow_nan=False, allow_infinity=False) | edges
any_float = st.floats() | edges
sums = st.lists(any_float, max_size=8).map(ExactSum.of)


def exactly(values: list[float]) -> Fraction:
    return sum(map(Fraction, values), Fraction(0))


def is_even(x: float) -> bool:
    return int(np.float64(x).view(np.int64)) % 2 == 0


def cut(values: list[float], places: list[int]) -> list[list[float]]:
    """`values` in pieces, cut at `places`."""
    bounds = [0, *sorted(p % (len(values) + 1) for p in places), len(values)]
    return [values[a:b] for a, b in itertools.pairwise(bounds)]


@given(st.lists(finite, max_size=30))
def test_is_the_sum_of_fractions(values: list[float]) -> None:
    assert ExactSum.of(values).fraction() == exactly(values)


@given(st.lists(finite, max_size=30))
def test_value_is_the_nearest_float(values: list[float]) -> None:
    value, exact = ExactSum.of(values).value(), exactly(values)
    too_large = Fraction(MAX) + Fraction(2) ** 970  # half a step above the largest
    if abs(exact) >= too_large:
        assert value == (math.inf if exact > 0 else -math.inf)
        return
    error = abs(Fraction(value) - exact)
    for neighbour in (math.nextafter(value, -math.inf), math.nextafter(value, math.inf)):
        if math.isfinite(neighbour):
            further = abs(Fraction(neighbour) - exact)
            assert error < further or (error == further and is_even(value))


@given(st.lists(st.floats(-1e300, 1e300), max_size=50))
def test_value_is_that_of_fsum(values: list[float]) -> None:
    assert ExactSum.of(values).value() == math.fsum(values)


@given(st.data(), st.lists(any_float, max_size=20))
def test_order_does_not_matter(data: st.DataObject, values: list[float]) -> None:
    assert ExactSum.of(data.draw(st.permutations(values))) == ExactSum.of(values)


@given(st.lists(any_float, max_size=30), st.lists(st.integers(0, 30), max_size=5))
def test_partition_does_not_matter(values: list[float], places: list[int]) -> None:
    merged = ExactSum.zero()
    added = ExactSum.zero()
    for piece in cut(values, places):
        merged = merged.merge(ExactSum.of(piece))
        added = added.add(piece)
    assert merged == added == ExactSum.of(values)


@given(sums, sums, sums)
def test_merge_is_associative(a: ExactSum, b: ExactSum, c: ExactSum) -> None:
    assert a.merge(b).merge(c) == a.merge(b.merge(c))


@given(sums, sums)
def test_merge_is_commutative(a: ExactSum, b: ExactSum) -> None:
    assert a.merge(b) == b.merge(a)


@given(sums)
def test_zero_is_neutral(a: ExactSum) -> None:
    assert a.merge(ExactSum.zero()) == ExactSum.zero().merge(a) == a


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 1e100, 1.0, -1e100], 2.0),
        ([1e308, SUBNORMAL, -1e308], SUBNORMAL),
        ([SMALLEST_NORMAL, -SUBNORMAL], SMALLEST_NORMAL - SUBNORMAL),
        ([2.0**53, 1.0], 2.0**53),  # a tie goes to the even neighbour
        ([2.0**53, 1.0, SUBNORMAL], 2.0**53 + 2),  # and the last bit of all decides otherwise
        ([2.0**53 + 2, 1.0], 2.0**53 + 4),
        ([0.1] * 10, 1.0),
        ([], 0.0),
    ],
)
def test_cancellation_and_ties(values: list[float], expected: float) -> None:
    assert ExactSum.of(values).value() == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([MAX, MAX], math.inf),
        ([-MAX, -MAX], -math.inf),
        ([MAX, MAX, -MAX], MAX),
        ([MAX, math.nextafter(2.0**970, 0)], MAX),
        ([MAX, 2.0**970], math.inf),
    ],
)
def test_overflow_is_decided_at_the_end(values: list[float], expected: float) -> None:
    total = ExactSum.of(values)
    assert total.value() == expected
    assert total.nonfinite == 0


@pytest.mark.parametrize(
    ("values", "nan", "pos_inf", "neg_inf", "expected"),
    [
        ([math.nan, 1.0, math.nan], 2, 0, 0, math.nan),
        ([math.inf, 1.0], 0, 1, 0, math.inf),
        ([-math.inf, MAX, MAX], 0, 0, 1, -math.inf),
        ([math.inf, -math.inf, math.inf], 0, 2, 1, math.nan),
        ([math.nan, math.inf], 1, 1, 0, math.nan),
    ],
)
def test_what_is_not_finite_is_counted(
    values: list[float], nan: int, pos_inf: int, neg_inf: int, expected: float
) -> None:
    total = ExactSum.of(values)
    assert (total.nan, total.pos_inf, total.neg_inf) == (nan, pos_inf, neg_inf)
    assert total.nonfinite == nan + pos_inf + neg_inf
    assert total.fraction() == exactly([v for v in values if math.isfinite(v)])
    np.testing.assert_equal(total.value(), expected)


@given(st.lists(st.floats(width=32), max_size=30))
def test_float32_is_summed_like_its_float64(values: list[float]) -> None:
    assert ExactSum.of(np.array(values, dtype=np.float32)) == ExactSum.of(values)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_arrays_of_random_bits(dtype: type) -> None:
    raw = np.random.default_rng(5).integers(0, 256, 100_001 * np.dtype(dtype).itemsize, dtype=np.uint8)
    with np.errstate(invalid="ignore"):
        values = raw.view(dtype)
        values = values[np.isfinite(values)]
        numbers = values.astype(np.float64).tolist()
    units = sum(n * ((1 << 1074) // d) for n, d in (x.as_integer_ratio() for x in numbers))
    assert len(numbers) > 90_000
    assert ExactSum.of(values).units == units


@pytest.mark.parametrize("value", [math.nextafter(2.0, 0), -math.nextafter(2.0, 0), MAX, SUBNORMAL])
def test_a_hundred_thousand_full_mantissas_lose_no_bit(value: float) -> None:
    assert ExactSum.of(np.full(100_003, value)).fraction() == 100_003 * Fraction(value)


def test_any_shape_and_stride() -> None:
    grid = np.arange(24, dtype=np.float64).reshape(4, 6)
    assert ExactSum.of(grid[:, ::2].T) == ExactSum.of([float(x) for row in grid for x in row[::2]])


@pytest.mark.parametrize("dtype", [np.float16, np.int64, np.longdouble, np.complex128])
def test_other_dtypes_are_refused(dtype: type) -> None:
    with pytest.raises(TypeError, match="float32 or float64"):
        ExactSum.of(np.ones(3, dtype=dtype))


@given(sums)
def test_json_round_trip(a: ExactSum) -> None:
    assert ExactSum.from_json(json.loads(canonical_json(a.to_json()))) == a


@given(st.lists(any_float, max_size=20), st.lists(st.integers(0, 20), max_size=4))
def test_json_is_the_same_by_every_route(values: list[float], places: list[int]) -> None:
    pieces = [ExactSum.of(piece) for piece in cut(values, places)]
    left, right = ExactSum.zero(), ExactSum.zero()
    for piece in pieces:
        left = left.merge(piece)
    for piece in reversed(pieces):
        right = ExactSum.from_vector(piece.to_vector()).merge(ExactSum.from_json(right.to_json()))
    assert canonical_json(left.to_json()) == canonical_json(right.to_json())


@given(sums)
def test_vector_round_trip(a: ExactSum) -> None:
    vector = a.to_vector()
    assert vector.shape == (VECTOR_LENGTH,)
    assert vector.dtype == np.int64
    assert ExactSum.from_vector(vector) == a


@given(st.lists(any_float, max_size=30), st.lists(st.integers(0, 30), max_size=6))
def test_vectors_of_a_partition_add_up_to_the_whole(values: list[float], places: list[int]) -> None:
    vectors = [ExactSum.of(piece).to_vector() for piece in cut(values, places)]
    assert ExactSum.from_vector(np.sum(vectors, axis=0)) == ExactSum.of(values)


@pytest.mark.parametrize("sign", [1, -1])
def test_full_limbs_of_two_to_the_31_ranks_add_up_without_overflow(sign: int) -> None:
    full = ExactSum(units=sign * ((1 << (32 * N_LIMBS)) - 1), nan=1)
    assert ExactSum.from_vector(full.to_vector() * (1 << 31)) == full.scale(1 << 31)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_vector_holds_two_to_the_46_of_the_largest(sign: int) -> None:
    total = ExactSum.of([sign * MAX]).scale(1 << 46)
    assert ExactSum.from_vector(total.to_vector()) == total


@given(st.lists(any_float, max_size=5), st.integers(0, 6))
def test_scale_is_repetition(values: list[float], times: int) -> None:
    assert ExactSum.of(values).scale(times) == ExactSum.of(values * times)


segments = st.lists(st.lists(st.floats(width=32) | st.floats(-40, 40, width=32), max_size=12), max_size=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(rows=segments)
def test_segment_sums_are_those_of_fsum(dtype: type, rows: list[list[float]]) -> None:
    values = np.array([x for row in rows for x in row], dtype=dtype)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    found = segment_sums(values, offsets)
    for total, row in zip(found.tolist(), rows, strict=True):
        infinite = {x for x in row if math.isinf(x)}
        expected = math.nan if len(infinite) == 2 else math.fsum(row)
        assert total.hex() == expected.hex()


@pytest.mark.parametrize("low", [-50, -44, -43, -20])
@pytest.mark.parametrize("high", [4, 17, 18, 19])
@pytest.mark.parametrize("size", [2047, 2048, 2049])
def test_segment_sums_at_their_limits(low: int, high: int, size: int) -> None:
    draw = np.random.default_rng(size)
    values = (draw.uniform(1, 2, 2 * size) * 2.0 ** draw.choice([low, high], 2 * size)).astype(np.float32)
    values[:size] = np.nextafter(np.float32(2.0 ** (high + 1)), np.float32(0))
    values[size - 1] = np.nextafter(np.float32(2.0**low), np.float32(4))
    found = segment_sums(values, np.array([0, size, 2 * size], dtype=np.int64))
    assert found.tolist() == [math.fsum(values[:size].tolist()), math.fsum(values[size:].tolist())]
