"""Test on the device whether a GPU supports int8 weights, and up to how many rows with torch's kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from inference.engine.kernels.linear_kinds import GpuInt8Linear

SIZE = 2048  # of the square test weight
TRIED_ROWS = (1, 2, 4, 8, 16)
REPETITIONS = 20
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 2e-2, torch.float16: 5e-3}  # of the largest value

Clock = Callable[[Callable[[], Tensor]], float]  # measures the time of a call


def int8_problem(device: torch.device, dtype: torch.dtype, size: int = SIZE) -> str:
    """Return why int8 weights cannot be used; empty if products agree with the dequantised weight in float64."""
    if dtype not in TOLERANCES:
        return f"int8 products are not supported for {str(dtype).removeprefix('torch.')}"
    try:
        linear = _linear(device, dtype, 0, size)
        agrees = _agrees(linear, _rows(3, device, dtype, size))
    except RuntimeError as error:
        return str(error).strip().partition("\n")[0]
    return "" if agrees else "int8 products differ from those of the dequantised weight"


@lru_cache
def few_packed_rows(device: torch.device, dtype: torch.dtype) -> int:
    """Return up to how many rows torch's kernel is correct and faster than dequantising the weight; 0 for none."""
    return measured_rows(device, dtype, _seconds) if device.type == "cuda" else 0


def measured_rows(device: torch.device, dtype: torch.dtype, clock: Clock, size: int = SIZE) -> int:
    most = 0
    packed, whole = _linear(device, dtype, max(TRIED_ROWS), size), _linear(device, dtype, 0, size)
    for count in TRIED_ROWS:
        x = _rows(count, device, dtype, size)
        try:
            if not _agrees(packed, x) or clock(lambda x=x: packed(x)) > clock(lambda x=x: whole(x)):  # type: ignore[misc]
                break
        except RuntimeError:  # missing, or not for this dtype
            break
        most = count
    return most


def _seconds(act: Callable[[], Tensor]) -> float:
    """Return the shortest time of a few calls."""
    best = float("inf")
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        began_at = time.perf_counter()
        act()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began_at)
    return best


def _linear(device: torch.device, dtype: torch.dtype, few_rows: int, size: int) -> GpuInt8Linear:
    generator = torch.Generator().manual_seed(0)
    return GpuInt8Linear(torch.randn(size, size, generator=generator).to(device, dtype), None, few_rows)


def _rows(count: int, device: torch.device, dtype: torch.dtype, size: int) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(count)).to(device, dtype)


def _agrees(linear: GpuInt8Linear, x: Tensor) -> bool:
    exact = x.double() @ linear.dequantised().double().t()
    worst = (linear(x).double() - exact).abs().max()
    return bool(worst <= TOLERANCES[x.dtype] * exact.abs().max())
