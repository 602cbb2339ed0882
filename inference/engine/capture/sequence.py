"""The captures of one sequence, and their progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.captures import ActivationCapture, CaptureSpec, FeatureValues


@dataclass(frozen=True, slots=True, eq=False)
class CapturedRows:
    """What a step found for a task: a row for each place, or of a pooled read one that sums up all of them."""

    number: int
    places: tuple[int, ...]
    values: NDArray[np.float32] | NDArray[np.float64]  # sums for means, in float64
    features: NDArray[np.int64] | None = None


class SequenceCapture:
    """Captures each position once. Positions that are recomputed after a preemption are skipped."""

    def __init__(self, specs: tuple[CaptureSpec, ...], num_prompt: int) -> None:
        self.specs = specs
        self._num_prompt = num_prompt
        self._num_read = 0  # places from the beginning that are read, or need not be
        self._pools = {n: _Pool(spec) for n, spec in enumerate(specs) if spec.pooling != "none"}

    @property
    def has_pools(self) -> bool:
        """Guesses cannot be taken back out of a pool."""
        return bool(self._pools)

    def next_place(self, num_tokens: int) -> int:
        """The first place that must still be run to be read; ``num_tokens`` where there is none before."""
        strict = (spec for spec in self.specs if not spec.passes_over_cached)
        return min(
            (spec.first_from(self._num_read, self._num_prompt, num_tokens) for spec in strict), default=num_tokens
        )

    def places(self, spec: CaptureSpec, tokens: Many[int], start: int) -> list[int]:
        """Which of the tokens from place ``start`` on are to be read."""
        places = spec.places(max(start, self._num_read), start + len(tokens), self._num_prompt)
        return [place for place in places if tokens[place - start] not in spec.skip_token_ids]

    def take(self, found: Iterable[CapturedRows], end: int) -> tuple[ActivationCapture, ...]:
        """What a step found before place ``end``, but for what is pooled. Call with growing ends."""
        captures = tuple(capture for rows in found for capture in self._take(rows, end))
        self._num_read = max(self._num_read, end)
        return captures

    def finish(self) -> tuple[ActivationCapture, ...]:
        """What was pooled; a read of which no token came has none."""
        return tuple(pool.result(number) for number, pool in self._pools.items() if pool.num_tokens)

    def _take(self, found: CapturedRows, end: int) -> Iterator[ActivationCapture]:
        if found.number in self._pools:
            if found.places[0] >= self._num_read:
                self._pools[found.number].add(found)
            return
        probe = self.specs[found.number].probe
        chosen = np.array([self._num_read <= place < end for place in found.places])
        if isinstance(probe, FeatureValues) and probe.above:
            chosen &= (found.values > np.array(probe.above)).any(axis=1)
        if chosen.any():
            yield ActivationCapture(
                found.number,
                int(chosen.sum()),
                found.values[chosen],
                tuple(place for place, is_chosen in zip(found.places, chosen, strict=True) if is_chosen),
                None if found.features is None else found.features[chosen],
            )


class _Pool:
    """One pooled read so far."""

    def __init__(self, spec: CaptureSpec) -> None:
        self._pooling = spec.pooling
        self._values: NDArray[np.float64] | NDArray[np.float32] | None = None
        self.num_tokens = 0

    def add(self, found: CapturedRows) -> None:
        self.num_tokens += len(found.places)
        if self._values is None or self._pooling == "last":
            self._values = found.values
        elif self._pooling == "mean":
            self._values = self._values + found.values
        else:
            self._values = np.maximum(self._values, found.values)

    def result(self, number: int) -> ActivationCapture:
        assert self._values is not None, "asked only where a token came"
        values = self._values / self.num_tokens if self._pooling == "mean" else self._values
        return ActivationCapture(number, self.num_tokens, values.astype(np.float32))
