"""Token sequences that must not appear."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence


class BadWords:
    """A request's forbidden sequences: the last token of one is banned where the tokens before it stand already."""

    __slots__ = ("_by_last", "longest", "single")

    def __init__(self, words: Sequence[Sequence[int]]) -> None:
        self.longest = max(map(len, words), default=0)  # tokens
        self.single = tuple(dict.fromkeys(word[0] for word in words if len(word) == 1))
        self._by_last: dict[int, list[tuple[list[int], int]]] = defaultdict(list)
        for *before, last in (word for word in words if len(word) > 1):
            self._by_last[before[-1]].append((before, last))

    @property
    def has_longer(self) -> bool:
        return bool(self._by_last)

    def banned_after(self, token_ids: list[int]) -> list[int]:
        """Last tokens of words of several tokens that ``token_ids`` (prompt and generated) end with the rest of."""
        words = self._by_last.get(token_ids[-1], ())
        return [last for before, last in words if token_ids[-len(before) :] == before]
