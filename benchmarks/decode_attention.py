"""Decode attention of one layer, compared with SDPA and memory bandwidth: ``python -m benchmarks.decode_attention``.

Measures CPU seconds of one thread (the minimum of many runs), which other work on the machine affects little. SDPA gets
contiguous keys and values, and the query heads of a group as rows, which is its fastest case.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from inference.engine.kernels import native
from inference.engine.kernels.native import fallback

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 16, 8, 128, 32  # Qwen3-0.6B's
CASES = ((16, 512), (16, 1024), (1, 4096))
LAYERS = 6  # more than fit into the processor's caches
SCALE = HEAD_DIM**-0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.stdout.write(f"{native.activate()}\n\n| sequences x tokens | kernel | ms a layer | GB/s |\n|---|---|---|---|\n")
    for n, length in CASES:
        size = 2 * n * length * KV_HEADS * HEAD_DIM * 2
        for name, seconds in min_cpu_seconds(runs(n, length), options.rounds).items():
            ms, speed = seconds / LAYERS * 1e3, size * LAYERS / seconds / 1e9
            sys.stdout.write(f"| {n} x {length} | {name} | {ms:.2f} | {speed:.0f} |\n")


def runs(n: int, length: int) -> dict[str, Callable[[], None]]:
    """Return the functions to measure. Each reads the keys and values of all layers once."""
    found: dict[str, Callable[[], None]] = {}
    query = torch.randn(n, HEADS, HEAD_DIM).bfloat16()
    lengths = torch.full((n,), length, dtype=torch.int32)
    for block, kind in ((BLOCK, "paged"), (length, "contiguous")):
        for heads_first in (True, False):
            pools = [(_pool(n * length // block, block, heads_first), _pool(n * length // block, block, heads_first))]
            pools += [tuple(p.clone() for p in pools[0]) for _ in range(LAYERS - 1)]  # type: ignore[misc]
            table = torch.randperm(n * length // block).view(n, -1).int()
            layout = "heads, tokens" if heads_first else "tokens, heads"
            found[f"C++, {kind} [{layout}]"] = partial(_ours, native.decode_attention, query, pools, table, lengths)
            if heads_first:
                found[f"torch, {kind}"] = partial(_ours, fallback.decode_attention, query, pools, table, lengths)
    together = [torch.randn(2, n, KV_HEADS, length, HEAD_DIM).bfloat16() for _ in range(LAYERS)]
    found["SDPA"] = partial(_sdpa, query.view(n, KV_HEADS, -1, HEAD_DIM), together)
    found["reading alone"] = partial(_read, together)
    return found


@torch.inference_mode()
def min_cpu_seconds(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Return the CPU seconds of the fastest of the interleaved rounds."""
    seen: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            began = time.thread_time()
            run()
            seen[name].append(time.thread_time() - began)
    return {name: min(seconds[1:]) for name, seconds in seen.items()}


def _pool(blocks: int, size: int, heads_first: bool) -> Tensor:  # noqa: FBT001
    shape = (blocks, KV_HEADS, size, HEAD_DIM) if heads_first else (blocks, size, KV_HEADS, HEAD_DIM)
    pool = torch.randn(shape).bfloat16()
    return pool.transpose(1, 2) if heads_first else pool


def _ours(
    attention: Callable[..., Tensor], query: Tensor, pools: list[tuple[Tensor, Tensor]], table: Tensor, lengths: Tensor
) -> None:
    for keys, values in pools:
        attention(query, keys, values, table, lengths, SCALE, 0, 0.0)


def _sdpa(query: Tensor, together: list[Tensor]) -> None:
    for keys, values in together:
        functional.scaled_dot_product_attention(query, keys, values, scale=SCALE)


def _read(together: list[Tensor]) -> None:
    """Sum up the same bytes, which measures how fast one thread can read them."""
    for both in together:
        both.view(torch.int64).sum()


if __name__ == "__main__":
    main()
