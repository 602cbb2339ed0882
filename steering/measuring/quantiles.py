"""Quantiles of a feature's activations, from its histogram. Without torch, so that pages can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ActivationQuantiles:
    """p99 and p99.9 of a feature's activations above 0, and the number ``n`` of these activations.

    Unlike the largest activation they do not hang on a single token, if ``n`` is large: p99.9 of fewer than 1,000
    activations is nearly the largest one.
    """

    p99: float
    p999: float
    n: int


def activation_quantiles(stored: Mapping[str, Any] | None, largest: float | None = None) -> ActivationQuantiles | None:
    """Return the quantiles of a histogram with bins of ``width`` and their ``counts``; None without activations.

    Within a bin, activations count as evenly spread, so the error is at most one width (1/16 of the largest activation
    or less). No quantile exceeds ``largest``.
    """
    if not stored or not (n := sum(stored["counts"])):
        return None
    found = [_quantile(stored["counts"], stored["width"], share * n) for share in (0.99, 0.999)]
    p99, p999 = (value if largest is None else min(value, largest) for value in found)
    return ActivationQuantiles(p99, p999, n)


def _quantile(counts: list[int], width: float, rank: float) -> float:
    below = 0
    for number, count in enumerate(counts):
        if count and below + count >= rank:
            return width * (number + (rank - below) / count)
        below += count
    return width * len(counts)
