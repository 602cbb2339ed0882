"""Count attempts, such as failed logins, by name within a time window."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

MAX_NAMES = 10_000


@dataclass(slots=True)
class _Window:
    ends_at: float
    count: int = 0


class Attempts:
    """At most ``limit`` attempts by each name within ``window_s`` seconds of the first; 0: no limit. Thread-safe.

    Kept in this process for the ``max_names`` most recent names, so that a flood of names uses no memory.
    """

    def __init__(
        self,
        limit: int,
        window_s: float,
        *,
        max_names: int = MAX_NAMES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self._window_s = window_s
        self._max_names = max_names
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def take(self, name: str) -> float:
        """Count an attempt and return 0, or return the seconds to wait when the limit is reached."""
        if not self.limit:
            return 0.0
        with self._lock:
            now = self._clock()
            window = self._windows.get(name)
            if window is None or window.ends_at <= now:
                window = self._windows[name] = _Window(now + self._window_s)
            self._windows.move_to_end(name)
            while len(self._windows) > self._max_names:
                self._windows.popitem(last=False)
            if window.count >= self.limit:
                return window.ends_at - now
            window.count += 1
            return 0.0

    def give_back(self, name: str) -> None:
        """Remove one attempt from the count."""
        with self._lock:
            window = self._windows.get(name)
            if window is not None and window.count:
                window.count -= 1

    def __len__(self) -> int:
        return len(self._windows)
