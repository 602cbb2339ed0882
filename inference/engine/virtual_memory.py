"""Large CPU tensors whose memory is taken when it is first written, and can be given back in part."""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)


class VirtualTensor:
    """A tensor of ``shape`` over anonymous memory: untouched pages cost nothing.

    ``is_dense`` says that it is written from one end on: then large pages, where the system grants them, waste nothing
    and are taken in a fraction of the time.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, *, is_dense: bool = False) -> None:
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        self._map = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
        if is_dense and hasattr(mmap, "MADV_HUGEPAGE"):
            self._advise_huge_pages()
        self.tensor: Tensor = torch.frombuffer(self._map, dtype=dtype, count=int(np.prod(shape))).view(shape)

    def _advise_huge_pages(self) -> None:
        with suppress(OSError):  # a kernel without them; it is a hint
            self._map.madvise(mmap.MADV_HUGEPAGE)

    def discard(self, start: int, end: int) -> int:
        """Give back the whole pages in bytes ``start .. end``; they read as zeros afterwards. Returns their bytes."""
        first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if first >= last:
            return 0
        self._map.madvise(mmap.MADV_DONTNEED, first, last - first)
        return last - first
