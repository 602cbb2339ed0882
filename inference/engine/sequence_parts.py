"""To which part each token belongs that one sequence generated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from inference.engine.part_machine import Standing, part_machine
from inference.segments import Part, PartRules

PartPlace = tuple[Part, int]
"""A token's part, and its index among the tokens of that part."""


class SequenceParts:
    """Of one sequence. ``bytes_of`` gives a token's text, which may be a part of a character."""

    def __init__(self, rules: PartRules, bytes_of: Callable[[int], bytes]) -> None:
        self._machine = part_machine(rules)
        self._bytes_of = bytes_of
        self._places: list[PartPlace] = []
        self._standing = Standing(rules.first)
        self._counts: Counter[Part] = Counter()

    @property
    def num_known(self) -> int:
        return len(self._places)

    def take(self, token_ids: Sequence[int]) -> None:
        """Further tokens, generated for good."""
        self._standing = self._follow(token_ids, self._standing, self._counts, self._places)

    def places(self, token_ids: Sequence[int], first: int) -> list[PartPlace]:
        """Of the generated tokens from the ``first`` on; those behind the ones taken are guesses."""
        found = self._places[first : first + len(token_ids)]
        if len(found) < len(token_ids):
            self._follow(token_ids[len(found) :], self._standing, self._counts.copy(), found)
        return found

    def _follow(
        self, token_ids: Sequence[int], standing: Standing, counts: Counter[Part], places: list[PartPlace]
    ) -> Standing:
        for token in token_ids:
            standing, part = self._machine.step(standing, self._bytes_of(token))
            places.append((part, counts[part]))
            counts[part] += 1
        return standing
