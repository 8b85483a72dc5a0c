"""Standard errors: analytic for means, a seeded bootstrap for the rest, both in document order."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from eval_core.metrics.states import PERPLEXITY_METRICS

Float64 = npt.NDArray[np.float64]

_THREADS = 2
_TOGETHER = 8


def mean_stderr(hits: int, n: int) -> float:
    """Of a proportion: sqrt(p (1 - p) / (n - 1)), the sample standard deviation over sqrt(n); NaN below 2."""
    if n < 2:
        return math.nan
    p = hits / n
    return math.sqrt(p * (1 - p) / (n - 1))


def seeded_generator(seed: int) -> np.random.Generator:
    """What resamples are drawn by."""
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(b"%d" % seed).digest(), "little")))


def perplexity_stderr(
    nll: Float64, tokens: Float64, words: Float64, size: Float64, *, resamples: int, seed: int
) -> dict[str, float]:
    """Of each perplexity metric: the standard deviation over bootstrap resamples of whole documents.

    All arguments are float64[documents], in document order (sums of nats, and counts). NaN below 2
    documents. Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 6.
    """
    n = len(nll)
    if n < 2 or not np.isfinite(nll).all():
        return dict.fromkeys(PERPLEXITY_METRICS, math.nan)
    generator = seeded_generator(seed)
    counted = np.stack([tokens, words, size])

    def resample(drawn: npt.NDArray[np.int64]) -> list[float]:
        """Sums of the `drawn` documents: of nats one after the other, so that the bits stay; counts are exact anyhow."""
        return [nll.take(drawn).cumsum()[-1], *(counted @ np.bincount(drawn, minlength=n).astype(np.float64))]

    with ThreadPoolExecutor(_THREADS) as pool:
        sums = np.empty((resamples, 4))
        for i in range(0, resamples, _TOGETHER):
            draws = [generator.integers(0, n, n) for _ in range(min(_TOGETHER, resamples - i))]
            sums[i : i + len(draws)] = list(pool.map(resample, draws))
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        per_token, per_word, per_byte = (sums[:, 0] / sums[:, k] for k in (1, 2, 3))
        samples = {
            "loss": per_token,
            "token_ppl": np.exp(per_token),
            "word_ppl": np.exp(per_word),
            "byte_ppl": np.exp(per_byte),
            "bits_per_byte": per_byte / math.log(2),
        }
        return {name: float(np.std(values, ddof=1)) for name, values in samples.items()}
