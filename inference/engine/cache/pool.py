"""The tensors of the KV cache: a pool of blocks per layer.

Logical shape ``[num_blocks, block_size, kv_heads, head_dim]``. On the CPU the tokens of a head are
adjacent within a block, as attention reads them, and memory is allocated when it is first written. On a GPU the layout
is that of torch's paged attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from inference.engine.cache.layout import LayerGroup, LayerLayout
from inference.engine.kernels.pages import HUGE_PAGE, VirtualTensor


class KVPool:
    """``num_blocks[g]`` blocks of ``block_size`` tokens for the layers of group ``g``.

    ``has_spare``: one more block per group, to which nothing of any sequence is written.
    """

    def __init__(
        self,
        layouts: Sequence[LayerLayout],
        groups: Sequence[LayerGroup],
        num_blocks: Sequence[int],
        block_size: int,
        device: torch.device,
        *,
        has_spare: bool = False,
    ) -> None:
        self.spare_blocks = tuple(num_blocks) if has_spare else ()
        num_blocks = [count + has_spare for count in num_blocks]
        self.block_size = block_size
        self.group_of_layer = {layer: g for g, group in enumerate(groups) for layer in group.layers}
        self.layouts = layouts
        self._groups = groups
        self._virtual: dict[tuple[int, int], VirtualTensor] = {}  # by layer and 0 for keys, 1 for values
        self.keys = [self._tensor(i, 0, num_blocks, device) for i in range(len(layouts))]
        self.values = [self._tensor(i, 1, num_blocks, device) for i in range(len(layouts))]

    def copy(self, group: int, source: int, target: int, num_tokens: int) -> None:
        """Copy the first ``num_tokens`` tokens of a block to another, in all layers of the group."""
        for layer in self._groups[group].layers:
            for pool in (self.keys[layer], self.values[layer]):
                pool[target, :num_tokens] = pool[source, :num_tokens]

    def discard(self, group: int, block: int, start: int, end: int) -> int:
        """Release the memory of tokens ``start .. end`` of a block, whole pages only. Returns the bytes."""
        return sum(
            self._discard(layer, kind, block, start, end) for layer in self._groups[group].layers for kind in (0, 1)
        )

    def allocate(self, group: int, start: int, end: int) -> Iterator[None]:
        """Allocate the memory of blocks ``start .. end``, one tensor of the group's layers after the other.

        Nothing happens on a GPU, whose memory is allocated at once.
        """
        for layer in self._groups[group].layers:
            for kind in (0, 1):
                virtual = self._virtual.get((layer, kind))
                if virtual is not None:
                    size = virtual.tensor[0].numel() * virtual.tensor.element_size()
                    virtual.allocate(start * size, end * size)
                    yield

    def _tensor(self, layer: int, kind: int, num_blocks: Sequence[int], device: torch.device) -> Tensor:
        layout = self.layouts[layer]
        blocks = num_blocks[self.group_of_layer[layer]]
        dim = layout.value_dim if kind else layout.key_dim
        if device.type != "cpu":
            return torch.zeros(blocks, self.block_size, layout.num_kv_heads, dim, dtype=layout.dtype, device=device)
        shape = (blocks, layout.num_kv_heads, self.block_size, dim)
        # Small blocks are allocated in order; a large one belongs to one sequence and is rarely full.
        is_dense = prod(shape[1:]) * layout.dtype.itemsize < HUGE_PAGE
        virtual = VirtualTensor(shape, layout.dtype, is_dense=is_dense)
        self._virtual[layer, kind] = virtual
        return virtual.tensor.transpose(1, 2)

    def _discard(self, layer: int, kind: int, block: int, start: int, end: int) -> int:
        virtual = self._virtual.get((layer, kind))
        if virtual is None:
            return 0
        row = virtual.tensor.stride(2) * virtual.tensor.element_size()
        head = self.block_size * row
        first = block * virtual.tensor.shape[1] * head
        if (start, end) == (0, self.block_size):
            return virtual.discard(first, first + virtual.tensor.shape[1] * head)
        places = (first + h * head for h in range(virtual.tensor.shape[1]))
        return sum(virtual.discard(place + start * row, place + end * row) for place in places)
