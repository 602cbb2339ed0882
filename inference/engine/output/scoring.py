"""The continuation that one sequence is to score, and how far that has come."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from inference.engine.messages import Scoring


@dataclass(frozen=True, slots=True)
class Scores:
    """What one step scored: places ``first``, ``first + 1`` ... and the distributions of the tokens after them."""

    first: int
    logprobs: list[float]  # of the tokens that do follow
    distributions: Tensor | None  # [places, vocab] float32 log-probabilities; None where nobody compares


class SequenceScoring:
    """Place ``p`` tells about the token at ``p + 1``. Each is scored once, however often it is computed."""

    def __init__(self, scoring: Scoring, num_prompt: int) -> None:
        self.request = scoring
        self._first = num_prompt - 1
        self.logprobs: list[float] = []

    @property
    def next_place(self) -> int:
        return self._first + len(self.logprobs)

    @property
    def end(self) -> int:
        """Behind the last place that tells about a token."""
        return self._first + len(self.request.token_ids)

    @property
    def is_complete(self) -> bool:
        return self.next_place == self.end

    @property
    def is_finite(self) -> bool:
        return not any(math.isnan(value) for value in self.logprobs)

    def places(self, start: int, num_tokens: int) -> range:
        """Those to be scored when the tokens from place ``start`` on run; all up to the last of them."""
        first = max(start, self.next_place)
        return range(first, max(first, min(start + num_tokens, self.end)))

    def take(self, scores: Scores) -> None:
        assert scores.first == self.next_place, "places are scored in their order"
        self.logprobs.extend(scores.logprobs)
