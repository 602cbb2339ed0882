"""How many lines of batches run at once in this process, from the engine's load."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inference.client import EngineStats

MAX_LINES = 64


def max_lines(stats: EngineStats, *, num_lines: int, max_batch_size: int) -> int:
    """Return how many lines may run at once, of which ``num_lines`` already run.

    While other requests wait, no line is started. While others run, lines take at most half of the engine's slots.
    Otherwise they take the free ones, except for a quarter of all, so that a request that arrives starts at once.
    """
    if are_others_waiting(stats):
        return 0
    half = max(1, max_batch_size // 2)
    if stats.running > stats.background_running:
        return min(half, MAX_LINES)
    reserve = max(1, max_batch_size // 4)
    free = min(num_lines + stats.free_slots, max_batch_size) - reserve
    return min(max(half, free), MAX_LINES)


def are_others_waiting(stats: EngineStats) -> bool:
    """Return whether requests with a client that waits are queued."""
    return stats.waiting > stats.background_waiting


class BatchWindow:
    """Shares the lines that may run at once equally among the running batches. Thread-safe: each has a thread."""

    def __init__(self, stats: Callable[[], EngineStats], max_batch_size: Callable[[], int]) -> None:
        self._stats = stats
        self._max_batch_size = max_batch_size
        self._lock = threading.Lock()
        self._lines: dict[int, int] = {}

    def __len__(self) -> int:
        """Return the number of running batches."""
        return len(self._lines)

    @contextmanager
    def entry(self) -> Iterator[WindowShare]:
        """Provide a batch's share while the batch runs."""
        share = WindowShare(self)
        with self._lock:
            self._lines[id(share)] = 0
        try:
            yield share
        finally:
            with self._lock:
                del self._lines[id(share)]

    def try_start(self, key: int, limit: int) -> bool:
        stats = self._stats()
        with self._lock:
            total = sum(self._lines.values())
            window = max_lines(stats, num_lines=total, max_batch_size=self._max_batch_size())
            own = min(limit, math.ceil(window / len(self._lines)))
            may_start = total < window and self._lines[key] < own
            self._lines[key] += may_start
            return may_start

    def end(self, key: int) -> None:
        with self._lock:
            self._lines[key] -= 1


class WindowShare:
    """The lines of one batch."""

    def __init__(self, window: BatchWindow) -> None:
        self._window = window

    def try_start(self, limit: int = MAX_LINES) -> bool:
        """Count a line as running if it may start now; ``limit``: how many lines of the batch may run at once."""
        return self._window.try_start(id(self), limit)

    def end(self) -> None:
        """Count a line as ended."""
        self._window.end(id(self))
