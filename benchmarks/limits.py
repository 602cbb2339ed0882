"""``python -m benchmarks.limits``: what the machine can do at most, in bytes read and in multiplications per second.

Each is the best of several ways and repetitions: a limit is what nothing here has exceeded.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.options import Options, parse_options
from benchmarks.record import Record
from benchmarks.shapes import Shape
from benchmarks.subject import say
from inference.torch_threads import borrowed_workers

READ_BYTES = 512 * 2**20  # far more than any cache here
GEMM_ROWS = 512
REPEAT_S = 1.0


def record(options: Options) -> Record:
    return Record("limits", options.label, values=limits(options.shape))


@borrowed_workers()
def limits(
    shape: Shape, device: str = "", *, read_bytes: int = READ_BYTES, repeat_s: float = REPEAT_S
) -> dict[str, float]:
    """GB/s read, GFLOP/s at GEMM_ROWS rows, and what they allow the shape: tokens/s at batch 1, and of prefill.

    Prefill is bounded by the faster type: weights in bfloat16 may be widened on the way, where a processor has no
    instructions for them.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    read = read_bandwidth(place, read_bytes, repeat_s)
    narrow = gemm_rate(place, shape.hidden, shape.intermediate, repeat_s, torch.bfloat16)
    wide = gemm_rate(place, shape.hidden, shape.intermediate, repeat_s, torch.float32)
    flops_per_token = 2 * shape.bytes_per_step / getattr(torch, shape.dtype).itemsize
    say(f"limits: {read / 1e9:.1f} GB/s read, {narrow / 1e9:.0f} GFLOP/s bfloat16, {wide / 1e9:.0f} float32")
    return {
        "read_gb_s": read / 1e9,
        "bf16_gflop_s": narrow / 1e9,
        "float32_gflop_s": wide / 1e9,
        "weights_gb": shape.bytes_per_step / 1e9,
        "decode_tok_s": read / shape.bytes_per_step,
        "prefill_tok_s": max(narrow, wide) / flops_per_token,
    }


def read_bandwidth(device: torch.device, num_bytes: int, repeat_s: float) -> float:
    """Bytes per second: reductions, a product with a vector, and copies (half of whose traffic is reading)."""
    numbers = torch.ones(num_bytes // 4, device=device)
    square = numbers.view(-1, 1024)
    vector, target = torch.ones(1024, device=device), torch.empty_like(numbers)
    ways: list[tuple[Callable[[], object], int]] = [
        (numbers.sum, num_bytes),
        (numbers.max, num_bytes),
        (lambda: torch.mv(square, vector), num_bytes),
        (lambda: torch.dot(numbers, numbers), num_bytes),
        (lambda: target.copy_(numbers), 2 * num_bytes),
    ]
    return max(size / _best_s(act, device, repeat_s / len(ways)) for act, size in ways)


def gemm_rate(device: torch.device, hidden: int, wide: int, repeat_s: float, dtype: torch.dtype) -> float:
    """Multiply-adds count as two, per second, of GEMM_ROWS rows through a linear of the shape or a square one."""
    ways = [_linear(device, hidden, wide, dtype), _linear(device, 2048, 2048, dtype)]
    return max(flops / _best_s(act, device, repeat_s / len(ways)) for act, flops in ways)


def _linear(device: torch.device, width: int, height: int, dtype: torch.dtype) -> tuple[Callable[[], Tensor], int]:
    rows = torch.randn(GEMM_ROWS, width, device=device).to(dtype)
    weight = torch.randn(height, width, device=device).to(dtype)
    return lambda: functional.linear(rows, weight), 2 * GEMM_ROWS * width * height


def _best_s(act: Callable[[], object], device: torch.device, repeat_s: float) -> float:
    """Seconds of the fastest call within the time, after one that does not count."""
    best = float("inf")
    _timed(act, device)
    end = time.perf_counter() + repeat_s
    while time.perf_counter() < end or best == float("inf"):
        best = min(best, _timed(act, device))
    return best


def _timed(act: Callable[[], object], device: torch.device) -> float:
    began = time.perf_counter()
    act()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    found = parse_options(__doc__)
    record(found).save(found.results)
