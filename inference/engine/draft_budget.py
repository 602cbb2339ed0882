"""How many drafted tokens a step should check, by what steps of so many tokens were measured to take.

A step's time hardly grows with a few more tokens as long as reading the weights is what takes it; later it does, and
drafts that fail cost more than they give. So a draft runs for as long as tokens per second are expected to rise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inference.engine.prefill_budget import smoothed

EXACT_TOKENS = 16  # steps of more tokens are counted together, GRAIN at a time
GRAIN = 8
FRESH_STEPS = 256  # what was not seen for so long must be seen again: contexts grow, machines change


class DraftBudget:
    """Learns from the steps that were run. ``min_gain`` 0 always allows all drafts."""

    def __init__(self, min_gain: float) -> None:
        self._min_gain = min_gain
        self._seconds: dict[int, float] = {}  # by tokens of a step
        self._noted_at: dict[int, int] = {}
        self._num_steps = 0

    def num_drafts(self, num_sequences: int, chances: Sequence[float]) -> int:
        """How many drafted tokens pay beside one token of each sequence.

        ``chances`` are the tokens' of being right, greatest first. What steps of more tokens than ever seen take is
        found out by running one.
        """
        if not self._min_gain:
            return len(chances)
        if sum(chances) < (self._min_gain - 1) * num_sequences:
            return 0  # not even if they cost nothing
        self._forget_old()
        if not chances or _size(num_sequences) not in self._seconds:
            return 0
        sizes = sorted(self._seconds)
        steps = np.arange(num_sequences, num_sequences + len(chances) + 1)
        seconds = np.interp(steps, sizes, [self._seconds[size] for size in sizes])
        rates = (num_sequences + np.cumsum([0.0, *chances])) / seconds
        rates[0] *= self._min_gain
        return int(rates.argmax())

    def note(self, num_tokens: int, seconds: float) -> None:
        """A step of that many tokens, none of a prompt, took so long."""
        self._num_steps += 1
        size = _size(num_tokens)
        self._seconds[size] = smoothed(self._seconds.get(size), seconds)
        self._noted_at[size] = self._num_steps

    def _forget_old(self) -> None:
        for size in [s for s, at in self._noted_at.items() if self._num_steps - at >= FRESH_STEPS]:
            del self._seconds[size], self._noted_at[size]


def _size(num_tokens: int) -> int:
    return num_tokens if num_tokens <= EXACT_TOKENS else -(-num_tokens // GRAIN) * GRAIN
