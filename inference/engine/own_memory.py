"""After a load, the memory that making the model took goes back to the system."""

from __future__ import annotations

import ctypes
import sys


def trim_heap() -> None:
    """C's allocator keeps freed memory for itself; glibc's can be told to return it to the system."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
