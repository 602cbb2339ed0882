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
    """Distributions of one sequence that are still to be compared with others."""

    num_partners: int
    rows: Tensor | None = None
    first: int = 0  # place of the first row kept, in the continuation

    def add(self, first: int, rows: Tensor) -> None:
        if self.rows is None or not len(self.rows):
            self.rows, self.first = rows, first
        else:
            self.rows = torch.cat([self.rows, rows])

    @property
    def end(self) -> int:
        return self.first + (0 if self.rows is None else len(self.rows))

    def between(self, start: int, end: int) -> Tensor:
        assert self.rows is not None, "the side has rows"
        return self.rows[start - self.first : end - self.first]

    def drop_before(self, place: int) -> None:
        if self.rows is not None and place > self.first:
            self.rows, self.first = self.rows[place - self.first :].clone(), place


@dataclass(slots=True)
class _Pair:
    """The sequences of both sides, and the divergences known so far, by the indices of subject and reference."""

    subjects: dict[int, _Side] = field(default_factory=dict)
    references: dict[int, _Side] = field(default_factory=dict)
    kl: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def add(self, index: int, scoring: Scoring, first: int, rows: Tensor) -> list[tuple[int, list[float]]]:
        """Add distributions. Return the index of each partner that they were compared with, and its divergences."""
        mine = self.references if scoring.is_reference else self.subjects
        others = self.subjects if scoring.is_reference else self.references
        side = mine.setdefault(index, _Side(scoring.num_partners))
        side.add(first, rows)
        found = []
        for partner, other in others.items():
            key = (partner, index) if scoring.is_reference else (index, partner)
            if self._advance(key):
                found.append((partner, self.kl[key]))
            self._trim(other, [k for k in self.kl if (k[0] if scoring.is_reference else k[1]) == partner])
        self._trim(side, [k for k in self.kl if (k[1] if scoring.is_reference else k[0]) == index])
        return found

    def _advance(self, key: tuple[int, int]) -> bool:
        """Compare the places that both sides have reached. Return whether there were any."""
        ours, theirs = self.subjects[key[0]], self.references[key[1]]
        known = self.kl.setdefault(key, [])
        start, end = len(known), min(ours.end, theirs.end)
        if start >= end:
            return False
        known.extend(divergences(ours.between(start, end), theirs.between(start, end)))
        return True

    def _trim(self, side: _Side, keys: list[tuple[int, int]]) -> None:
        """Drop the distributions that all partners have been compared with."""
        if len(keys) == side.num_partners:
            side.drop_before(min(len(self.kl[key]) for key in keys))


class Comparisons:
    """The pairs of one model. Keeps the distributions of a side that is ahead until its partners catch up."""

    def __init__(self) -> None:
        self._pairs: dict[object, dict[str, _Pair]] = {}  # by sink, then name

    def __len__(self) -> int:
        return sum(map(len, self._pairs.values()))

    def take(self, sequence: Sequence, scores: Scores) -> list[ScoresEvent | DivergenceEvent]:
        """Add scores. Returns the events that are complete now: log-probabilities, and the divergences of pairs."""
        scoring, index = sequence.scoring, sequence.request.index
        assert scoring is not None, "only scoring sequences have scores"
        first = len(scoring.logprobs)
        scoring.take(scores)
        events: list[ScoresEvent | DivergenceEvent] = []
        if scoring.is_complete:
            events.append(ScoresEvent(index, tuple(scoring.logprobs)))
        if scores.distributions is not None:
            request = scoring.request
            pair = self._pairs.setdefault(sequence.sink, {}).setdefault(request.pair, _Pair())
            for partner, kl in pair.add(index, request, first, scores.distributions):
                if len(kl) == len(request.token_ids):
                    named = partner if request.num_partners > 1 else index
                    events.append(DivergenceEvent(named, request.pair, tuple(kl)))
        return events

    def forget(self, sink: object) -> None:
        """Drop the pairs of a sink that has no sequences left."""
        self._pairs.pop(sink, None)
