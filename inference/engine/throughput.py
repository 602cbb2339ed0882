"""How fast requests are completed, for a Retry-After that means something."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 30.0
UNKNOWN_S = 1.0
LONGEST_S = 60.0


class CompletionRate:
    """Completions of the last ``WINDOW_S`` seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=4096)

    def note(self, count: int) -> None:
        now = self._clock()
        self._ends.extend([now] * count)

    def seconds_for(self, count: int) -> float:
        """Seconds until ``count`` requests have probably ended, 1 to 60."""
        now = self._clock()
        while self._ends and self._ends[0] < now - WINDOW_S:
            self._ends.popleft()
        if not self._ends:
            return UNKNOWN_S
        rate = len(self._ends) / max(now - self._ends[0], 0.1)
        return min(max(count / rate, 1.0), LONGEST_S)
