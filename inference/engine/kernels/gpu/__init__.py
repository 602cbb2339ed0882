"""Kernels for GPUs, in Triton, which comes with torch's builds for them. Each is compared with plain torch on the
device before it is used; without Triton, plain torch runs.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch


@cache
def has_triton() -> bool:
    return find_spec("triton") is not None


def can_run(device: torch.device) -> bool:
    """Return whether the kernels can run on a device; on a CPU with ``TRITON_INTERPRET=1``, as tests do."""
    if not has_triton():
        return False
    from triton import knobs

    return bool(device.type == "cuda" or knobs.runtime.interpret)
