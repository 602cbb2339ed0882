"""Which model takes the next step: all that have work get the same time, not the same number of steps.

A step with a long prompt takes far longer than one that decodes. Were models to take turns, one with long prompts
would take nearly all the time. So the model goes next that has had the least (start-time fair queueing, Goyal et al.
1996, with equal weights), as long as no other has to wait for more than ``max_lag_s`` because of it.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_LAG_S = 0.5


class Rotation:
    """Owned by the engine thread. ``note`` what a step took, then ask for the ``next`` one."""

    def __init__(self, max_lag_s: float = MAX_LAG_S) -> None:
        self._max_lag_s = max_lag_s
        self._used_s: dict[str, float] = {}  # of models with work; only differences mean something

    def next(self, with_work: Collection[str]) -> str:
        """The model that has had the least time of those that have work; at least one has."""
        self._enter(with_work)
        return min(with_work, key=self._used_s.__getitem__)

    def note(self, name: str, seconds: float) -> None:
        """The model has just made a step. Nobody may be owed more than ``max_lag_s``, or others would stand still."""
        used = self._used_s[name] = self._used_s[name] + seconds
        for other, its in self._used_s.items():
            self._used_s[other] = max(its, used - self._max_lag_s)

    def _enter(self, with_work: Collection[str]) -> None:
        """Who had no work saved nothing up: it begins where the one stands that has had least."""
        staying = {name: used for name, used in self._used_s.items() if name in with_work}
        start = min(staying.values(), default=0.0)
        self._used_s = {name: staying.get(name, start) for name in with_work}
