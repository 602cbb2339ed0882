"""After a load, memory holds the weights once: neither the file they came from nor what making them took."""

from __future__ import annotations

import ctypes
import sys

from torch import nn


def settle_memory(module: nn.Module) -> None:
    """Copy CPU parameters that lie in their mapped file, so that it can be let go, and hand freed memory back.

    One small parameter would keep the whole file mapped. Copies are made one after the other.
    """
    for parameter in module.parameters():
        if parameter.device.type == "cpu":
            parameter.data = parameter.data.clone()
    trim_heap()


def trim_heap() -> None:
    """C's allocator keeps freed memory for itself; glibc's can be told to return it to the system."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
