"""Which blocks of a paged pool are in use, by how many, and what the others still hold. Knows nothing of tensors.

A block is free (nobody uses it and its content is nameless), used (reference count above 0), or cached: nobody uses
it, but its content has a key and can be taken up again until the block is needed. Cached blocks are evicted least
recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class OutOfBlocksError(RuntimeError):
    """More blocks were asked for than are free or cached."""


class BlockManager:
    """Blocks ``0 .. num_blocks - 1``, each of ``block_size`` tokens."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens are no pool.")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._users = [0] * num_blocks
        self._touched = 0
        self._may_grow = True
        self._cached: OrderedDict[int, None] = OrderedDict()  # unused blocks with a key, least recently used first
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Blocks that :meth:`allocate` can give."""
        untouched = self.num_blocks - self._touched
        return len(self._free) + len(self._cached) - (0 if self._may_grow else untouched)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def num_touched(self) -> int:
        """Blocks that were ever in use: those of low numbers go first."""
        return self._touched

    def hold_growth(self, *, held: bool) -> None:
        """While ``held``, give only blocks that were in use before: their memory is taken already."""
        self._may_grow = not held

    def allocate(self, count: int) -> list[int]:
        """Take blocks of no particular content; OutOfBlocksError, and nothing taken, when there are too few."""
        if count > self.num_free:
            raise OutOfBlocksError(f"{count} blocks are needed, {self.num_free} are free.")
        return [self._take() for _ in range(count)]

    def find(self, key: bytes) -> int | None:
        """The block whose content has this key."""
        return self._block_of.get(key)

    def num_idle(self, blocks: Iterable[int]) -> int:
        """How many of the blocks nobody uses: those that :meth:`share` takes from the free ones."""
        return sum(block in self._cached for block in blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """One more user for each of the blocks."""
        for block in blocks:
            if self._users[block] == 0:
                del self._cached[block]
            self._users[block] += 1

    def name(self, block: int, key: bytes) -> None:
        """Make a used block findable. Of equal contents the first keeps the name."""
        if self._users[block] < 1:
            raise ValueError(f"Block {block} is not in use.")
        if key not in self._block_of and block not in self._key_of:
            self._block_of[key] = block
            self._key_of[block] = key

    def release(self, blocks: Iterable[int]) -> None:
        """One user less for each; of those without users the first released are evicted first."""
        for block in blocks:
            if self._users[block] < 1:
                raise ValueError(f"Block {block} is free already.")
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._key_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def check_integrity(self, used: Iterable[int]) -> None:
        """Raise AssertionError unless exactly ``used`` (with repetitions) are in use."""
        counts = [0] * self.num_blocks
        for block in used:
            counts[block] += 1
        assert counts == self._users, "reference counts do not add up"
        idle = [*self._free, *self._cached]
        assert len(set(idle)) == len(idle), "a block is free twice"
        assert all(counts[block] == 0 for block in idle), "a used block is free"
        assert len(idle) + sum(count > 0 for count in counts) == self.num_blocks, "a block leaked"
        assert all(self._key_of.get(block) == key for key, block in self._block_of.items()), "keys do not add up"
        assert set(self._cached) <= set(self._key_of), "a nameless block is cached"

    def _take(self) -> int:
        if self._free and (self._may_grow or self._free[-1] < self._touched):  # released blocks lie above new ones
            block = self._free.pop()
            self._touched = max(self._touched, block + 1)
        else:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._key_of.pop(block)]
        self._users[block] = 1
        return block
