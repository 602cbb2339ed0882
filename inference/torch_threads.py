"""Release OpenMP worker threads. Each thread that runs torch gets its own set of workers and keeps it.

libgomp lets workers spin between two operations only if the process has no more workers than processors. Idle workers
of a loading thread count too: the engine's workers would then sleep and be woken for each operation, which made a step
of one stream 20 % slower on two cores.
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
    """Release this thread's workers after the block. For torch on threads other than the engine's."""
    try:
        yield
    finally:
        give_back_workers()


def give_back_workers() -> None:
    """End the calling thread's workers; they restart when needed. A no-op without libgomp."""
    library = _libgomp()
    if library is not None:
        library.omp_pause_resource_all(_SOFT_PAUSE)


@cache
def _libgomp() -> Any:
    """Return the libgomp that torch has loaded, or None. Never loads another one."""
    try:
        return ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except (OSError, AttributeError):  # macOS and Windows have another OpenMP, or no RTLD_NOLOAD
        return None
