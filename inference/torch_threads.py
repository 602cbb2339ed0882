"""OpenMP's worker threads, of which every thread that runs torch gets a set of its own, and keeps it.

libgomp lets workers spin from one product to the next only while the process has no more of them than processors.
Idle ones that a loading thread left behind are counted too: then the engine's sleep and are woken for every product,
which made a step of one stream 20 % slower on two cores.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

_SOFT_PAUSE = 1  # omp_pause_soft


@contextmanager
def borrowed_workers() -> Iterator[None]:
    """Around work with torch on another thread than the engine's."""
    try:
        yield
    finally:
        give_back_workers()


def give_back_workers() -> None:
    """End the calling thread's workers, which come again when they are needed. Does nothing without libgomp."""
    library = _libgomp()
    if library is not None:
        library.omp_pause_resource_all(_SOFT_PAUSE)


@cache
def _libgomp() -> Any:
    """The one that torch has loaded already; never another."""
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except (OSError, AttributeError):  # macOS and Windows have another OpenMP, or no RTLD_NOLOAD
        return None
