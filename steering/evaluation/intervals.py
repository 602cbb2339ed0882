"""Confidence intervals by bootstrap over prompts.

Answers to one prompt are alike, so prompts are resampled, each with all its samples. Every figure is a ratio of sums
over prompts (a mean, a rate, a share), and a difference of two figures is resampled in pairs: both sides of a prompt
are drawn together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2_000
CONFIDENCE = 0.95
SEED = 16
_NORMAL = NormalDist()

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Statistic = Callable[[Indices], Floats]
"""Maps the indices ``[..., n]`` of resampled prompts to values ``[...]``."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval; ``low`` and ``high`` are None for fewer than two prompts."""

    value: float
    low: float | None
    high: float | None

    def to_json(self) -> list[float | None]:
        return [self.value, self.low, self.high]


@dataclass(frozen=True, slots=True, eq=False)
class PromptSums:
    """A ratio of sums over prompts: ``totals`` divided by ``counts``, both ``[prompts]`` float64.

    ``transform`` is applied to the ratio, such as exp for a perplexity.
    """

    totals: Floats
    counts: Floats
    transform: Callable[[Floats], Floats] = lambda ratio: ratio

    @classmethod
    def over(
        cls,
        num_prompts: int,
        rows: Sequence[tuple[int, float, float]],
        transform: Callable[[Floats], Floats] = lambda ratio: ratio,
    ) -> PromptSums:
        """Sum ``rows``, each a prompt's number, a total and a count."""
        totals, counts = np.zeros(num_prompts), np.zeros(num_prompts)
        for prompt, total, count in rows:
            totals[prompt] += total
            counts[prompt] += count
        return cls(totals, counts, transform)

    @property
    def known(self) -> NDArray[np.bool_]:
        return self.counts > 0

    def subset(self, prompts: NDArray[Any]) -> PromptSums:
        return PromptSums(self.totals[prompts], self.counts[prompts], self.transform)

    def at(self, indices: Indices) -> Floats:
        """Return the figure of each resample ``[..., n]``."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return self.transform(self.totals[indices].sum(-1) / self.counts[indices].sum(-1))


def estimate(sums: PromptSums) -> Estimate | None:
    """Return the figure with its interval; None without any prompt that has a value."""
    known = sums.subset(sums.known)
    return _estimate(known.at, len(known.totals))


def estimate_difference(one: PromptSums, other: PromptSums) -> Estimate | None:
    """Return the figure of ``one`` minus that of ``other``, over the prompts that both have; None if there is none."""
    both = one.known & other.known
    first, second = one.subset(both), other.subset(both)
    return _estimate(lambda indices: first.at(indices) - second.at(indices), len(first.totals))


def _estimate(statistic: Statistic, n: int) -> Estimate | None:
    if not n:
        return None
    value = float(statistic(np.arange(n)))
    if not math.isfinite(value):
        return None
    low, high = (None, None) if n < 2 else bca_interval(statistic, n)
    return Estimate(value, low, high)


def bca_interval(
    statistic: Statistic, n: int, *, resamples: int = RESAMPLES, confidence: float = CONFIDENCE, seed: int = SEED
) -> tuple[float | None, float | None]:
    """Return the bias-corrected and accelerated bootstrap interval of a statistic of ``n`` prompts.

    Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 14.3. With the resampled values t*, the bias
    correction is z0 = Phi^-1(share of t* below t, ties counted half), the acceleration from the jackknife values t_i
    with mean m is a = sum (m - t_i)^3 / (6 (sum (m - t_i)^2)^1.5), and the ends are the quantiles of t* at
    Phi(z0 + (z0 + z) / (1 - a (z0 + z))) for z = Phi^-1 of (1 -+ confidence) / 2. Where all t* lie on one side of t the
    correction is not defined, and the plain percentiles are returned. None if resampled values are not finite.
    """
    rng = np.random.default_rng(seed)
    values = np.sort(statistic(rng.integers(0, n, (resamples, n))))
    tails = ((1 - confidence) / 2, (1 + confidence) / 2)
    if not np.isfinite(values).all():
        return None, None
    low, high = np.quantile(values, _corrected(tails, values, statistic, n))
    return float(low), float(high)


def _corrected(tails: tuple[float, float], values: Floats, statistic: Statistic, n: int) -> tuple[float, float]:
    point = float(statistic(np.arange(n)))
    below = float((np.mean(values < point) + np.mean(values <= point)) / 2)
    if not 0 < below < 1:
        return tails
    bias, acceleration = _NORMAL.inv_cdf(below), _acceleration(statistic, n)

    def corrected(tail: float) -> float:
        shifted = bias + _NORMAL.inv_cdf(tail)
        return _NORMAL.cdf(bias + shifted / (1 - acceleration * shifted))

    return corrected(tails[0]), corrected(tails[1])


def _acceleration(statistic: Statistic, n: int) -> float:
    everyone = np.broadcast_to(np.arange(n), (n, n))
    left_out = statistic(everyone[~np.eye(n, dtype=bool)].reshape(n, n - 1))
    deviations = left_out.mean() - left_out
    spread = float((deviations**2).sum()) ** 1.5
    skew = float((deviations**3).sum())
    return skew / (6 * spread) if spread > 0 and math.isfinite(spread) and math.isfinite(skew) else 0.0
