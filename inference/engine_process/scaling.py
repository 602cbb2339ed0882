"""When to add or remove a replica, from the sequences that wait and run."""

from __future__ import annotations

from dataclasses import dataclass

DOWN_FACTOR = 6  # removing a replica takes that many times as long as adding one
FULL = 0.5  # of the capacity of the remaining replicas: what the load may fill after one is removed


@dataclass(slots=True)
class ScalingPolicy:
    """Between ``least`` and ``most`` replicas. One is added when sequences have waited for ``patience_s`` without a
    pause, and one is removed when the others would have been half empty for DOWN_FACTOR times as long. Between the two
    nothing changes, so that a steady load does not add and remove replicas in turn.
    """

    least: int
    most: int
    patience_s: float = 10.0
    _waiting_since: float | None = None
    _spare_since: float | None = None

    def decide(self, now: float, *, replicas: int, waiting: int, running: int, capacity: int) -> int:
        """Return how many replicas there should be now: one more, one less or as many as there are.

        ``capacity``: how many sequences all replicas together run at once; 0 while they have no models. Call it about
        once a second.
        """
        remaining = capacity * (replicas - 1) / replicas
        has_spare = not waiting and running <= FULL * remaining
        self._waiting_since = _since(self._waiting_since, now, holds=waiting > 0)
        self._spare_since = _since(self._spare_since, now, holds=has_spare)
        if replicas < self.least or (replicas < self.most and _has_lasted(self._waiting_since, now, self.patience_s)):
            self._waiting_since = None
            return replicas + 1
        if replicas > self.least and _has_lasted(self._spare_since, now, DOWN_FACTOR * self.patience_s):
            self._spare_since = None
            return replicas - 1
        return replicas


def _since(before: float | None, now: float, *, holds: bool) -> float | None:
    if not holds:
        return None
    return now if before is None else before


def _has_lasted(since: float | None, now: float, duration_s: float) -> bool:
    return since is not None and now - since >= duration_s
