"""Drafts by prompt lookup: the tokens that followed the last earlier occurrence of a sequence's last tokens.

Yang et al. 2023, arXiv 2304.04487; known as prompt lookup or n-gram speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 0.9  # weight of earlier drafts of a sequence
FIRST_CHANCE = 0.25
FIRST_WEIGHT = 2  # weight of the first chance, in tokens

LEARNED_AT_ONCE = 2048  # tokens; limits the cost of a long prompt per step
TOKEN_BITS = 32


class PromptLookup:
    """The n-grams of ``shortest`` to ``longest`` tokens of one growing sequence.

    An n-gram is one number, and the next one is computed from it by a shift, so the work per token does not grow with
    the sequence.
    """

    __slots__ = ("_grams", "_num_learned", "_tail", "_tail_mask")

    def __init__(self, shortest: int, longest: int) -> None:
        # Longest first: tokens, a mask of their bits, and the place of what follows each n-gram.
        self._grams: list[tuple[int, int, dict[int, int]]] = [
            (n, (1 << n * TOKEN_BITS) - 1, {}) for n in range(longest, shortest - 1, -1)
        ]
        self._tail_mask = self._grams[0][1]
        self._num_learned = 0  # tokens whose n-grams (those that end with them) are recorded
        self._tail = 0  # the last ones as a number

    def propose(self, token_ids: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the ``count`` tokens that followed the last earlier occurrence of the longest known suffix of
        ``token_ids``, or none.

        If fewer than ``count`` tokens followed so far, they are repeated, as in a loop. None also while a long prompt
        is being indexed, which takes several calls.
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
        """Record what follows each n-gram; return True when all are recorded. Nothing follows the last n-gram yet."""
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
    """The drafts of one sequence, and the share of drafted tokens that were accepted, each after an accepted one.

    A draft that does not run also counts: the next token shows whether its first token would have been accepted.
    """

    lookup: PromptLookup
    num_tried: float = 0.0
    num_right: float = 0.0
    _unused: tuple[int, int] | None = None  # place and token of a draft that did not run

    @property
    def chance(self) -> float:
        """The probability that a drafted token is accepted if those before it are."""
        return (self.num_right + FIRST_WEIGHT * FIRST_CHANCE) / (self.num_tried + FIRST_WEIGHT)

    def note(self, num_drafted: int, num_accepted: int) -> None:
        self.num_right = KEPT * self.num_right + num_accepted
        self.num_tried = KEPT * self.num_tried + num_accepted + (num_accepted < num_drafted)

    def note_unused(self, place: int, token: int) -> None:
        """Record a drafted token that the step does not verify."""
        self._unused = (place, token)

    def propose(self, token_ids: Sequence[int], count: int) -> tuple[int, ...]:
        """Return the next draft: ``count`` tokens or none."""
        if self._unused is not None and self._unused[0] < len(token_ids):
            place, token = self._unused
            self.note(1, int(token_ids[place] == token))
            self._unused = None
        return self.lookup.propose(token_ids, count)
