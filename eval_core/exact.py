"""Sums of floating-point numbers that are exact, so that order and grouping can't matter.

Every finite float64 is an integer multiple of 2**-1074, so a sum of floats is kept as ONE integer in
that unit: a superaccumulator (Kulisch, "Computer Arithmetic and Validity", 2013) whose carries
Python's big integers take care of. Integer addition is associative and commutative, so any tree of
merges gives the same integer, and the value is rounded once, at the end, to the nearest float64
(ties to even) - the result of `math.fsum`, for any number of summands.

The bulk goes through bins, one for each exponent: a value is m * 2**e with a 53-bit integer m, which is
cut in two of at most 27 bits; `bincount` adds up the halves of a chunk of 2**15 values in float64, whose
partial sums stay below 2**42 and are therefore exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

UNIT_EXPONENT = -1074
"""The integer counts units of 2**UNIT_EXPONENT, the smallest float64 above zero."""

LIMB_BITS = 32
N_LIMBS = 68
"""Limbs of 32 bits that hold 2**46 values of the largest float64, sign included."""

VECTOR_LENGTH = N_LIMBS + 3
"""Length of `ExactSum.to_vector`: the limbs, then the counts of NaN, +Inf and -Inf."""

_CHUNK = 1 << 15
_SEGMENT = 1 << 11
_ROUNDING = 1.5 * 2.0**28
"""Added and taken away again, it rounds a float64 to a multiple of 2**-24."""

_LOW_BITS = 27
_MANTISSA_BITS = 52
_EXPONENT_MASK = 0x7FF


def _finite_sum(values: npt.NDArray[np.float64]) -> int:
    """Exact sum of finite `values`, in units of 2**-1074."""
    bits = values.view(np.int64)
    exponents = (bits >> _MANTISSA_BITS) & _EXPONENT_MASK
    mantissas = bits & ((1 << _MANTISSA_BITS) - 1)
    mantissas |= (exponents > 0).astype(np.int64) << _MANTISSA_BITS
    shifts = np.maximum(exponents, 1) - 1  # subnormals share the exponent of the smallest normal
    signs = np.where(bits < 0, -1, 1)
    high = np.bincount(shifts, weights=signs * (mantissas >> _LOW_BITS))
    low = np.bincount(shifts, weights=signs * (mantissas & ((1 << _LOW_BITS) - 1)))
    used = np.flatnonzero((high != 0) | (low != 0))
    return sum(((int(high[i]) << _LOW_BITS) + int(low[i])) << int(i) for i in used)


def segment_sums(values: FloatArray, offsets: IntArray) -> npt.NDArray[np.float64]:
    """float64[n]: the sum of each `values[offsets[i] : offsets[i + 1]]`, exact and rounded once, as by `math.fsum`.

    A float32 value is cut into a multiple of 2**-24 and a rest of at most 2**-25. Where no value but zero lies outside of
    2**-44 to 2**18, the sums of both for up to 2**11 values stay within 53 bits and are therefore exact, and their sum is
    the one rounding. Other segments, and those of float64, go through `math.fsum`. NaN where that refuses +Inf beside -Inf.
    """
    sums = np.zeros(len(offsets) - 1)
    for first in range(0, len(sums), _CHUNK):
        bounds = offsets[first : first + _CHUNK + 1]
        part = values[bounds[0] : bounds[-1]]
        starts, sizes = bounds[:-1] - bounds[0], np.diff(bounds)
        if part.dtype == np.float32:
            full = np.flatnonzero(sizes)
            high = (part.astype(np.float64) + _ROUNDING) - _ROUNDING
            with np.errstate(invalid="ignore"):
                low = part - high
                sums[first + full] = np.add.reduceat(high, starts[full]) + np.add.reduceat(low, starts[full])
            magnitude = np.abs(part)
            outside = np.flatnonzero(~((magnitude == 0) | ((magnitude >= 2.0**-44) & (magnitude <= 2.0**18))))
            wide = np.searchsorted(bounds[1:], bounds[0] + outside, side="right")
            again = np.union1d(wide, np.flatnonzero(sizes > _SEGMENT))
        else:
            again = np.arange(len(sizes))
        for i in again.tolist():
            try:
                sums[first + i] = math.fsum(part[starts[i] : starts[i] + sizes[i]].tolist())
            except ValueError:  # +Inf beside -Inf
                sums[first + i] = math.nan
    return sums


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactSum:
    """An exact sum of floats: zero / add / merge / value.

    Attributes:
        units: the sum of the finite values, in units of 2**-1074.
        nan, pos_inf, neg_inf: how many values were not finite, by kind.
    """

    units: int = 0
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0

    @classmethod
    def zero(cls) -> ExactSum:
        return cls()

    @classmethod
    def of(cls, values: FloatArray | Iterable[float]) -> ExactSum:
        """The exact sum of `values`."""
        return cls.zero().add(values)

    def add(self, values: FloatArray | Iterable[float]) -> ExactSum:
        """This sum with `values` (any shape, float32 or float64) added.

        Raises:
            TypeError: the dtype is neither float32 nor float64.
        """
        array = values if isinstance(values, np.ndarray) else np.array(list(values), dtype=np.float64)
        if array.dtype not in (np.float32, np.float64):
            raise TypeError(f"ExactSum takes float32 or float64, not {array.dtype}")
        array = array.ravel()
        finite = np.isfinite(array)
        special = array[~finite]
        chunks = (slice(i, i + _CHUNK) for i in range(0, array.size, _CHUNK))
        return ExactSum(
            units=self.units + sum(_finite_sum(array[c][finite[c]].astype(np.float64)) for c in chunks),
            nan=self.nan + int(np.isnan(special).sum()),
            pos_inf=self.pos_inf + int((special == np.inf).sum()),
            neg_inf=self.neg_inf + int((special == -np.inf).sum()),
        )

    def merge(self, other: ExactSum) -> ExactSum:
        """The sum of both; associative and commutative, with `zero` as the neutral element."""
        return ExactSum(
            units=self.units + other.units,
            nan=self.nan + other.nan,
            pos_inf=self.pos_inf + other.pos_inf,
            neg_inf=self.neg_inf + other.neg_inf,
        )

    def scale(self, times: int) -> ExactSum:
        """The sum of `times` copies of this one."""
        return ExactSum(
            units=self.units * times,
            nan=self.nan * times,
            pos_inf=self.pos_inf * times,
            neg_inf=self.neg_inf * times,
        )

    @property
    def nonfinite(self) -> int:
        """How many values were NaN or infinite."""
        return self.nan + self.pos_inf + self.neg_inf

    def fraction(self) -> Fraction:
        """The sum of the finite values as an exact fraction."""
        return Fraction(self.units, 1 << -UNIT_EXPONENT)

    def value(self) -> float:
        """The sum, rounded once to the nearest float64; IEEE rules where values were not finite."""
        if self.nan or (self.pos_inf and self.neg_inf):
            return float("nan")
        if self.pos_inf:
            return float("inf")
        if self.neg_inf:
            return float("-inf")
        try:
            return self.units / (1 << -UNIT_EXPONENT)
        except OverflowError:
            return float("inf") if self.units > 0 else float("-inf")

    def to_json(self) -> dict[str, Any]:
        """Canonical: an odd hexadecimal mantissa and a power of two, then the counts."""
        if self.units == 0:
            mantissa, exponent = 0, 0
        else:
            zeros = (self.units & -self.units).bit_length() - 1
            mantissa, exponent = self.units >> zeros, zeros + UNIT_EXPONENT
        return {
            "mantissa": hex(mantissa),
            "exponent": exponent,
            "nan": self.nan,
            "pos_inf": self.pos_inf,
            "neg_inf": self.neg_inf,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ExactSum:
        mantissa = int(data["mantissa"], 16)
        units = mantissa << (data["exponent"] - UNIT_EXPONENT) if mantissa else 0
        return cls(units=units, nan=data["nan"], pos_inf=data["pos_inf"], neg_inf=data["neg_inf"])

    def to_vector(self) -> IntArray:
        """int64[VECTOR_LENGTH]: limbs of 32 bits (the sign on each), then the three counts.

        Vectors of up to 2**31 ranks can be added element by element, in any order, without overflow.
        """
        magnitude, sign = abs(self.units), -1 if self.units < 0 else 1
        raw = magnitude.to_bytes(N_LIMBS * LIMB_BITS // 8, "little")
        limbs = np.frombuffer(raw, dtype="<u4").astype(np.int64) * sign
        return np.concatenate([limbs, np.array([self.nan, self.pos_inf, self.neg_inf], dtype=np.int64)])

    @classmethod
    def from_vector(cls, vector: IntArray) -> ExactSum:
        """The sum that `vector`, possibly a sum of many `to_vector`, stands for."""
        units = sum(int(limb) << (LIMB_BITS * i) for i, limb in enumerate(vector[:N_LIMBS]))
        nan, pos_inf, neg_inf = (int(count) for count in vector[N_LIMBS:])
        return cls(units=units, nan=nan, pos_inf=pos_inf, neg_inf=neg_inf)
