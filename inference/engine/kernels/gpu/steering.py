"""Steer the tokens of a step at one site in one kernel: each token reads its row, and the entries of that row only.

The formulas are those of src/steering.h and of :mod:`inference.engine.kernels.native.fallback`, which computes all
entries of a site for every token. A token's result depends on its own values only, so it has the same bits whatever the
other tokens are.
"""

from __future__ import annotations

import logging
import math
from dataclasses import fields, replace
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.engine.kernels.native import fallback
from inference.engine.kernels.native.steering_tensors import (
    ACTS,
    HAS_VECTOR,
    KEEPS_NORM,
    NORMALIZATIONS,
    Code,
    Number,
    SteeringTensors,
)

logger = logging.getLogger(__name__)

MAX_ENTRIES = 64  # of a row; more take the way through plain torch

# A kernel reads global numbers only as constants.
_ACTS, _HAS_VECTOR, _KEEPS_NORM = tl.constexpr(ACTS), tl.constexpr(HAS_VECTOR), tl.constexpr(KEEPS_NORM)
_NUMBERS, _CODES = tl.constexpr(len(Number)), tl.constexpr(len(Code))
_BIAS, _THRESHOLD = tl.constexpr(int(Number.BIAS)), tl.constexpr(int(Number.THRESHOLD))
_GAIN, _OFFSET = tl.constexpr(int(Number.GAIN_LESS_ONE)), tl.constexpr(int(Number.OFFSET))
_LOWER, _UPPER = tl.constexpr(int(Number.LOWER)), tl.constexpr(int(Number.UPPER))
_FLOOR, _LIMIT = tl.constexpr(int(Number.FLOOR)), tl.constexpr(int(Number.NORM_LIMIT))
_GATE, _IS_GIVEN = tl.constexpr(int(Code.GATE)), tl.constexpr(int(Code.IS_GIVEN))
_NORMALIZATION = tl.constexpr(int(Code.NORMALIZATION))
_RESCALED = tl.constexpr(NORMALIZATIONS.index("constant_norm_rescale"))
_CENTRED = tl.constexpr(NORMALIZATIONS.index("layer_norm"))
_EPS = tl.constexpr(fallback.LAYER_NORM_EPS)


def can_steer(hidden: Tensor, tables: SteeringTensors) -> bool:
    """Return whether the kernel takes these tensors."""
    return tables.slots.shape[1] <= MAX_ENTRIES and hidden.stride(-1) == 1


def steer(
    hidden: Tensor,
    rows: Tensor,
    tables: SteeringTensors,
    given: Tensor | None = None,
    changes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """See :func:`inference.engine.kernels.native.steer`. ``changes`` ``[tokens]``, if given, is the second result."""
    tokens, width = hidden.shape
    out = torch.empty(tokens, width, dtype=hidden.dtype, device=hidden.device)
    if changes is None:
        changes = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
    block = triton.next_power_of_2(width)
    _steer[(tokens,)](
        hidden,
        rows,
        *tables.all(),
        tables.vectors if given is None else given,
        out,
        changes,
        hidden.stride(0),
        0 if given is None else given.stride(0),
        tables.slots.stride(0),
        width,
        BLOCK=block,
        WIDTH=triton.next_power_of_2(tables.slots.shape[1]),
        HAS_VIEWS=tables.normalizations != ("none",),
        HAS_GIVEN=given is not None,
        num_warps=min(16, max(1, block // 512)),
    )
    return out, changes


@triton.jit
def _steer(
    hidden,
    rows,
    flags,
    vectors,
    norm_limits,
    counts,
    slots,
    read,
    write,
    numbers,
    codes,
    given,
    out,
    changes,
    stride,
    given_stride,
    slots_stride,
    width,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    HAS_VIEWS: tl.constexpr,
    HAS_GIVEN: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + token)
    kind = out.dtype.element_ty
    at = tl.arange(0, BLOCK)
    inside = at < width
    own = tl.load(hidden + token * stride + at, mask=inside, other=0.0)
    row_flags = tl.load(flags + row).to(tl.int32)
    if (row_flags & _ACTS) == 0:
        tl.store(out + token * width + at, own, mask=inside)
        tl.store(changes + token, 0.0)
    else:
        h = own.to(tl.float32)
        norm = tl.sqrt(tl.sum(h * h))
        total = h
        if ((row_flags & _HAS_VECTOR) != 0) & (norm <= tl.load(norm_limits + row)):
            total += tl.load(vectors + row * width + at, mask=inside, other=0.0)
        count = tl.load(counts + row)
        if count > 0:
            total += _entries_delta(
                h, norm, row, token, count, slots, read, write, numbers, codes, given, given_stride, slots_stride,
                width, BLOCK, WIDTH, HAS_VIEWS, HAS_GIVEN,
            )  # fmt: skip
        if (row_flags & _KEEPS_NORM) != 0:
            now = tl.sqrt(tl.sum(total * total))
            total *= tl.where(now > 0, norm / now, 1.0)
        kept = total.to(kind)
        tl.store(out + token * width + at, kept, mask=inside)
        moved = kept.to(tl.float32) - h
        distance = tl.sqrt(tl.sum(moved * moved))
        share = tl.where(norm > 0, distance / norm, 1.0)
        tl.store(changes + token, tl.where(distance == 0, 0.0, share))


@triton.jit
def _entries_delta(
    h, norm, row, token, count, slots, read, write, numbers, codes, given, given_stride, slots_stride, width,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, HAS_VIEWS: tl.constexpr, HAS_GIVEN: tl.constexpr,
):  # fmt: skip
    """Return the sum of the changes by the row's ``count`` entries, ``[BLOCK]``."""
    at = tl.arange(0, BLOCK)
    inside = at < width
    mean, inverse, deviation, rescale = 0.0, 1.0, 1.0, 1.0
    if HAS_VIEWS:
        mean = tl.sum(h) / width
        centred = tl.where(inside, h - mean, 0.0)
        deviation = tl.sqrt(tl.sum(centred * centred) / (width - 1))
        inverse = 1.0 / (deviation + _EPS)
        rescale = norm / tl.sqrt(width.to(tl.float32))
    place = tl.arange(0, WIDTH)
    is_own = place < count
    entry = tl.load(slots + row * slots_stride + place, mask=is_own, other=-1)
    first = tl.where(is_own, entry, 0).to(tl.int64)
    number, code = numbers + first * _NUMBERS, codes + first * _CODES

    a = tl.zeros([WIDTH], tl.float32)
    scale = tl.full([WIDTH], 1.0, tl.float32)
    for k in range(count):
        slot = tl.load(slots + row * slots_stride + k).to(tl.int64)
        weights = tl.load(read + slot * width + at, mask=inside, other=0.0)
        one_scale = 1.0
        if HAS_VIEWS:
            view = tl.load(codes + slot * _CODES + _NORMALIZATION)
            dot = tl.sum((h - tl.where(view == _CENTRED, mean, 0.0)) * weights)
            by = tl.where(rescale > 0, 1.0 / rescale, 1.0)
            dot *= tl.where(view == _CENTRED, inverse, tl.where(view == _RESCALED, by, 1.0))
            one_scale = tl.where(view == _CENTRED, deviation, tl.where(view == _RESCALED, rescale, 1.0))
        else:
            dot = tl.sum(h * weights)
        pre = dot + tl.load(numbers + slot * _NUMBERS + _BIAS)
        value = tl.where(pre > tl.load(numbers + slot * _NUMBERS + _THRESHOLD), pre, 0.0)
        if HAS_GIVEN:
            is_given = tl.load(codes + slot * _CODES + _IS_GIVEN) != 0
            value = tl.where(is_given, tl.load(given + token * given_stride + slot), value)
        a = tl.where(place == k, value, a)
        scale = tl.where(place == k, one_scale, scale)

    step = tl.load(number + _GAIN) * a + tl.load(number + _OFFSET)
    step = tl.minimum(tl.maximum(step, tl.load(number + _LOWER) - a), tl.load(number + _UPPER) - a)
    gate = tl.load(code + _GATE)
    is_gate = (entry[None, :] == gate[:, None]) & is_own[None, :]
    is_open = tl.sum(tl.where(is_gate, a[None, :], 0.0), axis=1) > tl.load(number + _FLOOR)
    gate_is_open = tl.sum(tl.where(is_gate & is_open[None, :], 1, 0), axis=1) > 0
    acts = is_own & is_open & gate_is_open & (norm <= tl.load(number + _LIMIT))
    step = tl.where(acts, step * scale, 0.0)

    delta = tl.zeros([BLOCK], tl.float32)
    for k in range(count):
        by = tl.sum(tl.where(place == k, step, 0.0))
        if by != 0.0:
            slot = tl.load(slots + row * slots_stride + k).to(tl.int64)
            delta += by * tl.load(write + slot * width + at, mask=inside, other=0.0)
    return delta


@cache
def works_on(device: torch.device) -> bool:
    """Return whether the kernel agrees with plain torch on a device, for rows of every kind."""
    hidden, rows, tables, given = _trial(device)
    expected, expected_changes = fallback.steer(hidden, rows, tables, given)
    try:
        found, changes = steer(hidden, rows, tables, given)
        plain, _ = steer(hidden, rows, replace(tables, normalizations=("none",)))
    except Exception as error:  # noqa: BLE001 - a kernel that is compiled here can fail in many ways
        logger.warning("The steering kernel cannot be used: %s", error)
        return False
    is_right = (
        torch.allclose(found, expected, atol=1e-4)
        and torch.allclose(changes, expected_changes, atol=1e-4)
        and torch.equal(plain[0], hidden[0])
    )
    if not is_right:
        logger.warning("The steering kernel differs from plain torch, and is not used.")
    return is_right


def _trial(device: torch.device) -> tuple[Tensor, Tensor, SteeringTensors, Tensor]:
    """Return five tokens whose rows do nothing, add a vector, own entries of each normalization, and keep the norm."""
    generator = torch.Generator().manual_seed(0)
    width, entries = 80, 6
    hidden, vectors, read, write = (
        torch.randn(count, width, generator=generator) for count in (5, 4, entries, entries)
    )
    vectors[2] = 0.0  # of a row without the flag
    numbers = torch.tensor([[0.1, 0.0, -1.0, 2.0, -math.inf, math.inf, -math.inf, math.inf]]).repeat(entries, 1)
    codes = torch.zeros(entries, len(Code), dtype=torch.int32)
    codes[:, Code.ROW] = torch.tensor([2, 2, 2, 3, 3, 3])
    codes[:, Code.GATE] = torch.tensor([1, 1, 2, 3, 4, 5])
    codes[:, Code.IS_GIVEN] = torch.tensor([0, 0, 1, 0, 0, 0])
    codes[:, Code.NORMALIZATION] = torch.tensor([0, 1, 2, 0, 1, 2])
    numbers[0, Number.FLOOR], numbers[3, Number.UPPER], numbers[4, Number.NORM_LIMIT] = 0.2, 0.5, 1.0
    tables = SteeringTensors(
        flags=torch.tensor([0, ACTS | HAS_VECTOR, ACTS, ACTS | HAS_VECTOR | KEEPS_NORM], dtype=torch.uint8),
        vectors=vectors,
        norm_limits=torch.full((4,), math.inf),
        counts=torch.tensor([0, 0, 3, 3], dtype=torch.int32),
        slots=torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 2], [3, 4, 5]], dtype=torch.int32),
        read=read,
        write=write,
        numbers=numbers,
        codes=codes,
        normalizations=NORMALIZATIONS,
    )
    moved = {
        field.name: getattr(tables, field.name).to(device) for field in fields(tables) if field.name != "normalizations"
    }
    rows = torch.tensor([0, 1, 2, 3, 2], device=device)
    given = torch.rand(len(rows), entries, generator=generator).to(device)
    return hidden.to(device), rows, replace(tables, **moved), given
