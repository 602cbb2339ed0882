"""How many prompt tokens may join a step without holding up those who decode for too long.

A step that also runs prompt tokens takes longer than one that only decodes. The budget keeps it within
``max_stall_factor`` times as long while one prompt is being computed, by the measured cost of a prompt token; each
further one adds as much again, for a longer step brings it into the batch sooner. Requests that cannot be admitted yet,
for want of a place or of memory, do not count: a longer step would not help them.
"""

from __future__ import annotations

SMOOTHING = 0.2
GRAIN = 16  # tokens; also the least that a prompt moves on in a step


class PrefillBudget:
    """Learns from the steps that were run. ``max_stall_factor`` 0 always allows ``max_tokens``."""

    def __init__(self, max_tokens: int, max_stall_factor: float) -> None:
        self._max_tokens = max_tokens
        self._factor = max_stall_factor
        self._decode_s: float | None = None  # a step that only decodes
        self._token_s: float | None = None  # each prompt token beside it

    def tokens(self, num_decoding: int, num_prompts: int) -> int:
        """Return the number of prompt tokens for the next step, in which ``num_prompts`` prompts could move on."""
        if not (num_decoding and self._factor and self._decode_s and self._token_s):
            return self._max_tokens
        allowed = (self._factor - 1) * self._decode_s * max(1, num_prompts) / self._token_s
        return min(self._max_tokens, max(GRAIN, int(allowed) // GRAIN * GRAIN))

    def note(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step of that many single tokens and prompt tokens took so long."""
        if not num_prompt_tokens:
            self._decode_s = smoothed(self._decode_s, seconds)
        elif not num_decoding:
            self._token_s = smoothed(self._token_s, seconds / num_prompt_tokens)
        elif self._decode_s is not None:
            self._token_s = smoothed(self._token_s, max(0.0, seconds - self._decode_s) / num_prompt_tokens)


def smoothed(known: float | None, seen: float) -> float:
    """A running mean that forgets."""
    return seen if known is None else known + SMOOTHING * (seen - known)
