"""Confidence intervals of what the audit measures."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, stdtrit

from eval_core.verify.types import Interval

Float64 = npt.NDArray[np.float64]


def relative_error(run: Float64, reference: Float64, population: int, confidence: float) -> Interval:
    """(sum of run - sum of reference) / sum of reference, from a random sample of clusters.

    `run` and `reference` are float64[m], summed negative log-likelihoods of the m sampled micro-batches of
    `population`. A ratio estimate with linearised variance, finite-population correction and Student's t of
    m - 1 degrees of freedom (Cochran, "Sampling Techniques", 1977, sections 2.11 and 6.4). The whole population
    sampled gives a point; one cluster of several gives an infinite interval.
    """
    m, total = len(run), float(math.fsum(reference))
    difference = run - reference
    if m == 0 or total == 0 or not np.isfinite(difference).all():
        return Interval(estimate=math.nan, low=-math.inf, high=math.inf, confidence=confidence)
    ratio = math.fsum(difference) / total
    if m >= population:
        return Interval(estimate=ratio, low=ratio, high=ratio, confidence=confidence)
    if m == 1:
        return Interval(estimate=ratio, low=-math.inf, high=math.inf, confidence=confidence)
    residuals = difference - ratio * reference
    variance = (1 - m / population) * m / (m - 1) * math.fsum(residuals**2) / total**2
    half = float(stdtrit(m - 1, (1 + confidence) / 2)) * math.sqrt(variance)
    return Interval(estimate=ratio, low=ratio - half, high=ratio + half, confidence=confidence)


def proportion(hits: int, n: int, confidence: float) -> Interval:
    """hits / n with the interval of Clopper and Pearson (1934), which never covers less than it says."""
    if n == 0:
        return Interval(estimate=math.nan, low=0.0, high=1.0, confidence=confidence)
    tail = (1 - confidence) / 2
    low = float(betaincinv(hits, n - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, n - hits, 1 - tail)) if hits < n else 1.0
    return Interval(estimate=hits / n, low=low, high=high, confidence=confidence)
