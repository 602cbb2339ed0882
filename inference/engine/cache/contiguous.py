"""The ``contiguous`` policy: each sequence has one long slot, which uses memory only as far as it was written.

The slot of a finished sequence keeps its content until the slot or the memory is needed. A new sequence with the same
prefix continues in such a slot, or gets a copy of the prefix from a slot that is in use.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from inference.engine.cache.policy import BlockCopy, BlockDiscard, CacheCounts, CacheOp
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.scheduling.sequence import Sequence

DISCARD_TOKENS = 1024  # tokens that have left a window are released this many at a time


@dataclass(slots=True)
class _Slot:
    """A slot. ``written`` tokens use memory, except the first ``dropped[g]`` of them in layer group ``g``."""

    dropped: list[int]
    written: int = 0
    keys: list[bytes] = field(default_factory=list)  # of its full prefix blocks


class ContiguousCache:
    """``num_rows`` slots of ``max_seq_len`` tokens, ``bytes_per_token[g]`` each; at most ``max_bytes`` in all."""

    def __init__(
        self,
        num_rows: int,
        max_seq_len: int,
        windows: tuple[int, ...],
        bytes_per_token: tuple[int, ...],
        max_bytes: int,
        *,
        prefixes: bool,
    ) -> None:
        self._windows = windows
        self._bytes = bytes_per_token
        self._max_bytes = max_bytes
        self._limit = max_bytes  # lower while growth is held
        self._max_seq_len = min(max_seq_len, max_bytes // max(1, sum(bytes_per_token)))
        self.block_size = max_seq_len
        self.tables = tuple(np.arange(num_rows, dtype=np.int32)[:, None] for _ in windows)
        self.counts = CacheCounts()
        self._shares_prefixes = prefixes
        self._slots = [self._empty() for _ in range(num_rows)]
        self._free = list(range(num_rows))  # least recently used first
        self._running: set[int] = set()
        self._slots_of: dict[bytes, set[int]] = {}
        self._cache_ops: list[CacheOp] = []
        self._costs = [0] * num_rows  # bytes of each slot, kept up to date because every token needs the sum
        self._spent = 0  # their sum
        self._in_use = 0  # the sum of those of running sequences

    @property
    def num_free_rows(self) -> int:
        return len(self._free)

    @property
    def max_seq_len(self) -> int:
        return self._max_seq_len

    @property
    def used_ratio(self) -> float:
        return self._in_use / self._max_bytes

    @property
    def unwritten_ratio(self) -> float:
        return 1 - self._spent / self._max_bytes

    def hold_growth(self, *, held: bool) -> None:
        if not held:
            self._limit = self._max_bytes
        elif self._limit == self._max_bytes or self._limit < self._spent:
            self._limit = self._spent

    def begin(self, sequence: Sequence, headroom: int) -> bool:
        if not self._free:
            return False
        # The longest sequence may sample one more token, which is never run.
        needed = (min(sequence.num_tokens + 1, self._max_seq_len) + headroom) * sum(self._bytes)
        if self._in_use + needed > self._limit:
            return False
        source, known = self._longest_known(sequence)
        target = self._target(source, known)
        self._free.remove(target)
        self._running.add(target)
        self._in_use += self._costs[target]
        if source is None or source == target:
            self._cut(target, known)
        else:
            known = self._copy(source, target, known)
        sequence.slot = target
        sequence.num_computed = known * PREFIX_BLOCK
        self.counts.looked_up += sequence.num_tokens
        self.counts.found += sequence.num_computed
        return True

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        slot = self._slots[sequence.slot]
        end = sequence.num_computed + num_tokens
        if not self._reclaim(max(0, end - slot.written) * sum(self._bytes)):
            return False
        slot.written = max(slot.written, end)
        self._book(sequence.slot)
        return True

    def note_computed(self, sequence: Sequence) -> None:
        slot = self._slots[sequence.slot]
        if self._shares_prefixes:
            self._name(sequence, slot)
        for g, window in enumerate(self._windows):
            passed = sequence.num_computed - window + 1
            if window and passed - slot.dropped[g] >= DISCARD_TOKENS:
                self._cache_ops.append(BlockDiscard(g, sequence.slot, slot.dropped[g], passed))
                slot.dropped[g] = passed
                self._book(sequence.slot)

    def end(self, sequence: Sequence) -> None:
        self._running.remove(sequence.slot)
        self._in_use -= self._costs[sequence.slot]
        self._free.append(sequence.slot)
        if not self._slots[sequence.slot].keys:
            self._discard(sequence.slot)
        sequence.slot = -1

    def cache_ops(self) -> list[CacheOp]:
        cache_ops, self._cache_ops = self._cache_ops, []
        return cache_ops

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        rows = [sequence.slot for sequence in running]
        assert sorted(rows) == sorted(self._running), "the running sequences and their slots match"
        assert sorted([*rows, *self._free]) == list(range(len(self._slots))), "no slot is leaked"
        assert self._costs == [self._cost(i) for i in range(len(self._slots))], (
            "the stored costs of all slots are current"
        )
        assert self._in_use == sum(self._costs[i] for i in self._running), "the cost of all running slots is current"
        assert self._spent == sum(self._costs) <= self._max_bytes, "the slots' costs do not exceed the memory limit"
        named = {(key, i) for i, slot in enumerate(self._slots) for key in slot.keys}
        assert named == {(key, i) for key, slots in self._slots_of.items() for i in slots}, (
            "every key maps to the slots that have it"
        )

    # Prefixes

    def _longest_known(self, sequence: Sequence) -> tuple[int | None, int]:
        """Return the slot with the longest common prefix, a free one if possible, and the number of prefix blocks."""
        if not self._shares_prefixes:
            return None, 0
        keys = sequence.prefix_keys.upto(sequence.token_ids, sequence.num_reusable // PREFIX_BLOCK)
        for known in range(len(keys), 0, -1):
            key = keys[known - 1]
            slots = [s for s in self._slots_of.get(key, ()) if self._has_windows(s, known)] if key else []
            if slots:
                return next((s for s in slots if s in self._free), slots[0]), known
        return None, 0

    def _target(self, source: int | None, known: int) -> int:
        """Return the slot to continue in: an empty one, or the source itself if no other sequence needs its content or
        memory is too short for a copy.
        """
        emptiest = self._emptiest()
        if source not in self._free:
            return emptiest
        is_whole = len(self._slots[source].keys) == known
        if is_whole or self._slots[emptiest].keys:
            return source
        kept = self._costs[source] + self._in_use
        return emptiest if kept + known * PREFIX_BLOCK * sum(self._bytes) <= self._limit else source

    def _has_windows(self, slot: int, known: int) -> bool:
        dropped = self._slots[slot].dropped
        return all(not d or known * PREFIX_BLOCK - w + 1 >= d for d, w in zip(dropped, self._windows, strict=True))

    def _name(self, sequence: Sequence, slot: _Slot) -> None:
        num_full = sequence.num_computed // PREFIX_BLOCK
        if num_full <= len(slot.keys):
            return
        for key in sequence.prefix_keys.upto(sequence.token_ids, num_full, len(slot.keys)):
            if key is None:
                return
            slot.keys.append(key)
            self._slots_of.setdefault(key, set()).add(sequence.slot)

    def _cut(self, number: int, known: int) -> None:
        """Forget the content of a slot after its first ``known`` prefix blocks. It keeps the memory."""
        slot = self._slots[number]
        self._unname(number, slot.keys[known:])
        del slot.keys[known:]
        if not known and any(slot.dropped):
            self._discard(number)  # the dropped tokens would never be counted again

    def _copy(self, source: int, target: int, known: int) -> int:
        """Copy a prefix. Return the number of copied prefix blocks, 0 if memory is short."""
        num_tokens = known * PREFIX_BLOCK
        self._cut(target, 0)
        if not self._reclaim(max(0, num_tokens - self._slots[target].written) * sum(self._bytes), spare=source):
            return 0
        slot = self._slots[target]
        slot.written = max(slot.written, num_tokens)
        slot.keys = self._slots[source].keys[:known]
        slot.dropped = list(self._slots[source].dropped)
        self._book(target)
        for key in slot.keys:
            self._slots_of[key].add(target)
        self._cache_ops.extend(BlockCopy(g, source, target, num_tokens) for g in range(len(self._windows)))
        return known

    def _unname(self, number: int, keys: Iterable[bytes]) -> None:
        for key in keys:
            holders = self._slots_of[key]
            holders.remove(number)
            if not holders:
                del self._slots_of[key]

    # Memory

    def _book(self, number: int) -> None:
        """Update the cost of a slot after a change of ``written`` or ``dropped``."""
        growth = self._cost(number) - self._costs[number]
        self._costs[number] += growth
        self._spent += growth
        if number in self._running:
            self._in_use += growth

    def _empty(self) -> _Slot:
        return _Slot([0] * len(self._windows))

    def _cost(self, number: int) -> int:
        slot = self._slots[number]
        return sum(b * (slot.written - d) for b, d in zip(self._bytes, slot.dropped, strict=True))

    def _reclaim(self, num_bytes: int, *, spare: int = -1) -> bool:
        """Free ``num_bytes``, if necessary by emptying free slots other than ``spare``, least recently used first."""
        if self._limit - self._spent >= num_bytes:
            return True
        for number in self._free:  # which stay free
            if number != spare:
                self._discard(number)
                if self._limit - self._spent >= num_bytes:
                    return True
        return False

    def _discard(self, number: int) -> None:
        if self._slots[number].written:
            for g in range(len(self._windows)):
                self._cache_ops.append(BlockDiscard(g, number, 0, self.block_size))
        slot, self._slots[number] = self._slots[number], self._empty()
        self._book(number)
        self._unname(number, slot.keys)

    def _emptiest(self) -> int:
        """Return a free slot without content, or the least recently used one."""
        return next((number for number in self._free if not self._slots[number].keys), self._free[0])
