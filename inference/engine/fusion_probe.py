"""Running an operation and its fused form on the same random input, to see whether they agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PROBE_ROWS = 3
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 4e-2, torch.float16: 1e-2}  # of the largest value

Forward = Callable[..., Any]


def random_input(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def agree(original: Callable[[], Tensor], fused: Callable[[], Tensor]) -> bool:
    with torch.inference_mode():
        try:
            return is_close(fused(), original())
        except (RuntimeError, TypeError, ValueError):
            return False  # another signature or other sizes


def is_close(got: Tensor, expected: Tensor) -> bool:
    if got.shape != expected.shape or got.dtype is not expected.dtype:
        return False
    worst = (got.float() - expected.float()).abs().max()
    return bool(worst <= TOLERANCES[got.dtype] * expected.float().abs().max())
