"""Reference counts and content keys of the blocks of a paged pool. Independent of tensors.

A block is free (unused, without a key), used (reference count above 0), or cached: unused, but its content has a key
and can be reused until the block is needed. Cached blocks are evicted least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class OutOfBlocksError(RuntimeError):
    """More blocks were requested than are free or cached."""


class BlockManager:
    """A pool of blocks ``0 .. num_blocks - 1``, each of ``block_size`` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(
                f"The number of blocks and the block size must be at least 1, got {num_blocks} and {block_size}."
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._users = [0] * num_blocks
        self._touched = 0
        self._turnover = 0
        self._may_grow = True
        self._cached: OrderedDict[int, None] = OrderedDict()  # unused blocks with a key, least recently used first
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """The number of blocks that :meth:`allocate` can return."""
        untouched = self.num_blocks - self._touched
        return len(self._free) + len(self._cached) - (0 if self._may_grow else untouched)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_touched(self) -> int:
        """The number of blocks that were ever used. Blocks with low numbers are allocated first."""
        return self._touched

    @property
    def turnover(self) -> int:
        """A number that changes when blocks become unused, or unused ones are shared."""
        return self._turnover

    def hold_growth(self, *, held: bool) -> None:
        """While ``held``, allocate only blocks that were used before, whose memory is already allocated."""
        self._may_grow = not held

    def allocate(self, count: int) -> list[int]:
        """Allocate blocks. Raise OutOfBlocksError, and allocate none, if there are too few."""
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks are needed, but only {self.num_free} are free.")
        return [self._take() for _ in range(count)]

    def find(self, key: bytes) -> int | None:
        """Return the block whose content has this key, or None."""
        return self._block_of.get(key)

    def num_idle(self, blocks: Iterable[int]) -> int:
        """Return how many of the blocks are unused: :meth:`share` makes them unavailable."""
        return sum(block in self._cached for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of the blocks."""
        for block in blocks:
            if self._users[block] == 0:
                del self._cached[block]
                self._turnover += 1
            self._users[block] += 1

    def name(self, block: int, key: bytes) -> None:
        """Assign a key to a used block. If another block has the key already, that one keeps it."""
        if self._users[block] < 1:
            raise ValueError(f"Block {block} is not in use.")
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a reference to each. Unused blocks are evicted in the order of their release."""
        for block in blocks:
            if self._users[block] < 1:
                raise ValueError(f"Block {block} is already free.")
            self._users[block] -= 1
            if self._users[block]:
                continue
            self._turnover += 1
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check_integrity(self, used: Iterable[int]) -> None:
        """Raise AssertionError unless exactly ``used`` (with repetitions) are in use."""
        counts = [0] * self.num_blocks
        for block in used:
            counts[block] += 1
        assert counts == self._users, "reference counts match the blocks in use"
        idle = [*self._free, *self._cached]
        assert len(set(idle)) == len(idle), "no block is free twice"
        assert all(counts[block] == 0 for block in idle), "no block in use is free"
        assert len(idle) + sum(count > 0 for count in counts) == self.num_blocks, "no block is leaked"
        assert all(self._key_of.get(block) == key for key, block in self._block_of.items()), (
            "every key maps to the block that has it"
        )
        assert set(self._cached) <= set(self._key_of), "every cached block has a key"

    def _take(self) -> int:
        if self._free and (self._may_grow or self._free[-1] < self._touched):  # released blocks lie above new ones
            block = self._free.pop()
            self._touched = max(self._touched, block + 1)
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
        self._users[block] = 1
        return block
