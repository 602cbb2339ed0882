"""The scoring of a given continuation, and its progress."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from inference.engine.messages import Scoring


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one step: places ``first``, ``first + 1`` ... and the distributions of the tokens after them."""

    first: int
    logprobs: list[float]  # of the following tokens
    distributions: Tensor | None  # [places, vocab] float32 log-probabilities; None without a comparison


class SequenceScoring:
    """Place ``p`` scores the token at ``p + 1``. Each place is scored once, even if it is recomputed."""

    def __init__(self, scoring: Scoring, num_prompt: int) -> None:
        self.request = scoring
        self._first = num_prompt - 1
        self.logprobs: list[float] = []

    @property
    def next_place(self) -> int:
        return self._first + len(self.logprobs)

    @property
    def end(self) -> int:
        """The place after the last one to score."""
        return self._first + len(self.request.token_ids)

    @property
    def is_complete(self) -> bool:
        return self.next_place == self.end

    @property
    def is_finite(self) -> bool:
        return not any(math.isnan(value) for value in self.logprobs)

    def places(self, start: int, num_tokens: int) -> range:
        """Return the places to score when the tokens from place ``start`` on run."""
        first = max(start, self.next_place)
        return range(first, max(first, min(start + num_tokens, self.end)))

    def take(self, scores: Scores) -> None:
        assert scores.first == self.next_place, "tokens are scored in order"
        self.logprobs.extend(scores.logprobs)
