"""Drafts by prompt lookup: what followed a sequence's last tokens the last time that they stood in it.

Yang et al. 2023, arXiv 2304.04487; known as prompt lookup or n-gram speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 0.9  # of what is known about a sequence's drafts, at each further one
FIRST_CHANCE = 0.25
FIRST_WEIGHT = 2  # tokens that the first chance counts for

LEARNED_AT_ONCE = 2048  # tokens: bounds what a long prompt costs a step
TOKEN_BITS = 32


class PromptLookup:
    """The n-grams of ``shortest`` to ``longest`` tokens of one sequence that only grows.

    An n-gram is one number, the next one comes from it by a shift: work per token does not grow with the sequence.
    """

    __slots__ = ("_grams", "_num_learned", "_tail", "_tail_mask")

    def __init__(self, shortest: int, longest: int) -> None:
        # Longest first: tokens, the bits that they take in a number, and the place of what follows each n-gram.
        self._grams: list[tuple[int, int, dict[int, int]]] = [
            (n, (1 << n * TOKEN_BITS) - 1, {}) for n in range(longest, shortest - 1, -1)
        ]
        self._tail_mask = self._grams[0][1]
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
        for n, mask, followers in self._grams:
            place = followers.get(tail & mask)
            if place is not None and len(token_ids) >= n:
                period = len(token_ids) - place
                return tuple(token_ids[place + i % period] for i in range(count))
        return ()

    def _learn(self, token_ids: Sequence[int]) -> bool:
        """Note what follows each n-gram; True when all are known. The last one has nothing that follows yet."""
        first, last = self._num_learned, len(token_ids) - 1
        end = min(last, first + LEARNED_AT_ONCE)
        tail = self._tail
        for place, token in enumerate(token_ids[first:end], first + 1):
            tail = (tail << TOKEN_BITS | token) & self._tail_mask
            for n, mask, followers in self._grams:
                if place >= n:
                    followers[tail & mask] = place
        self._tail, self._num_learned = tail, end
        return end == last


@dataclass(slots=True)
class Drafter:
    """One sequence's drafts, and how many of their tokens, each after a right one, proved right.

    A draft that does not run teaches as well: the next token says whether its first one would have been right.
    """

    lookup: PromptLookup
    num_tried: float = 0.0
    num_right: float = 0.0
    _unused: tuple[int, int] | None = None  # place and token of a draft that did not run

    @property
    def chance(self) -> float:
        """Of a token to be right when those before it were."""
        return (self.num_right + FIRST_WEIGHT * FIRST_CHANCE) / (self.num_tried + FIRST_WEIGHT)

    def note(self, num_drafted: int, num_accepted: int) -> None:
        self.num_right = KEPT * self.num_right + num_accepted
        self.num_tried = KEPT * self.num_tried + num_accepted + (num_accepted < num_drafted)

    def note_unused(self, place: int, token: int) -> None:
        """Record a draft token that the step does not check."""
        self._unused = (place, token)

    def propose(self, token_ids: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the next draft: ``count`` tokens or none."""
        if self._unused is not None and self._unused[0] < len(token_ids):
            place, token = self._unused
            self.note(1, int(token_ids[place] == token))
            self._unused = None
        return self.lookup.propose(token_ids, count)
