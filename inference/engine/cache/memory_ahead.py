"""Allocate the memory of a paged cache on the CPU before it is needed, while no request runs.

The system finds and clears a page when it is first written. On a virtual machine that takes up to 2 ms for each MiB,
13 % of the time of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from inference.engine.cache.device_memory import machine_memory
from inference.engine.cache.layout import LayerGroup
from inference.engine.cache.paged import PagedCache
from inference.engine.cache.pool import KVPool
from inference.engine.kernels.pages import HUGE_PAGE
from inference.engine.models.facts import DeviceMemory

AHEAD_TOKENS = 8_192
FREE_SHARE = 0.1  # of the machine's free memory, which this may use at most


class MemoryAhead:
    """Keeps memory ready for the next AHEAD_TOKENS tokens behind those that the cache has ever held.

    ``groups``: the layer groups of the cache. ``measure``: returns the memory of the machine.
    """

    def __init__(
        self,
        pool: KVPool,
        policy: PagedCache,
        groups: Sequence[LayerGroup],
        measure: Callable[[], DeviceMemory] = machine_memory,
    ) -> None:
        self._pool = pool
        self._policy = policy
        self._groups = groups
        self._measure = measure
        self._num_ready = [0] * len(groups)  # blocks, from the first one on
        self._pieces: Iterator[None] = iter(())

    @property
    def num_bytes(self) -> int:
        """The bytes that are allocated, but were never used."""
        counts = zip(self._num_ready, self._policy.num_touched, strict=True)
        return sum(max(0, ready - touched) * self._block_bytes(g) for g, (ready, touched) in enumerate(counts))

    def allocate_some(self) -> bool:
        """Allocate about a huge page. Return whether memory was missing."""
        for _ in self._pieces:
            return True
        for group in range(len(self._groups)):
            start = max(self._num_ready[group], self._policy.num_touched[group])
            end = min(start + self._blocks_of_piece(group), self._policy.num_blocks[group])
            if start < end <= self._last(group) and self._is_free((end - start) * self._block_bytes(group)):
                self._pieces = self._pool.allocate(group, start, end)
                self._num_ready[group] = end
                return True
        return False

    def _last(self, group: int) -> int:
        return self._policy.num_touched[group] + AHEAD_TOKENS // self._policy.block_size

    def _is_free(self, num_bytes: int) -> bool:
        return self.num_bytes + num_bytes <= FREE_SHARE * self._measure().free

    def _blocks_of_piece(self, group: int) -> int:
        num_tensors = 2 * len(self._groups[group].layers)
        return max(1, HUGE_PAGE * num_tensors // self._block_bytes(group))

    def _block_bytes(self, group: int) -> int:
        return self._groups[group].bytes_per_token * self._policy.block_size
