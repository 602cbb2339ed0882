"""The load of a process in a time span, and the sum of two loads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from inference.metrics import FAST_BUCKETS, SLOW_BUCKETS

NO_GAPS = (0,) * (len(FAST_BUCKETS) + 1)
NO_WAITS = (0,) * (len(SLOW_BUCKETS) + 1)
MAX_NAMES = 20  # names per span; others are dropped


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a span: sums, except for ``running``, ``waiting`` and ``kv`` (0 to 1), which are maxima.

    ``first_tokens`` and ``gaps`` count times to the first token and between tokens, by the buckets of
    inference/metrics.py. ``sequences`` / ``steps`` is the mean batch size.
    """

    requests: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    generation_tokens: int = 0
    first_tokens: tuple[int, ...] = NO_WAITS
    gaps: tuple[int, ...] = NO_GAPS
    steps: int = 0
    sequences: int = 0
    running: int = 0
    waiting: int = 0
    kv: float = 0.0
    profiles: Mapping[str, int] = field(default_factory=dict)
    keys: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Load) -> Load:
        return Load(
            requests=self.requests + other.requests,
            errors=most_counted(self.errors, other.errors),
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            generation_tokens=self.generation_tokens + other.generation_tokens,
            first_tokens=added(self.first_tokens, other.first_tokens),
            gaps=added(self.gaps, other.gaps),
            steps=self.steps + other.steps,
            sequences=self.sequences + other.sequences,
            running=max(self.running, other.running),
            waiting=max(self.waiting, other.waiting),
            kv=max(self.kv, other.kv),
            profiles=most_counted(self.profiles, other.profiles),
            keys=most_counted(self.keys, other.keys),
        )

    @property
    def num_errors(self) -> int:
        return sum(self.errors.values())

    @property
    def mean_batch(self) -> float | None:
        return self.sequences / self.steps if self.steps else None

    def first_token_s(self, share: float) -> float | None:
        return percentile(SLOW_BUCKETS, self.first_tokens, share)

    def gap_s(self, share: float) -> float | None:
        return percentile(FAST_BUCKETS, self.gaps, share)


def added(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def most_counted(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return dict((Counter(left) + Counter(right)).most_common(MAX_NAMES))


def percentile(bounds: tuple[float, ...], counts: tuple[int, ...], share: float) -> float | None:
    """Return the percentile ``share``, assuming an even distribution within each bucket, as Prometheus does.

    Return None without values, and the last bound for values above it.
    """
    total = sum(counts)
    if not total:
        return None
    rank, below, lower = share * total, 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= rank:
            return lower + (bound - lower) * max(0.0, rank - below) / count
        below, lower = below + count, bound
    return bounds[-1]
