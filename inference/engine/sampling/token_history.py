"""The tokens of a sequence and how often it generated them, for penalties."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

FIRST_CAPACITY = 64


class TokenHistory:
    """The distinct tokens of a sequence with their counts, kept as two arrays that grow with the vocabulary in use.

    Tokens of the prompt have count 0. They are included only if a penalty applies to them.
    """

    __slots__ = ("_counts", "_ids", "_places")

    def __init__(self, prompt: Iterable[int], generated: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        capacity = max(FIRST_CAPACITY, 2 * len(self._places))
        self._ids = np.zeros(capacity, dtype=np.int64)
        self._ids[: len(self._places)] = list(self._places)
        self._counts = np.zeros(capacity, dtype=np.float32)
        for token in generated:
            self.note(token)

    def note(self, token_id: int) -> None:
        """Count a generated token."""
        place = self._places.setdefault(token_id, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] += 1

    def followed_by(self, tokens: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return :attr:`ids` and :attr:`counts` as if these tokens had been generated too."""
        if not tokens:
            return self.ids, self.counts
        fresh = [token for token in dict.fromkeys(tokens) if token not in self._places]
        places = {token: len(self._places) + i for i, token in enumerate(fresh)}
        counts = np.concatenate([self.counts, np.zeros(len(fresh), dtype=np.float32)])
        for token in tokens:
            counts[places[token] if token in places else self._places[token]] += 1
        return np.concatenate([self.ids, np.array(fresh, dtype=np.int64)]), counts

    @property
    def ids(self) -> NDArray[np.int64]:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Return how often each of :attr:`ids` was generated."""
        return self._counts[: len(self._places)]
