"""What scheduling asks of a cache: room for sequences, without tensors.

A running sequence has a *row*; the row of ``tables[g]`` lists its blocks in layer group ``g``. Two policies: ``paged``
(:mod:`inference.engine.cache.paged`) and ``contiguous`` (:mod:`inference.engine.cache.contiguous`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inference.engine.scheduling.sequence import Sequence


class Growth(Enum):
    """Who may take memory for keys and values that was never written before."""

    FREE = "all"
    ALONE = "a sequence that runs alone"
    HELD = "none"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Of layer group ``group``: the first ``num_tokens`` tokens of block ``source`` go to block ``target``."""

    group: int
    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class BlockDiscard:
    """Nobody reads tokens ``start .. end`` of a block of layer group ``group`` any more."""

    group: int
    block: int
    start: int
    end: int


CacheOp = BlockCopy | BlockDiscard


@dataclass(slots=True)
class CacheCounts:
    """Since the start, in tokens: prompts looked up, and what of them was found."""

    looked_up: int = 0
    found: int = 0


class CachePolicy(Protocol):
    """Rooms for up to ``num_rows`` sequences."""

    block_size: int
    tables: tuple[NDArray[np.int32], ...]  # per layer group: [num_rows, blocks of a row]
    counts: CacheCounts

    @property
    def num_free_rows(self) -> int: ...

    @property
    def max_seq_len(self) -> int:
        """What one sequence can have when it is alone."""

    @property
    def used_ratio(self) -> float:
        """Share of the memory budget that running sequences hold."""

    @property
    def unwritten_ratio(self) -> float:
        """Share of its memory that was never written, or given back: on the CPU the device has it still."""

    def hold_growth(self, *, held: bool) -> None:
        """While ``held``, take no memory that was not written before: the device has none to spare.

        Sequences then share what there is, and one that does not fit even alone can neither begin nor go on.
        """

    def begin(self, sequence: Sequence, headroom: int) -> bool:
        """Give a sequence a row and what the cache knows of its prefix (``num_computed`` says how much).

        False, and nothing taken, unless its whole prompt and ``headroom`` tokens of others fit. A sequence of at most
        ``max_seq_len`` tokens can always begin while no other runs.
        """

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the next ``num_tokens`` tokens; False, and nothing taken, when memory is short."""

    def note_computed(self, sequence: Sequence) -> None:
        """Its tokens up to ``num_computed`` are in the cache now."""

    def end(self, sequence: Sequence) -> None:
        """Take the row back; the content stays findable for as long as the memory is not needed."""

    def cache_ops(self) -> list[CacheOp]:
        """What is to be done to the pool before the next forward pass, in order. Empties the list."""

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError where the books do not add up."""
