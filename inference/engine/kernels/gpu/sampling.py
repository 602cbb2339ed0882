"""Choose the next tokens of a batch in two or three kernels: the likeliest ones, and random ones at a temperature,
truncated by top-k, top-p and min-p.

A first kernel reads the logits once, and finds the largest of each chunk and the weight of each block. The last one
finds the token from these. Between them, rows with limits get the smallest logit that stays: a bisection over the
possible values of a logit, which needs no sorting and takes as long for flat distributions as for others. Penalties,
bans and typical-p are :mod:`inference.engine.sampling`'s.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.engine.sampling.table import RowLimits

logger = logging.getLogger(__name__)

CHUNK = 4096  # tokens per program of the first kernel
BLOCK = 128  # tokens whose weights are added up
COMMON_BITS = {torch.bfloat16: 16, torch.float16: 13}  # trailing bits that are zero in float32
NUM_FLAGS = 3  # per row: the token, whether its logits are finite, and 1


def choose_tokens(
    logits: Tensor, temperatures: Tensor | None, uniforms: Tensor | None, limits: RowLimits | None = None
) -> tuple[Tensor, Tensor]:
    """Return the tokens int64 ``[rows]`` of ``logits`` ``[rows, vocab]``, and int32 ``[rows, 3]``: the token, whether
    the largest logit is finite, and 1.

    Rows whose ``temperatures`` (float32 ``[rows]``) is 0 get the first of their largest logits; NaN counts as the
    largest. The others are drawn by inversion with ``uniforms`` (float64 ``[rows]``, in [0, 1)), from the tokens within
    ``limits``: see :mod:`inference.engine.sampling.truncation`.
    """
    rows, vocab = logits.shape
    chunks, blocks = triton.cdiv(vocab, CHUNK), triton.cdiv(vocab, CHUNK) * (CHUNK // BLOCK)
    is_random = temperatures is not None
    tops = torch.empty(rows, chunks, dtype=torch.float32, device=logits.device)
    places = torch.empty(rows, chunks, dtype=torch.int32, device=logits.device)
    sums = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device) if is_random else tops
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    flags = torch.empty(rows, NUM_FLAGS, dtype=torch.int32, device=logits.device)
    temperatures = tops if temperatures is None else temperatures
    _scan[(rows, chunks)](
        logits,
        temperatures,
        tops,
        places,
        sums,
        logits.stride(0),
        vocab,
        chunks,
        CHUNK=CHUNK,
        BLOCK=BLOCK,
        IS_RANDOM=is_random,
        num_warps=8,
    )
    floors = min_p = tops
    if limits is not None:
        floors, min_p = torch.empty(rows, dtype=torch.float32, device=logits.device), limits.min_p
        _limit[(rows,)](
            logits,
            temperatures,
            limits.top_k,
            limits.top_p,
            min_p,
            tops,
            sums,
            floors,
            logits.stride(0),
            vocab,
            chunks,
            CHUNK=CHUNK,
            BLOCK=BLOCK,
            CHUNKS=triton.next_power_of_2(chunks),
            SHIFT=COMMON_BITS.get(logits.dtype, 0),
            num_warps=16,
        )
    _choose[(rows,)](
        logits,
        temperatures,
        tops if uniforms is None else uniforms,
        floors,
        min_p,
        tops,
        places,
        sums,
        tokens,
        flags,
        logits.stride(0),
        vocab,
        chunks,
        CHUNK=CHUNK,
        BLOCK=BLOCK,
        CHUNKS=triton.next_power_of_2(chunks),
        BLOCKS=triton.next_power_of_2(blocks),
        IS_RANDOM=is_random,
        IS_LIMITED=limits is not None,
        num_warps=4,
    )
    return tokens, flags


@triton.jit
def _scan(
    logits,
    temperatures,
    tops,
    places,
    sums,
    stride,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_RANDOM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(logits + row * stride + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
    values = tl.where(values == values, values, float("inf"))
    top = tl.max(values, 0)
    tl.store(tops + row * chunks + chunk, top)
    tl.store(places + row * chunks + chunk, tl.min(tl.where(values == top, at, vocab), 0))
    if IS_RANDOM:
        temperature = tl.load(temperatures + row)
        if temperature > 0:
            weights = tl.where(values > float("-inf"), tl.exp(values / temperature - top / temperature), 0.0)
            by_block = tl.sum(tl.reshape(weights, (CHUNK // BLOCK, BLOCK)), 1)
            tl.store(sums + (row * chunks + chunk) * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK), by_block)


@triton.jit
def _key(value, SHIFT: tl.constexpr):
    """Return an int64 with the order of float32 numbers. ``SHIFT``: trailing bits that all of them have in common."""
    bits = value.to(tl.int32, bitcast=True)
    return (tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF) >> SHIFT).to(tl.int64)


@triton.jit
def _value(key, SHIFT: tl.constexpr):
    """Return the float32 number of a key."""
    bits = (key.to(tl.int32) << SHIFT) + tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def _above(logits, vocab, chunks, floor, temperature, scaled_best, CHUNK: tl.constexpr):
    """Return the number of logits that are at least ``floor``, and the sum of their weights, both in float64."""
    count = tl.full([], 0.0, tl.float64)
    mass = tl.full([], 0.0, tl.float64)
    for chunk in range(chunks):
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        values = tl.load(logits + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
        is_kept = (values >= floor) & (at < vocab)
        count += tl.sum(is_kept.to(tl.int32), 0).to(tl.float64)
        weights = tl.exp(values / temperature - scaled_best)
        mass += tl.sum(tl.where(is_kept, weights, 0.0), 0).to(tl.float64)
    return count, mass


@triton.jit
def _floor(
    logits,
    vocab,
    chunks,
    floor,
    best,
    needed,
    temperature,
    scaled_best,
    CHUNK: tl.constexpr,
    SHIFT: tl.constexpr,
    COUNTS: tl.constexpr,
):
    """Return the largest value such that the logits from it on are ``needed`` many, or have that weight together."""
    low = _key(floor, SHIFT)
    high = _key(best, SHIFT) + 1
    while high - low > 1:
        middle = low + (high - low) // 2
        count, mass = _above(logits, vocab, chunks, _value(middle, SHIFT), temperature, scaled_best, CHUNK)
        is_enough = (count if COUNTS else mass) >= needed
        low = tl.where(is_enough, middle, low)
        high = tl.where(is_enough, high, middle)
    return _value(low, SHIFT)


@triton.jit
def _limit(
    logits,
    temperatures,
    top_k,
    top_p,
    min_p,
    tops,
    sums,
    floors,
    stride,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Find the smallest logit that stays: minus infinity without limits, infinity if only the likeliest token stays.

    With limits, write the weights of blocks, relative to the largest logit of the row.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    best = tl.max(tl.load(tops + row * chunks + chunk, mask=chunk < chunks, other=float("-inf")), 0)
    temperature = tl.load(temperatures + row)
    most = tl.load(top_k + row)
    share = tl.load(top_p + row)
    least = tl.load(min_p + row)
    floor = tl.full([], float("-inf"), tl.float32)
    is_finite = (best > float("-inf")) & (best < float("inf"))
    if (temperature > 0) & is_finite & ((most > 0) | (share < 1.0) | (least > 0)):
        scaled_best = best / temperature
        own = logits + row * stride
        if most > 0:
            floor = _floor(own, vocab, chunks, floor, best, most, temperature, scaled_best, CHUNK, SHIFT, COUNTS=True)
        if share < 1.0:
            _, mass = _above(own, vocab, chunks, floor, temperature, scaled_best, CHUNK)
            needed = share * mass
            floor = _floor(
                own, vocab, chunks, floor, best, needed, temperature, scaled_best, CHUNK, SHIFT, COUNTS=False
            )
            floor = tl.where(needed <= 1.0, float("inf"), floor)  # 1 is the weight of the likeliest token
        floor = tl.maximum(floor, -3.4028234663852886e38)
        for number in range(chunks):
            at = number * CHUNK + tl.arange(0, CHUNK)
            values = tl.load(own + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
            weights = tl.exp(values / temperature - scaled_best)
            weights = tl.where((values >= floor) & (weights >= least), weights, 0.0)
            by_block = tl.sum(tl.reshape(weights, (CHUNK // BLOCK, BLOCK)), 1)
            tl.store(sums + (row * chunks + number) * (CHUNK // BLOCK) + tl.arange(0, CHUNK // BLOCK), by_block)
    tl.store(floors + row, floor)


@triton.jit
def _choose(
    logits,
    temperatures,
    uniforms,
    floors,
    min_p,
    tops,
    places,
    sums,
    tokens,
    flags,
    stride,
    vocab,
    chunks,
    CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNKS: tl.constexpr,
    BLOCKS: tl.constexpr,
    IS_RANDOM: tl.constexpr,
    IS_LIMITED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, CHUNKS)
    by_chunk = tl.load(tops + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    best = tl.max(by_chunk, 0)
    first = tl.min(tl.where((by_chunk == best) & (chunk < chunks), chunk, CHUNKS), 0)
    token = tl.load(places + row * chunks + first)
    is_finite = (best > float("-inf")) & (best < float("inf"))
    if IS_RANDOM:
        temperature = tl.load(temperatures + row)
        floor = tl.full([], float("-inf"), tl.float32)
        least = tl.full([], 0.0, tl.float32)
        if IS_LIMITED:
            floor = tl.load(floors + row)
            least = tl.load(min_p + row)
        if (temperature > 0) & is_finite & (floor < float("inf")):
            scaled_best = best / temperature
            number = tl.arange(0, BLOCKS)
            inside = number < chunks * (CHUNK // BLOCK)
            own_tops = tl.load(tops + row * chunks + number // (CHUNK // BLOCK), mask=inside, other=float("-inf"))
            own_tops = tl.where(floor > float("-inf"), best, own_tops)
            parts = tl.load(sums + row * chunks * (CHUNK // BLOCK) + number, mask=inside, other=0.0)
            parts = (parts * tl.exp(own_tops / temperature - scaled_best)).to(tl.float64)
            ends = tl.cumsum(parts, 0)
            target = tl.load(uniforms + row) * tl.max(ends, 0)
            block = tl.minimum(tl.sum(((ends <= target) & inside).to(tl.int32), 0), (vocab - 1) // BLOCK)
            part = tl.sum(tl.where(number == block, parts, 0.0), 0)
            before = tl.sum(tl.where(number == block, ends, 0.0), 0) - part
            share = tl.minimum(tl.maximum((target - before) / part, 0.0), 1.0)
            place = tl.arange(0, BLOCK)
            at = block * BLOCK + place
            values = tl.load(logits + row * stride + at, mask=at < vocab, other=float("-inf")).to(tl.float32)
            weights = tl.exp(values / temperature - scaled_best)
            weights = tl.where((values >= floor) & (weights >= least), weights, 0.0).to(tl.float64)
            ends_inside = tl.cumsum(weights, 0)
            target_inside = share * tl.max(ends_inside, 0)
            found = tl.minimum(tl.sum((ends_inside <= target_inside).to(tl.int32), 0), BLOCK - 1)
            weight = tl.sum(tl.where(place == found, weights, 0.0), 0)
            # Rounding can move the target to the end of the distribution, past its last possible token.
            token = tl.where(weight > 0, block * BLOCK + found, token)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(flags + row * 3, token)
    tl.store(flags + row * 3 + 1, is_finite.to(tl.int32))
    tl.store(flags + row * 3 + 2, 1)


@cache
def works_on(device: torch.device) -> bool:
    """Return whether the kernels agree with torch on a device."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 2 * CHUNK + 700, generator=generator).to(device)
    logits[2] = float("nan")
    temperatures = torch.tensor([0.0, 1e-3, 0.0, 1.0, 1.0], device=device)
    uniforms = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.5], dtype=torch.float64, device=device)
    limits = RowLimits(
        torch.tensor([0, 0, 0, 0, 50], dtype=torch.int32, device=device),
        torch.tensor([1, 1, 1, 1, 0.9], dtype=torch.float64, device=device),
        torch.zeros(5, device=device),
    )
    try:
        tokens, flags = choose_tokens(logits, temperatures, uniforms, limits)
    except Exception as error:  # noqa: BLE001 - a kernel that is compiled here can fail in many ways
        logger.warning("The kernels that choose tokens cannot be used: %s", error)
        return False
    best = logits[4].double().softmax(-1).topk(50)
    kept = int((best.values.cumsum(-1) < 0.9 * best.values.sum()).sum()) + 1
    truncated = torch.zeros_like(logits[4]).double().scatter(0, best.indices[:kept], best.values[:kept])
    is_right = (
        tokens[:2].tolist() == logits[:2].argmax(-1).tolist()
        and flags[:, 1].tolist() == [1, 1, 0, 1, 1]
        and _is_half_way(int(tokens[3]), logits[3].double().softmax(-1))
        and _is_half_way(int(tokens[4]), truncated)
    )
    if not is_right:
        logger.warning("The kernels that choose tokens differ from torch, and are not used.")
    return is_right


def _is_half_way(token: int, weights: Tensor) -> bool:
    """Return whether half of the weights lie before the token, but for rounding."""
    ends = weights.cumsum(-1) / weights.sum()
    return bool(ends[token] >= 0.5 - 1e-4 and ends[token] - weights[token] / weights.sum() <= 0.5 + 1e-4)
