"""What a model's steps cost, counted on the engine thread in plain numbers and read by others for metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

STEP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STEP_SEQUENCES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Observed values: ``counts[i]`` of them were at most ``bounds[i]`` and above the bound before, the last count is
    of those above all bounds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class BucketCounts:
    """Counts values by size. One thread writes; :meth:`read` may be called from any."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> Distribution:
        return Distribution(self._bounds, tuple(self._counts), self._total)


@dataclass(slots=True)
class StepCounters:
    """One model's steps since it was attached. ``faults`` counts attempts that raised, by code."""

    seconds: BucketCounts = field(default_factory=lambda: BucketCounts(STEP_SECONDS))
    sequences: BucketCounts = field(default_factory=lambda: BucketCounts(STEP_SEQUENCES))
    tokens: BucketCounts = field(default_factory=lambda: BucketCounts(STEP_TOKENS))
    faults: Counter[str] = field(default_factory=Counter)
