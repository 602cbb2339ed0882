"""The small operations of a decoder layer: norms, rotary positions with the write to the cache, and gated activations.

They compute in float32. Where transformers rounds between two operations, so do these.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
GATE_BLOCK = 1024
ROWS_PER_PROGRAM = 8  # heads of a token that one program rotates, at most


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    """Return ``x / rms(x) * (weight + offset)`` over the last dimension. ``offset``: 0, or 1 as in Gemma."""
    rows = x.reshape(-1, x.shape[-1])
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    _launch_norm(rows, rows, rows, weight, out, eps, offset, adds=False)
    return out.view(x.shape)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float) -> tuple[Tensor, Tensor]:
    """Return ``x + residual`` and its norm, both ``[rows, width]``."""
    total, out = torch.empty_like(residual), torch.empty_like(residual)
    _launch_norm(x, residual, total, weight, out, eps, offset, adds=True)
    return total, out


def _launch_norm(
    x: Tensor, residual: Tensor, total: Tensor, weight: Tensor, out: Tensor, eps: float, offset: float, *, adds: bool
) -> None:
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _norm[(rows,)](
        x,
        residual,
        total,
        weight,
        out,
        x.stride(0),
        residual.stride(0),
        eps,
        width,
        OFFSET=offset,
        ADDS=adds,
        BLOCK=block,
        num_warps=min(8, max(1, block // 512)),
    )


@triton.jit
def _norm(
    x,
    residual,
    total,
    weight,
    out,
    x_stride,
    residual_stride,
    eps,
    width,
    OFFSET: tl.constexpr,
    ADDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    kind = out.dtype.element_ty
    values = tl.load(x + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        values += tl.load(residual + row * residual_stride + at, mask=inside, other=0.0).to(tl.float32)
        values = values.to(kind).to(tl.float32)
        tl.store(total + row * width + at, values.to(kind), mask=inside)
    scale = tl.rsqrt(tl.sum(values * values) / width + eps)
    weights = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if OFFSET == 0.0:
        normed = (values * scale).to(kind).to(tl.float32) * weights
    else:
        normed = values * scale * (weights + OFFSET)
    tl.store(out + row * width + at, normed.to(kind), mask=inside)


def rotate_and_write(
    qkv: Tensor,
    heads: int,
    norms: tuple[Tensor | None, Tensor | None, float, float],
    cos: Tensor,
    sin: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values to the cache. Returns the queries ``[tokens, heads,
    head_dim]``.

    ``qkv`` ``[tokens, (heads + 2 * kv_heads) * head_dim]``; ``norms``: the weights of the queries' and the keys' norm,
    their eps and offset; ``cos``, ``sin`` ``[tokens, head_dim]``; ``keys``, ``values`` ``[blocks, block_size, kv_heads,
    head_dim]`` with the same strides; ``slots`` ``[tokens]``: block * block_size + offset.
    """
    tokens, kv_heads, size = len(qkv), keys.shape[2], keys.shape[3]
    queries = qkv.new_empty(tokens, heads, size)
    tile = ROWS_PER_PROGRAM
    while heads % tile or kv_heads % tile:
        tile //= 2
    query_norm, key_norm, eps, offset = norms
    _rotate[(tokens, (heads + 2 * kv_heads) // tile)](
        qkv,
        queries,
        keys,
        values,
        slots,
        cos,
        sin,
        queries if query_norm is None else query_norm,
        queries if key_norm is None else key_norm,
        qkv.stride(0),
        cos.stride(0),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        eps,
        heads,
        kv_heads,
        OFFSET=offset,
        NORMS_QUERY=query_norm is not None,
        NORMS_KEY=key_norm is not None,
        PAGE=keys.shape[1],
        SIZE=size,
        HALF=triton.next_power_of_2(size // 2),
        TILE=tile,
        num_warps=1 if tile * size <= 512 else 2,
    )
    return queries


@triton.jit
def _rotate(
    qkv,
    queries,
    keys,
    values,
    slots,
    cos,
    sin,
    query_norm,
    key_norm,
    qkv_stride,
    angle_stride,
    block_stride,
    token_stride,
    head_stride,
    eps,
    heads,
    kv_heads,
    OFFSET: tl.constexpr,
    NORMS_QUERY: tl.constexpr,
    NORMS_KEY: tl.constexpr,
    PAGE: tl.constexpr,
    SIZE: tl.constexpr,
    HALF: tl.constexpr,
    TILE: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * TILE
    head = first + tl.arange(0, TILE)[:, None]
    at = tl.arange(0, HALF)[None, :]
    inside = (at < SIZE // 2) & (head >= 0)
    source = qkv + token * qkv_stride + head * SIZE + at
    kind = queries.dtype.element_ty
    low = tl.load(source, mask=inside, other=0.0)
    high = tl.load(source + SIZE // 2, mask=inside, other=0.0)
    if first >= heads + kv_heads:
        slot = tl.load(slots + token)
        place = (slot // PAGE) * block_stride + (slot % PAGE) * token_stride
        target = values + place + (head - heads - kv_heads) * head_stride + at
        tl.store(target, low, mask=inside)
        tl.store(target + SIZE // 2, high, mask=inside)
    else:
        one, other = low.to(tl.float32), high.to(tl.float32)
        if first < heads:
            if NORMS_QUERY:
                one, other = _normed_halves(one, other, query_norm, at, eps, kind, OFFSET, SIZE)
        else:
            if NORMS_KEY:
                one, other = _normed_halves(one, other, key_norm, at, eps, kind, OFFSET, SIZE)
        angles = token * angle_stride + at
        within = at < SIZE // 2
        cos_one = tl.load(cos + angles, mask=within, other=0.0).to(tl.float32)
        cos_other = tl.load(cos + angles + SIZE // 2, mask=within, other=0.0).to(tl.float32)
        sin_one = tl.load(sin + angles, mask=within, other=0.0).to(tl.float32)
        sin_other = tl.load(sin + angles + SIZE // 2, mask=within, other=0.0).to(tl.float32)
        turned_one = (one * cos_one - other * sin_one).to(kind)
        turned_other = (other * cos_other + one * sin_other).to(kind)
        if first < heads:
            target = queries + (token * heads + head) * SIZE + at
            tl.store(target, turned_one, mask=inside)
            tl.store(target + SIZE // 2, turned_other, mask=inside)
        else:
            slot = tl.load(slots + token)
            place = (slot // PAGE) * block_stride + (slot % PAGE) * token_stride
            target = keys + place + (head - heads) * head_stride + at
            tl.store(target, turned_one, mask=inside)
            tl.store(target + SIZE // 2, turned_other, mask=inside)


@triton.jit
def _normed_halves(one, other, weight, at, eps, kind: tl.constexpr, OFFSET: tl.constexpr, SIZE: tl.constexpr):
    squares = tl.sum(one * one, axis=1) + tl.sum(other * other, axis=1)
    scale = tl.rsqrt(squares / SIZE + eps)[:, None]
    within = at < SIZE // 2
    weight_one = tl.load(weight + at, mask=within, other=0.0).to(tl.float32)
    weight_other = tl.load(weight + SIZE // 2 + at, mask=within, other=0.0).to(tl.float32)
    if OFFSET == 0.0:
        one = (one * scale).to(kind).to(tl.float32) * weight_one
        other = (other * scale).to(kind).to(tl.float32) * weight_other
    else:
        one = one * scale * (weight_one + OFFSET)
        other = other * scale * (weight_other + OFFSET)
    return one.to(kind).to(tl.float32), other.to(kind).to(tl.float32)


def gate_mul(gate_up: Tensor, activation: str) -> Tensor:
    """Return ``activation(gate) * up`` of ``[rows, 2 * width]``."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    _gate[(rows, triton.cdiv(width, GATE_BLOCK))](
        gate_up, out, gate_up.stride(0), width, ACTIVATION=ACTIVATIONS[activation], BLOCK=GATE_BLOCK, num_warps=4
    )
    return out


@triton.jit
def _gate(gate_up, out, stride, width, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    kind = out.dtype.element_ty
    gate = tl.load(gate_up + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + at, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == 0:
        active = gate * tl.sigmoid(gate)
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        active = gate * tl.sigmoid(2.0 * inner)  # 0.5 * (1 + tanh(x)) is sigmoid(2 x)
    tl.store(out + row * width + at, (active.to(kind).to(tl.float32) * up).to(kind), mask=inside)
