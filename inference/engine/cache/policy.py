"""The interface of a cache for the scheduler: space for sequences, independent of tensors.

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
    """Which sequences may use KV cache memory that was never written before."""

    FREE = "all"
    ALONE = "a sequence that runs alone"
    HELD = "none"


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the first ``num_tokens`` tokens of block ``source`` to block ``target``, in one layer group."""

    group: int
    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class BlockDiscard:
    """Tokens ``start .. end`` of a block of layer group ``group`` are no longer needed."""

    group: int
    block: int
    start: int
    end: int


CacheOp = BlockCopy | BlockDiscard


@dataclass(slots=True)
class CacheCounts:
    """Prompt tokens looked up and found in the prefix cache since the start."""

    looked_up: int = 0
    found: int = 0


class CachePolicy(Protocol):
    """Memory for up to ``num_rows`` sequences."""

    block_size: int
    tables: tuple[NDArray[np.int32], ...]  # per layer group: [num_rows, blocks of a row]
    counts: CacheCounts

    @property
    def num_free_rows(self) -> int: ...

    @property
    def max_seq_len(self) -> int:
        """The maximum length of a sequence that runs alone."""

    @property
    def used_ratio(self) -> float:
        """Share of the memory budget that running sequences hold."""

    @property
    def unwritten_ratio(self) -> float:
        """Share of its memory that was never written, or was released. On the CPU that memory is not allocated."""

    def hold_growth(self, *, held: bool) -> None:
        """While ``held``, use only memory that was written before, because the device is short of memory.

        A sequence that does not fit even alone can then neither start nor continue.
        """

    def begin(self, sequence: Sequence, headroom: int) -> bool:
        """Give a sequence a row and the cached part of its prefix, and set ``num_computed``.

        Returns False, and changes nothing, unless its whole prompt and ``headroom`` tokens of others fit. A sequence of
        at most ``max_seq_len`` tokens can always start while no other runs.
        """

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Allocate space for the next ``num_tokens`` tokens. Returns False, and changes nothing, if memory is short."""

    def note_computed(self, sequence: Sequence) -> None:
        """Note that the tokens up to ``num_computed`` are in the cache now."""

    def end(self, sequence: Sequence) -> None:
        """Release the row. Its content stays in the prefix cache until the memory is needed."""

    def cache_ops(self) -> list[CacheOp]:
        """Return and clear the operations to apply to the pool before the next forward pass, in order."""

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raise AssertionError if the bookkeeping is inconsistent."""
