"""Drafts by prompt lookup: what followed a sequence's last tokens the last time that they stood in it.

Yang et al. 2023, arXiv 2304.04487; known as prompt lookup or n-gram speculation.
"""

from __future__ import annotations

from collections.abc import Sequence

LEARNED_AT_ONCE = 2048  # tokens: bounds what a long prompt costs a step
TOKEN_BITS = 32


class PromptLookup:
    """The n-grams of ``shortest`` to ``longest`` tokens of one sequence that only grows.

    An n-gram is one number, the next one comes from it by a shift: work per token does not grow with the sequence.
    """

    __slots__ = ("_followers", "_masks", "_num_learned", "_tail")

    def __init__(self, shortest: int, longest: int) -> None:
        self._followers: dict[int, dict[int, int]] = {n: {} for n in range(longest, shortest - 1, -1)}
        self._masks = {n: (1 << n * TOKEN_BITS) - 1 for n in self._followers}
        self._num_learned = 0  # tokens whose n-grams, those that end with them, are known
        self._tail = 0  # the last of them, as a number

    def propose(self, token_ids: Sequence[int], count: int) -> tuple[int, ...]:
        """``count`` tokens that followed the longest known end of ``token_ids`` when it stood there last, or none.

        Where fewer than ``count`` followed so far, they repeat as a loop would. None also as long as a long prompt is
        being learnt, which takes several calls.
        """
        if not self._learn(token_ids):
            return ()
        tail = self._tail << TOKEN_BITS | token_ids[-1]
        for n, followers in self._followers.items():
            place = followers.get(tail & self._masks[n])
            if place is not None and len(token_ids) >= n:
                period = len(token_ids) - place
                return tuple(token_ids[place + i % period] for i in range(count))
        return ()

    def _learn(self, token_ids: Sequence[int]) -> bool:
        """Note what follows each n-gram; True when all are known. The last one has nothing that follows yet."""
        first, last = self._num_learned, len(token_ids) - 1
        end = min(last, first + LEARNED_AT_ONCE)
        longest = max(self._masks.values())
        tail = self._tail
        for place, token in enumerate(token_ids[first:end], first + 1):
            tail = (tail << TOKEN_BITS | token) & longest
            for n, followers in self._followers.items():
                if place >= n:
                    followers[tail & self._masks[n]] = place
        self._tail, self._num_learned = tail, end
        return end == last
