"""The ``paged`` policy: sequences allocate small blocks as they grow and share the blocks of equal prefixes.

Sliding-window layers keep only the blocks inside the window. A prefix is known up to the last full block for which each
layer group still holds all tokens that it attends to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from inference.engine.cache.block_manager import BlockManager
from inference.engine.cache.policy import CacheCounts, CacheOp
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.scheduling.sequence import Sequence


@dataclass(slots=True)
class _Holding:
    """The blocks of a sequence in one layer group: ``blocks[i]`` is block ``first + i`` of the sequence."""

    first: int = 0
    blocks: list[int] = field(default_factory=list)
    num_named: int = 0  # leading blocks with a key, which can be shared

    @property
    def end(self) -> int:
        return self.first + len(self.blocks)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Why a sequence could not start: it needed ``excess`` more blocks than the ``manager`` had free.

    ``next_key``: that of its first block that was not cached, if that could be.
    """

    sequence: Sequence
    manager: BlockManager
    excess: int
    turnover: int
    next_key: bytes | None

    def holds(self, sequence: Sequence, needed: int) -> bool:
        """Return whether nothing has changed that would let the sequence start now, without a look at its prefix."""
        return (
            sequence is self.sequence
            and self.manager.turnover == self.turnover
            and needed - self.manager.num_free >= self.excess
            and (self.next_key is None or self.manager.find(self.next_key) is None)
        )


class PagedCache:
    """Blocks of ``block_size`` tokens; ``num_blocks[g]`` of them for the layers with ``windows[g]``.

    ``max_chunk``: the maximum number of tokens of a sequence in one step. A pool with a window needs at least
    :func:`window_blocks`, or a sequence could not run even alone.
    """

    def __init__(
        self,
        num_rows: int,
        max_seq_len: int,
        windows: tuple[int, ...],
        num_blocks: tuple[int, ...],
        *,
        prefixes: bool,
        block_size: int = PREFIX_BLOCK,
        max_chunk: int = 1,
    ) -> None:
        if block_size % PREFIX_BLOCK:
            raise ValueError(f"Blocks of {block_size} tokens are not a multiple of {PREFIX_BLOCK}.")
        self.block_size = block_size
        self._windows = windows
        self._max_chunk = max_chunk
        self._managers = tuple(BlockManager(count, self.block_size) for count in num_blocks)
        self._max_seq_len = min(
            [max_seq_len]
            + [m.num_blocks * self.block_size for m, w in zip(self._managers, windows, strict=True) if not w]
        )
        width = -(-max_seq_len // self.block_size)
        self.tables = tuple(np.zeros((num_rows, width), dtype=np.int32) for _ in windows)
        self.counts = CacheCounts()
        self._shares_prefixes = prefixes
        self._rows = list(range(num_rows - 1, -1, -1))
        self._num_rows = num_rows
        self._held: dict[int, tuple[_Holding, ...]] = {}  # by row, then group
        self._refusal: _Refusal | None = None  # of the last sequence that could not start

    @property
    def num_free_rows(self) -> int:
        return len(self._rows)

    @property
    def max_seq_len(self) -> int:
        return self._max_seq_len

    @property
    def used_ratio(self) -> float:
        return max(manager.num_used / manager.num_blocks for manager in self._managers)

    @property
    def unwritten_ratio(self) -> float:
        return max(1 - manager.num_touched / manager.num_blocks for manager in self._managers)

    @property
    def num_blocks(self) -> tuple[int, ...]:
        """Per layer group, the number of blocks."""
        return tuple(manager.num_blocks for manager in self._managers)

    @property
    def num_touched(self) -> tuple[int, ...]:
        """Per layer group, the number of leading blocks that were ever used. Those behind them are used next."""
        return tuple(manager.num_touched for manager in self._managers)

    def hold_growth(self, *, held: bool) -> None:
        for manager in self._managers:
            manager.hold_growth(held=held)

    def begin(self, sequence: Sequence, headroom: int) -> bool:
        if not self._rows:
            return False
        # The longest sequence may sample one more token, which is never run.
        needed = self._blocks_of(min(sequence.num_tokens + 1, self._max_seq_len) + headroom)
        if self._refusal is not None and self._refusal.holds(sequence, needed):
            return False
        known = self._known_blocks(sequence)
        for manager, window in zip(self._managers, self._windows, strict=True):
            shared = self._shared(manager, sequence, self._kept(window, known), known)
            missing = min(needed, self._most_at_once(window)) - len(shared)
            if missing > manager.num_free - manager.num_idle(shared):
                self._refusal = self._refused(sequence, manager, needed, known)
                return False
        self._refusal = None
        self._place(sequence, known)
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        end = self._blocks_of(sequence.num_computed + num_tokens)
        holdings = self._held[sequence.slot]
        if end <= min(holding.end for holding in holdings):  # nearly always
            return True
        missing = [max(0, end - holding.end) for holding in holdings]
        if any(count > m.num_free for count, m in zip(missing, self._managers, strict=True)):
            return False
        for holding, count, manager, table in zip(holdings, missing, self._managers, self.tables, strict=True):
            if count:
                table[sequence.slot, holding.end : holding.end + count] = blocks = manager.allocate(count)
                holding.blocks.extend(blocks)
        return True

    def note_computed(self, sequence: Sequence) -> None:
        num_full = sequence.num_computed // self.block_size
        for holding, manager, window in zip(self._held[sequence.slot], self._managers, self._windows, strict=True):
            self._name(sequence, holding, manager, num_full)
            self._drop_passed(holding, manager, self._first_needed(window, sequence.num_computed))

    def end(self, sequence: Sequence) -> None:
        for holding, manager in zip(self._held.pop(sequence.slot), self._managers, strict=True):
            manager.release(reversed(holding.blocks))  # evict ends first: prefixes are what others share
        self._rows.append(sequence.slot)
        sequence.slot = -1

    def cache_ops(self) -> list[CacheOp]:
        return []

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        rows = [sequence.slot for sequence in running]
        assert sorted(rows) == sorted(self._held), "the running sequences and their rows match"
        assert sorted([*rows, *self._rows]) == list(range(self._num_rows)), "no row is leaked"
        for g, manager in enumerate(self._managers):
            manager.check_integrity(block for held in self._held.values() for block in held[g].blocks)

    # Prefixes

    def _known_blocks(self, sequence: Sequence) -> int:
        """Return the number of leading blocks that need not be computed. At least one token is left to run."""
        if not self._shares_prefixes:
            return 0
        limit = sequence.num_reusable // self.block_size
        keys = self._keys(sequence, limit)
        known = limit
        for manager, window in zip(self._managers, self._windows, strict=True):
            if not window:
                known = min(known, _leading(manager, keys))
        while known and not all(self._has_window(m, w, keys, known) for m, w in self._windowed()):
            known -= 1
        return known

    def _refused(self, sequence: Sequence, manager: BlockManager, needed: int, known: int) -> _Refusal | None:
        """Return the refusal, so that later steps need not search the prefix again. With windows, more blocks than one
        decide."""
        if any(self._windows):
            return None
        may_grow = self._shares_prefixes and known < sequence.num_reusable // self.block_size
        (next_key,) = self._keys(sequence, known + 1, known) if may_grow else (None,)
        return _Refusal(sequence, manager, needed - manager.num_free, manager.turnover, next_key)

    def _windowed(self) -> list[tuple[BlockManager, int]]:
        return [(m, w) for m, w in zip(self._managers, self._windows, strict=True) if w]

    def _has_window(self, manager: BlockManager, window: int, keys: list[bytes | None], known: int) -> bool:
        needed = keys[self._kept(window, known) : known]
        return all(key is not None and manager.find(key) is not None for key in needed)

    def _kept(self, window: int, known: int) -> int:
        return self._first_needed(window, known * self.block_size)

    def _keys(self, sequence: Sequence, num_blocks: int, first: int = 0) -> list[bytes | None]:
        """Return the keys of the blocks ``first .. num_blocks``: each is that of the last PREFIX_BLOCK in it."""
        each = self.block_size // PREFIX_BLOCK
        keys = sequence.prefix_keys.upto(sequence.token_ids, num_blocks * each, first * each)
        return keys if each == 1 else keys[each - 1 :: each]

    def _shared(self, manager: BlockManager, sequence: Sequence, first: int, known: int) -> list[int]:
        """Return the cached blocks with the content of the sequence's blocks ``first .. known``."""
        keys = self._keys(sequence, known, first)
        blocks = [None if key is None else manager.find(key) for key in keys]
        return [block for block in blocks if block is not None]

    def _place(self, sequence: Sequence, known: int) -> None:
        row = self._rows.pop()
        holdings = []
        for manager, window, table in zip(self._managers, self._windows, self.tables, strict=True):
            first = self._kept(window, known)
            blocks = self._shared(manager, sequence, first, known)
            manager.share(blocks)
            table[row] = 0
            table[row, first : first + len(blocks)] = blocks
            holdings.append(_Holding(first, blocks, known))
        self._held[row] = tuple(holdings)
        sequence.slot = row
        sequence.num_computed = known * self.block_size
        self.counts.looked_up += sequence.num_tokens
        self.counts.found += sequence.num_computed

    def _name(self, sequence: Sequence, holding: _Holding, manager: BlockManager, num_full: int) -> None:
        if not self._shares_prefixes or num_full <= holding.num_named:
            return
        first = max(holding.num_named, holding.first)
        for index, key in enumerate(self._keys(sequence, num_full, first), first):
            if key is not None:
                manager.name(holding.blocks[index - holding.first], key)
        holding.num_named = num_full

    # Sizes

    def _blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _first_needed(self, window: int, num_computed: int) -> int:
        """Return the first block that the token after ``num_computed`` ones attends to."""
        return max(0, num_computed - window + 1) // self.block_size if window else 0

    def _most_at_once(self, window: int) -> int:
        """Return the maximum number of blocks that a sequence holds in a group at the end of a step."""
        return window_blocks(window, self._max_chunk, self.block_size) if window else self.tables[0].shape[1] + 1

    @staticmethod
    def _drop_passed(holding: _Holding, manager: BlockManager, first_needed: int) -> None:
        passed = min(first_needed - holding.first, len(holding.blocks))
        if passed > 0:
            manager.release(holding.blocks[:passed])
            del holding.blocks[:passed]
            holding.first += passed


def window_blocks(window: int, max_chunk: int, block_size: int) -> int:
    """Return the maximum number of blocks of one sequence in layers with a window: the window and a chunk.

    Neither end needs to be at a block boundary.
    """
    return -(-(window + max_chunk) // block_size) + 1


def _leading(manager: BlockManager, keys: list[bytes | None]) -> int:
    """Return how many of the leading keys are found, without a gap."""
    for index, key in enumerate(keys):
        if key is None or manager.find(key) is None:
            return index
    return len(keys)
