"""How many prompt tokens and drafted tokens a step runs beside the sequences that decode.

Both budgets learn from the measured duration of earlier steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SMOOTHING = 0.2
PAUSE_S = 0.3  # for prompt tokens in one step beside sequences that decode
SHORT_PAUSE_S = 0.15  # on a fast processor, for FULL_TOKENS or more
FULL_TOKENS = 320  # products of more rows do not take less for each
MAX_PAUSE_S = 1.0  # on a slow processor, for EFFICIENT_TOKENS: people notice longer gaps in a stream
EFFICIENT_TOKENS = 160  # products of fewer rows take longer for each
PREFILL_GRAIN = 16  # tokens; also the minimum by which a prompt advances in a step, if no larger one is given
EXACT_TOKENS = 16  # steps of more tokens are counted together, DRAFT_GRAIN at a time
DRAFT_GRAIN = 8
FRESH_STEPS = 256  # measurements expire after so many steps, because contexts grow and machines change


class PrefillBudget:
    """Limits prompt tokens so that they do not hold up the sequences that decode.

    A step that also runs prompt tokens takes longer than one that only decodes. While one prompt is being computed,
    the budget keeps the step within ``max_stall_factor`` times as long as one in which as many sequences only decode,
    by the measured cost of a prompt token. Each further prompt adds as much again, because a longer step brings it into
    the batch sooner. Only sequences that are older than the prompts are protected: if they are a part of those that
    decode, the step may take longer in proportion. Requests that cannot be admitted for lack of a slot or of memory do
    not count. While any sequence decodes, prompt tokens take at most ``PAUSE_S`` of a step. On a fast processor, they
    take as long as ``FULL_TOKENS``, but at least ``SHORT_PAUSE_S``; on a slow one as long as ``EFFICIENT_TOKENS``, but
    at most ``MAX_PAUSE_S``. If nothing decodes or ``max_stall_factor`` is 0, ``max_tokens`` are allowed; ``min_tokens``
    always are.
    """

    def __init__(self, max_tokens: int, max_stall_factor: float, min_tokens: int = 0) -> None:
        self._max_tokens = max_tokens
        self._min_tokens = max(min_tokens, PREFILL_GRAIN)
        self._factor = max_stall_factor
        self._decode_s: dict[int, float] = {}  # a step that only decodes, by its number of sequences
        self._token_s: float | None = None  # each prompt token in addition

    def tokens(self, num_decoding: int, num_protected: int, num_prompts: int) -> int:
        """Return the number of prompt tokens for the next step, in which ``num_prompts`` prompts could move on.

        ``num_protected`` of the ``num_decoding`` sequences are older than the prompts.
        """
        if not (num_decoding and self._factor and self._token_s):
            return self._max_tokens
        seconds = min(PAUSE_S, max(SHORT_PAUSE_S, FULL_TOKENS * self._token_s))
        seconds = min(MAX_PAUSE_S, max(seconds, EFFICIENT_TOKENS * self._token_s))
        if num_protected and self._decode_s:
            share = num_decoding / num_protected
            beyond = (self._factor - 1) * self._seconds(num_decoding)
            seconds = min(seconds, beyond * max(1, num_prompts) * share)
        allowed = int(seconds / self._token_s) // PREFILL_GRAIN * PREFILL_GRAIN
        return min(self._max_tokens, max(self._min_tokens, allowed))

    def note(self, num_decoding: int, num_prompt_tokens: int, seconds: float) -> None:
        """Record the duration of a step with these numbers of single tokens and prompt tokens."""
        if not num_prompt_tokens:
            self._decode_s[num_decoding] = smoothed(self._decode_s.get(num_decoding), seconds)
        elif not num_decoding:
            self._token_s = smoothed(self._token_s, seconds / num_prompt_tokens)
        elif self._decode_s:
            beyond = max(0.0, seconds - self._seconds(num_decoding))
            self._token_s = smoothed(self._token_s, beyond / num_prompt_tokens)

    def _seconds(self, num_decoding: int) -> float:
        """Return the duration of a step that only decodes; the nearest measured one beyond those measured."""
        sizes = sorted(self._decode_s)
        return float(np.interp(num_decoding, sizes, [self._decode_s[size] for size in sizes]))


def smoothed(known: float | None, seen: float) -> float:
    """Return an exponential moving average."""
    return seen if known is None else known + SMOOTHING * (seen - known)


class DraftBudget:
    """Limits drafted tokens to those that are expected to pay.

    A few more tokens hardly lengthen a step as long as reading the weights dominates it; beyond that, drafts that are
    rejected cost more than they give. Drafts are extended for as long as tokens per second are expected to rise.
    ``min_gain`` 0 always allows all drafts.
    """

    def __init__(self, min_gain: float) -> None:
        self._min_gain = min_gain
        self._seconds: dict[int, float] = {}  # by tokens of a step
        self._noted_at: dict[int, int] = {}
        self._num_steps = 0

    def num_drafts(self, num_sequences: int, chances: Sequence[float]) -> int:
        """Return how many draft tokens are worth computing in addition to one token of each sequence.

        ``chances`` are the tokens' probabilities of being accepted, in descending order. The time of a step larger than
        all before is measured by running one.
        """
        if not self._min_gain:
            return len(chances)
        if sum(chances) < (self._min_gain - 1) * num_sequences:
            return 0  # not even if drafts cost nothing
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
        """Record the duration of a step without prompt tokens."""
        self._num_steps += 1
        size = _size(num_tokens)
        self._seconds[size] = smoothed(self._seconds.get(size), seconds)
        self._noted_at[size] = self._num_steps

    def _forget_old(self) -> None:
        for size in [s for s, at in self._noted_at.items() if self._num_steps - at >= FRESH_STEPS]:
            del self._seconds[size], self._noted_at[size]


def _size(num_tokens: int) -> int:
    return num_tokens if num_tokens <= EXACT_TOKENS else -(-num_tokens // DRAFT_GRAIN) * DRAFT_GRAIN
