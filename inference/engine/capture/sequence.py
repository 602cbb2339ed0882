"""The captures of one sequence, and their progress."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.captures import ActivationCapture, CaptureSpec, FeatureValues, Projections


@dataclass(frozen=True, slots=True, eq=False)
class CapturedRows:
    """The captured values of a task: a row per place, or one combined row of a pooled capture."""

    number: int
    places: tuple[int, ...]
    values: NDArray[np.float32] | NDArray[np.float64]  # sums for means, in float64
    features: NDArray[np.int64] | None = None


class SequenceCapture:
    """Captures each position once. Positions that are recomputed after a preemption are skipped."""

    def __init__(self, specs: tuple[CaptureSpec, ...], num_prompt: int) -> None:
        self.specs = specs
        self._num_prompt = num_prompt
        self._num_captured = 0  # leading places that are captured or not needed
        self._pools = {n: _Pool(spec) for n, spec in enumerate(specs) if spec.pooling != "none"}

    @property
    def has_pools(self) -> bool:
        """Whether captures are pooled. Drafts cannot be removed from a pool."""
        return bool(self._pools)

    def next_place(self, num_tokens: int) -> int:
        """Return the first place that must still run for a capture; ``num_tokens`` if there is none."""
        strict = (spec for spec in self.specs if not spec.passes_over_cached)
        return min(
            (spec.first_from(self._num_captured, self._num_prompt, num_tokens) for spec in strict), default=num_tokens
        )

    def places(self, spec: CaptureSpec, tokens: Many[int], start: int) -> list[int]:
        """Return the places of the tokens, from ``start`` on, that the spec selects."""
        places = spec.places(max(start, self._num_captured), start + len(tokens), self._num_prompt)
        return [place for place in places if tokens[place - start] not in spec.skip_token_ids]

    def take(self, found: Iterable[CapturedRows], end: int) -> tuple[ActivationCapture, ...]:
        """Return the captures of a step before place ``end``, without pooled ones. ``end`` must not decrease."""
        captures = tuple(capture for rows in found for capture in self._take(rows, end))
        self._num_captured = max(self._num_captured, end)
        return captures

    def finish(self) -> tuple[ActivationCapture, ...]:
        """Return the pooled captures. Specs without any token have none."""
        return tuple(pool.result(number) for number, pool in self._pools.items() if pool.num_tokens)

    def _take(self, found: CapturedRows, end: int) -> Iterator[ActivationCapture]:
        if found.number in self._pools:
            if found.places[0] >= self._num_captured:
                self._pools[found.number].add(found)
            return
        probe = self.specs[found.number].probe
        selected = np.array([self._num_captured <= place < end for place in found.places])
        if isinstance(probe, FeatureValues | Projections) and probe.above:
            selected &= (found.values > np.array(probe.above)).any(axis=1)
        if selected.any():
            yield ActivationCapture(
                found.number,
                int(selected.sum()),
                found.values[selected],
                tuple(place for place, is_selected in zip(found.places, selected, strict=True) if is_selected),
                None if found.features is None else found.features[selected],
            )


class _Pool:
    """The state of a pooled capture."""

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
        assert self._values is not None, "at least one token was captured"
        values = self._values / self.num_tokens if self._pooling == "mean" else self._values
        return ActivationCapture(number, self.num_tokens, values.astype(np.float32))
