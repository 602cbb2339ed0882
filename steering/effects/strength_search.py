"""Find the strength at which a divergence meets a target, in few evaluations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MAX_EVALUATIONS = 4
TOLERANCE = 0.15  # of the natural logarithm of kl / target
_TINY = 1e-9
_LARGEST_STEP = 8.0
_POWERS = (0.5, 8.0)  # plausible exponents of a divergence as a function of the strength; 2 for small strengths


@dataclass(slots=True)
class StrengthSearch:
    """A search for ``kl(strength) = target`` with ``0 < strength <= limit``.

    Divergences grow like a power of the strength, so the next guess is interpolated on logarithms of both. ``note`` the
    divergence at ``guess`` until ``is_finished``; None means that the model became unstable there.
    """

    target: float
    limit: float
    guess: float
    points: list[tuple[float, float]] = field(default_factory=list)
    is_finished: bool = False
    is_capped: bool = False
    _num_tried: int = 0
    _unstable_from: float = math.inf

    def __post_init__(self) -> None:
        self.guess = min(self.guess, self.limit)

    def note(self, kl: float | None) -> None:
        """Note the divergence at ``guess``, and choose the next guess unless the search is finished."""
        self._num_tried += 1
        if kl is None:
            self._unstable_from = min(self._unstable_from, self.guess)
            following = self.guess / _LARGEST_STEP
        else:
            self.points.append((self.guess, max(kl, _TINY)))
            if abs(self._error(self.points[-1])) <= TOLERANCE:
                self.is_finished = True
                return
            following = self._next()
        if following >= self.limit and self.guess >= self.limit:
            self.is_finished = self.is_capped = True
        elif self._num_tried >= MAX_EVALUATIONS:
            self.is_finished = True
        self.guess = min(following, self.limit)

    @property
    def best(self) -> tuple[float, float] | None:
        """The measured (strength, divergence) closest to the target; None if all were unstable."""
        return min(self.points, key=lambda point: abs(self._error(point)), default=None)

    def _error(self, point: tuple[float, float]) -> float:
        return math.log(point[1] / self.target)

    def _next(self) -> float:
        below = [point for point in self.points if point[1] < self.target]
        above = [point for point in self.points if point[1] >= self.target]
        if below and above:
            low, high = max(below), min(above)
        else:
            low, high = sorted(self.points)[-2:] if len(self.points) > 1 else (self.points[0], self.points[0])
        power = 2.0
        if high[0] > low[0] and high[1] > low[1]:
            power = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
        start = low if below else high
        step = math.pow(self.target / start[1], 1 / min(max(power, _POWERS[0]), _POWERS[1]))
        following = start[0] * min(max(step, 1 / _LARGEST_STEP), _LARGEST_STEP)
        if below and above and not low[0] < following < high[0]:
            following = math.sqrt(low[0] * high[0])
        if following >= self._unstable_from:
            following = math.sqrt(start[0] * self._unstable_from)
        return following
