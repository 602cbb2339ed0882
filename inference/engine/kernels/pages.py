"""CPU memory that is allocated when first written, can be released in part, and uses huge pages.

Weights are read once per token, which is a third faster with huge pages.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
from math import prod

import numpy as np
import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
_POPULATE_WRITE = 23  # Linux 5.14; the module mmap does not name it
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)


class VirtualTensor:
    """A tensor of ``shape`` in anonymous memory. Untouched pages use no memory.

    ``is_dense``: it is written from one end on, so that huge pages waste nothing and are allocated much faster.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, is_dense: bool = False) -> None:
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        self._map = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        if is_dense and hasattr(mmap, "MADV_HUGEPAGE"):
            self._advise_huge_pages()
        self.tensor: Tensor = torch.frombuffer(self._map, dtype=dtype, count=int(np.prod(shape))).view(shape)

    def _advise_huge_pages(self) -> None:
        with suppress(OSError):  # a kernel without huge pages; this is only a hint
            self._map.madvise(mmap.MADV_HUGEPAGE)

    def discard(self, start: int, end: int) -> int:
        """Release the whole pages in bytes ``start .. end``, which then read as zeros. Returns their bytes."""
        first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if first >= last:
            return 0
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        return last - first

    def allocate(self, start: int, end: int) -> None:
        """Let the system allocate the pages of bytes ``start .. end``, without a change of their content."""
        first = start // PAGE * PAGE
        if sys.platform == "linux":
            with suppress(OSError):  # an older kernel
                self._map.madvise(_POPULATE_WRITE, first, end - first)
                return
        one_of_each_page = np.frombuffer(self._map, dtype=np.uint8)[first:end:PAGE]
        one_of_each_page |= 0


def in_huge_pages(tensor: Tensor) -> Tensor:
    """Return a contiguous copy aligned to a huge page, unless the tensor is smaller than one.

    torch's allocator may reuse memory with small pages. If the system grants no huge pages, only speed is affected. A
    tensor on a GPU, or already aligned (:func:`empty_in_huge_pages`), is returned unchanged.
    """
    if tensor.device.type != "cpu":
        return tensor
    if tensor.numel() * tensor.element_size() < HUGE_PAGE:
        return tensor.clone(memory_format=torch.contiguous_format)
    if tensor.data_ptr() % HUGE_PAGE == 0 and tensor.is_contiguous():
        return tensor
    return empty_in_huge_pages(tuple(tensor.shape), tensor.dtype).copy_(tensor)


def empty_in_huge_pages(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised CPU tensor whose memory returns to the system when the tensor is freed."""
    num_bytes = prod(shape) * dtype.itemsize
    if num_bytes < HUGE_PAGE:
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = -_address(memory) % HUGE_PAGE
    _advise(memory, start, num_bytes // HUGE_PAGE * HUGE_PAGE)
    return torch.frombuffer(memory, dtype=dtype, count=prod(shape), offset=start).view(shape)


def _address(memory: mmap.mmap) -> int:
    return torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()


def _advise(memory: mmap.mmap, start: int, length: int) -> None:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages; this is only a hint
            memory.madvise(mmap.MADV_HUGEPAGE, start, length)
