"""Memory and threads of the server during the soak test."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

EVERY_S = 1.0
WARM_UP = 1 / 3  # fraction of the soak test in which buffers, pools and caches fill
ALLOWED = 0.05  # allowed growth after the warm-up, relative to the size at its end
SHORTEST_S = 60.0  # a shorter soak test ends before buffers and pools are full, so it cannot tell a leak from a warm-up


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    rss_mb: float
    threads: int


class Sampler:
    """Samples a process periodically."""

    def __init__(self, pid: int) -> None:
        self.samples: list[Sample] = []
        self._process = psutil.Process(pid)

    async def watch(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            self.note()
            await asyncio.sleep(EVERY_S)

    def note(self) -> None:
        with self._process.oneshot():
            rss, threads = self._process.memory_info().rss, self._process.num_threads()
        self.samples.append(Sample(time.monotonic(), rss / 2**20, threads))


def memory_findings(samples: Sequence[Sample], values: dict[str, float]) -> list[str]:
    """Return the leaks, and add the figures to ``values``. The last sample must be of the idle server.

    Samples of less than ``SHORTEST_S`` give figures only.
    """
    warm = int(len(samples) * WARM_UP)
    early, later = samples[: max(warm, 1)], samples[warm:-1] or samples
    part = max(1, len(later) // 4)
    first = statistics.median(sample.rss_mb for sample in later[:part])
    last = statistics.median(sample.rss_mb for sample in later[-part:])
    most, end = max(sample.threads for sample in early), samples[-1].threads
    values |= {
        "rss_after_warm_up_mb": first,
        "rss_at_the_end_mb": last,
        "rss_slope_mb_per_minute": slope(later) * 60,
        "threads_in_warm_up": float(most),
        "threads_at_the_end": float(end),
    }
    if later[-1].at_s - samples[0].at_s < SHORTEST_S:
        return []
    problems = []
    if last - first > ALLOWED * first:
        problems.append(f"Memory grew from {first:.0f} to {last:.0f} MB after the warm-up.")
    if end > most:
        problems.append(f"Threads leaked: {end} when idle after the load, at most {most} in the warm-up.")
    return problems


def slope(samples: Sequence[Sample]) -> float:
    """Return the least-squares slope in MB per second, or 0 for fewer than two samples."""
    if len(samples) < 2:
        return 0.0
    return statistics.linear_regression([s.at_s for s in samples], [s.rss_mb for s in samples]).slope
