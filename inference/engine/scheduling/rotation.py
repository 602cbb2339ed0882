"""Which of several models, or kinds of work of one model, takes the next step of the engine thread."""

from __future__ import annotations

from collections.abc import Collection

MAX_LAG_S = 0.5
BACKGROUND_WEIGHT = 4.0  # a background step counts as this many foreground steps


class Rotation:
    """Chooses the model that takes the next step, so that all models with work get the same time. The batch and the
    analyses of one model share its time in the same way.

    A step with a long prompt takes far longer than one that only decodes, so taking turns would give nearly all the
    time to models with long prompts. The model that has had the least time goes next (start-time fair queueing, Goyal
    et al. 1996, with equal weights), as long as no other model waits for more than ``max_lag_s`` because of it.

    Used by the engine thread only: call :meth:`note` with the duration of a step, then :meth:`next`.
    """

    def __init__(self, max_lag_s: float = MAX_LAG_S) -> None:
        self._max_lag_s = max_lag_s
        self._used_s: dict[str, float] = {}  # of models with work; only differences mean something

    def next(self, with_work: Collection[str]) -> str:
        """Return the model with work that has had the least time. At least one must have work."""
        self._enter(with_work)
        return min(with_work, key=self._used_s.__getitem__)

    def note(self, name: str, seconds: float) -> None:
        """Record a step's duration. No model is owed more than ``max_lag_s``, or the others would stall."""
        used = self._used_s[name] = self._used_s[name] + seconds
        for other, its in self._used_s.items():
            self._used_s[other] = max(its, used - self._max_lag_s)

    def _enter(self, with_work: Collection[str]) -> None:
        """Let models that had no work start level with the one that had the least time. Idle time is not saved up."""
        staying = {name: used for name, used in self._used_s.items() if name in with_work}
        start = min(staying.values(), default=0.0)
        self._used_s = {name: staying.get(name, start) for name in with_work}
