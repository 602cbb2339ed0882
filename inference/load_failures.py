"""Loads that failed, and when each may be tried again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

FIRST_RETRY_S = 10.0
LONGEST_RETRY_S = 300.0


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """``retry_at`` is a reading of the registry's clock."""

    message: str
    retry_at: float
    count: int


class LoadFailures:
    """By model name; the pause doubles with each failure in a row. Only the loader thread notes, anyone may read."""

    def __init__(self, clock: Callable[[], float], first_retry_s: float = FIRST_RETRY_S) -> None:
        self._clock = clock
        self._first_retry_s = first_retry_s
        self._failures: dict[str, LoadFailure] = {}

    def note(self, name: str, message: str) -> None:
        last = self._failures.get(name)
        count = 1 if last is None else last.count + 1
        pause = min(self._first_retry_s * 2 ** (count - 1), LONGEST_RETRY_S)
        self._failures[name] = LoadFailure(message, self._clock() + pause, count)

    def forget(self, name: str) -> None:
        self._failures.pop(name, None)

    def get(self, name: str) -> LoadFailure | None:
        return self._failures.get(name)

    def is_recent(self, name: str) -> bool:
        """Whether it is too early to try again."""
        failure = self._failures.get(name)
        return failure is not None and failure.retry_at > self._clock()
