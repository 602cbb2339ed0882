"""Which row of the steering tables each token of a sequence uses."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhaseRows:
    """Rows of one phase's tokens by their index in it: ``rows[i]`` from ``starts[i]`` on, 0 where nothing acts."""

    starts: tuple[int, ...]  # the first is 0
    rows: tuple[int, ...]
    special_rows: tuple[int, ...]  # of special tokens

    def of(self, index: int, *, is_special: bool) -> int:
        place = bisect_right(self.starts, index) - 1
        return self.special_rows[place] if is_special else self.rows[place]


@dataclass(frozen=True, slots=True)
class SteeringRows:
    """Which rows an intervention's tokens have; ``rows`` are all of its own."""

    fingerprint: str
    prompt: PhaseRows
    generation: PhaseRows
    rows: frozenset[int]
    skip_token_ids: frozenset[int]

    def of_tokens(self, token_ids: Sequence[int], start: int, num_prompt: int) -> list[int]:
        """The rows of a sequence's tokens from place ``start`` on; 0 where one is left alone."""
        return [self._of(token, start + i, num_prompt) for i, token in enumerate(token_ids)]

    def _of(self, token: int, place: int, num_prompt: int) -> int:
        is_special = token in self.skip_token_ids
        if place < num_prompt:
            return self.prompt.of(place, is_special=is_special)
        return self.generation.of(place - num_prompt, is_special=is_special)
