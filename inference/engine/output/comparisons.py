"""KL divergence between the next-token distributions of two sequences over the same tokens."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.engine.messages import DivergenceEvent, ScoresEvent, Scoring
from inference.engine.output.scoring import Scores
from inference.engine.scheduling.sequence import Sequence

ROWS_AT_ONCE = 16  # limits the float64 copies


def divergences(ours: Tensor, theirs: Tensor) -> list[float]:
    """Return KL(ours || theirs) in nats per row of ``[rows, vocab]`` float32 log-probabilities, summed in float64."""
    found: list[float] = []
    for first in range(0, len(ours), ROWS_AT_ONCE):
        p, q = ours[first : first + ROWS_AT_ONCE].double(), theirs[first : first + ROWS_AT_ONCE].double()
        terms = torch.where(p == -torch.inf, 0.0, p.exp() * (p - q))
        found.extend(terms.sum(-1).tolist())
    return found


@dataclass(slots=True)
class _Side:
    """Distributions that the other side has not reached yet."""

    rows: Tensor | None = None
    first: int = 0  # place of the first row in the continuation

    def add(self, first: int, rows: Tensor) -> None:
        if self.rows is None or not len(self.rows):
            self.rows, self.first = rows, first
        else:
            self.rows = torch.cat([self.rows, rows])

    def take(self, count: int) -> Tensor:
        assert self.rows is not None, "the side has rows to take"
        taken, self.rows = self.rows[:count], self.rows[count:].clone()
        self.first += count
        return taken

    @property
    def num_rows(self) -> int:
        return 0 if self.rows is None else len(self.rows)


@dataclass(slots=True)
class _Pair:
    subject: _Side = field(default_factory=_Side)
    reference: _Side = field(default_factory=_Side)
    kl: list[float] = field(default_factory=list)


class Comparisons:
    """The pairs of one model. Keeps the distributions of the side that is ahead until the other catches up."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[object, str], _Pair] = {}

    def __len__(self) -> int:
        return len(self._pairs)

    def take(self, sequence: Sequence, scores: Scores) -> list[ScoresEvent | DivergenceEvent]:
        """Add scores. Returns the events that are complete now: log-probabilities, and the divergences of the pair."""
        scoring = sequence.scoring
        assert scoring is not None, "only scoring sequences have scores"
        first = len(scoring.logprobs)
        scoring.take(scores)
        events: list[ScoresEvent | DivergenceEvent] = []
        if scoring.is_complete:
            events.append(ScoresEvent(sequence.request.index, tuple(scoring.logprobs)))
        if scores.distributions is not None:
            kl = self._compare(sequence.sink, scoring.request, first, scores.distributions)
            if len(kl) == len(scoring.request.token_ids):
                events.append(DivergenceEvent(sequence.request.index, scoring.request.pair, tuple(kl)))
        return events

    def _compare(self, sink: object, scoring: Scoring, first: int, rows: Tensor) -> list[float]:
        """Return the divergences known so far, of all places from the first one."""
        both = self._pairs.setdefault((sink, scoring.pair), _Pair())
        (both.reference if scoring.is_reference else both.subject).add(first, rows)
        count = min(both.subject.num_rows, both.reference.num_rows)
        if count:
            assert both.subject.first == both.reference.first, "both sides score the same tokens"
            both.kl.extend(divergences(both.subject.take(count), both.reference.take(count)))
        return both.kl

    def forget(self, sink: object) -> None:
        """Drop the pairs of a sink that has no sequences left."""
        for key in [key for key in self._pairs if key[0] == sink]:
            del self._pairs[key]
