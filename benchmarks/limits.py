"""The machine's memory bandwidth and arithmetic throughput: ``python -m benchmarks.limits``.

Each limit is the best of several methods and repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.options import Options, parse_options
from benchmarks.record import Record
from benchmarks.shapes import Shape
from benchmarks.subject import echo
from inference.engine.kernels import native
from inference.engine.kernels.layouts import interleaved
from inference.engine.kernels.linear_kinds import PackedLinear, RowsLinear, can_pack, can_read_rows
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
    """Return GB/s read, GFLOP/s at GEMM_ROWS rows, and the resulting limits of the shape in tokens/s.

    These are for decoding at batch size 1 and for prefill. The faster type limits prefill, because bfloat16 weights can
    be converted to float32 on processors without bfloat16 instructions.
    """
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    read = read_bandwidth(place, read_bytes, repeat_s)
    narrow = gemm_rate(place, shape.hidden, shape.intermediate, repeat_s, torch.bfloat16)
    wide = gemm_rate(place, shape.hidden, shape.intermediate, repeat_s, torch.float32)
    flops_per_token = 2 * shape.bytes_per_step / getattr(torch, shape.dtype).itemsize
    echo(f"limits: {read / 1e9:.1f} GB/s read, {narrow / 1e9:.0f} GFLOP/s bfloat16, {wide / 1e9:.0f} float32")
    return {
        "read_gb_s": read / 1e9,
        "bf16_gflop_s": narrow / 1e9,
        "float32_gflop_s": wide / 1e9,
        "weights_gb": shape.bytes_per_step / 1e9,
        "decode_tok_s": read / shape.bytes_per_step,
        "prefill_tok_s": max(narrow, wide) / flops_per_token,
    }


def read_bandwidth(device: torch.device, num_bytes: int, repeat_s: float) -> float:
    """Return bytes read per second, from reductions, matrix-vector products and copies (half of their traffic)."""
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
    """Return FLOP/s (a multiply-add counts as two) of GEMM_ROWS rows through a linear of the shape or a square one."""
    ways = [*_products(device, hidden, wide, dtype), *_products(device, 2048, 2048, dtype)]
    return max(flops / _best_s(act, device, repeat_s / len(ways)) for act, flops in ways)


def _products(
    device: torch.device, width: int, height: int, dtype: torch.dtype
) -> list[tuple[Callable[[], Tensor], int]]:
    """Return the ways to multiply, with their FLOP: torch's, and on a CPU those with a packed weight and our own."""
    rows = torch.randn(GEMM_ROWS, width, device=device).to(dtype)
    weight = torch.randn(height, width, device=device).to(dtype)
    ways: list[Callable[[], Tensor]] = [lambda: functional.linear(rows, weight)]
    if device.type == "cpu":
        native.activate()
        kinds = ((PackedLinear, can_pack, weight), (RowsLinear, can_read_rows, interleaved(weight)))
        ways += [partial(kind(as_stored, None), rows) for kind, is_possible, as_stored in kinds if is_possible(dtype)]
    return [(way, 2 * GEMM_ROWS * width * height) for way in ways]


def _best_s(act: Callable[[], object], device: torch.device, repeat_s: float) -> float:
    """Return the seconds of the fastest call within ``repeat_s``, after a warm-up call."""
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
