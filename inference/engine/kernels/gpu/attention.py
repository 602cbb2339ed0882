"""Attention over the cache, through block tables, for single tokens and chunks of prompts.

A program computes a tile of one segment's queries, for all query heads of one key head, with an online softmax
(Milakov and Gimelshein 2018, arXiv 1805.02867). If there are few tiles, the keys are split between programs, and a
second kernel combines their results (Flash-Decoding). The number of programs depends on shapes only, not on lengths,
so that a CUDA graph can be replayed for sequences of any length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.engine.kernels.attention_calls import AttentionCall, AttentionParams, Places

LOG2_E = 1.4426950408889634
MIN_TILE = 16  # rows of a product on tensor cores
TILE = 64  # rows of a chunk's tile: queries times heads
PROGRAMS = 256  # with fewer, keys are split
MAX_SPLITS = 16


def paged_attention(query: Tensor, places: Places, part: AttentionCall, look: AttentionParams) -> Tensor:
    """Attend, after keys and values are written: ``[tokens, heads, key_dim]`` -> ``[tokens, heads, value_dim]``."""
    keys, values, table = places.keys, places.values, places.table
    tokens, heads, size = query.shape
    kv_heads, value_size = keys.shape[2], values.shape[3]
    group = heads // kv_heads
    padded_group = triton.next_power_of_2(group)
    is_single = part.max_queries == 1
    tile = max(MIN_TILE, padded_group) if is_single else max(TILE, padded_group)
    tile_queries = 1 if is_single else tile // padded_group
    segments = len(part.num_queries)
    # As many tiles as the segments can have: each may have one that is not full.
    tiles = segments if is_single else min(tokens, tokens // tile_queries + segments)
    splits = _splits(tiles * kv_heads)
    widest = triton.next_power_of_2(max(size, value_size))
    is_wide = widest > 128 or query.dtype is torch.float32
    out = query.new_empty(tokens, heads, value_size)
    if splits > 1:
        partial = torch.empty(splits, tokens, heads, value_size, dtype=torch.float32, device=query.device)
        sums = torch.empty(splits, tokens, heads, 2, dtype=torch.float32, device=query.device)
    else:
        partial = sums = out
    _attend[(tiles, kv_heads, splits)](
        query,
        keys,
        values,
        out,
        partial,
        sums,
        table,
        part.ends,
        part.lengths,
        out if look.sinks is None else look.sinks,
        look.scale * LOG2_E if not look.softcap else look.scale,
        look.softcap,
        tokens,
        heads,
        segments,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        values.stride(0),
        values.stride(1),
        values.stride(2),
        table.stride(0),
        PAGE=keys.shape[1],
        WINDOW=look.window,
        GROUP=group,
        PADDED_GROUP=padded_group,
        SIZE=size,
        VALUE_SIZE=value_size,
        SIZE_BLOCK=max(16, triton.next_power_of_2(size)),
        VALUE_BLOCK=max(16, triton.next_power_of_2(value_size)),
        TILE=tile,
        TILE_QUERIES=tile_queries,
        KEYS=32 if is_wide else 64,
        SPLITS=splits,
        SEGMENTS=0 if is_single else max(MIN_TILE, triton.next_power_of_2(segments)),
        HAS_SOFTCAP=bool(look.softcap),
        HAS_SINKS=look.sinks is not None,
        LOG2=LOG2_E,
        num_warps=4,
        num_stages=2 if is_wide else 3,
    )
    if splits > 1:
        _combine[(tokens, heads)](
            partial,
            sums,
            out,
            tokens,
            heads,
            VALUE_SIZE=value_size,
            VALUE_BLOCK=triton.next_power_of_2(value_size),
            SPLITS=splits,
            num_warps=1,
        )
    return out


def _splits(programs: int) -> int:
    """Return into how many parts the keys are split: a power of two, which limits the number of compiled kernels."""
    most = max(1, min(MAX_SPLITS, PROGRAMS // programs))
    return 1 << (most.bit_length() - 1)


# Numbers and places that vary from step to step must not lead to further compilations.
@triton.jit(
    do_not_specialize=["num_tokens", "segments", "table_stride"],
    do_not_specialize_on_alignment=[
        *("query", "out", "table", "ends", "lengths", "num_tokens", "segments", "table_stride")
    ],
)
def _attend(
    query,
    keys,
    values,
    out,
    partial,
    sums,
    table,
    ends,
    lengths,
    sinks,
    scale,
    softcap,
    num_tokens,
    heads,
    segments,
    query_stride,
    query_head,
    key_page,
    key_token,
    key_head,
    value_page,
    value_token,
    value_head,
    table_stride,
    PAGE: tl.constexpr,
    WINDOW: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    TILE_QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    SEGMENTS: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    LOG2: tl.constexpr,
):
    segment, first = _tile(tl.program_id(0), ends, segments, TILE_QUERIES, SEGMENTS)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    is_segment = segment < segments  # there may be more programs than tiles
    begin = tl.load(ends + segment, mask=is_segment, other=0)
    count = tl.load(ends + segment + 1, mask=is_segment, other=0) - begin
    if first < count:
        length = tl.load(lengths + segment)
        row = tl.arange(0, TILE)
        own = first + row // PADDED_GROUP
        member = row % PADDED_GROUP
        is_row = (own < count) & (member < GROUP) & (row < TILE_QUERIES * PADDED_GROUP)
        token = (begin + own).to(tl.int64)
        head = kv_head * GROUP + member
        position = length - count + own
        at = tl.arange(0, SIZE_BLOCK)
        at_value = tl.arange(0, VALUE_BLOCK)
        q = tl.load(
            query + token[:, None] * query_stride + head[:, None] * query_head + at[None, :],
            mask=is_row[:, None] & (at[None, :] < SIZE),
            other=0.0,
        )
        end = length - count + tl.minimum(first + TILE_QUERIES, count)  # one past the last key
        oldest = 0
        if WINDOW > 0:
            oldest = tl.maximum(0, length - count + first - WINDOW + 1)
        block = oldest // KEYS
        last_block = tl.cdiv(end, KEYS)
        if SPLITS > 1:
            share = tl.cdiv(last_block - block, SPLITS)
            block += split * share
            last_block = tl.minimum(last_block, block + share)
        top = tl.full([TILE], float("-inf"), tl.float32)
        total = tl.zeros([TILE], tl.float32)
        if HAS_SINKS:  # noqa: SIM102 - a condition of the compilation, and one of the run
            if split == 0:
                top = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * LOG2
                total = tl.where(top > float("-inf"), 1.0, 0.0)
        mixed = tl.zeros([TILE, VALUE_BLOCK], tl.float32)
        for number in range(block, last_block):
            key = number * KEYS + tl.arange(0, KEYS)
            is_key = (key < end) & (key >= oldest)
            page = tl.load(table + segment * table_stride + key // PAGE, mask=is_key, other=0).to(tl.int64)
            key_place = page * key_page + (key % PAGE) * key_token + kv_head * key_head
            k = tl.load(keys + key_place[None, :] + at[:, None], mask=is_key[None, :] & (at[:, None] < SIZE), other=0.0)
            scores = tl.dot(q, k, input_precision="ieee") * scale
            if HAS_SOFTCAP:
                scores = softcap * (2.0 * tl.sigmoid(2.0 * (scores / softcap)) - 1.0) * LOG2
            seen = (key[None, :] <= position[:, None]) & is_key[None, :]
            if WINDOW > 0:
                seen = seen & (key[None, :] > position[:, None] - WINDOW)
            scores = tl.where(seen, scores, float("-inf"))
            new_top = tl.maximum(top, tl.max(scores, 1))
            safe = tl.where(new_top > float("-inf"), new_top, 0.0)
            weights = tl.exp2(scores - safe[:, None])
            fade = tl.exp2(top - safe)
            total = total * fade + tl.sum(weights, 1)
            value_place = page * value_page + (key % PAGE) * value_token + kv_head * value_head
            v = tl.load(
                values + value_place[:, None] + at_value[None, :],
                mask=is_key[:, None] & (at_value[None, :] < VALUE_SIZE),
                other=0.0,
            )
            mixed = mixed * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            top = new_top
        is_out = is_row[:, None] & (at_value[None, :] < VALUE_SIZE)
        target = (token[:, None] * heads + head[:, None]) * VALUE_SIZE + at_value[None, :]
        if SPLITS == 1:
            tl.store(out + target, (mixed / total[:, None]).to(out.dtype.element_ty), mask=is_out)
        else:
            part = (split.to(tl.int64) * num_tokens + token) * heads + head
            tl.store(partial + part[:, None] * VALUE_SIZE + at_value[None, :], mixed, mask=is_out)
            tl.store(sums + part * 2, top, mask=is_row)
            tl.store(sums + part * 2 + 1, total, mask=is_row)


@triton.jit
def _tile(number, ends, segments, TILE_QUERIES: tl.constexpr, SEGMENTS: tl.constexpr):
    """Return the segment of a tile, and the tile's first query in it. Tiles are numbered over all segments. SEGMENTS 0:
    each segment has one query.
    """
    segment = number
    first = 0
    if SEGMENTS > 0:
        each = tl.arange(0, SEGMENTS)
        begins = tl.load(ends + each, mask=each < segments, other=0)
        counts = tl.load(ends + each + 1, mask=each < segments, other=0) - begins
        tiles = (counts + TILE_QUERIES - 1) // TILE_QUERIES
        is_before = tl.cumsum(tiles, 0) <= number
        first = (number - tl.sum(tl.where(is_before, tiles, 0), 0)) * TILE_QUERIES
        segment = tl.sum(is_before.to(tl.int32), 0)
    return segment, first


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["out", "num_tokens"])
def _combine(
    partial,
    sums,
    out,
    num_tokens,
    heads,
    VALUE_SIZE: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    split = tl.arange(0, SPLITS)
    at = tl.arange(0, VALUE_BLOCK)
    parts = place + split.to(tl.int64) * num_tokens * heads
    tops = tl.load(sums + parts * 2)
    fades = tl.exp2(tops - tl.max(tops, 0))
    total = tl.sum(tl.load(sums + parts * 2 + 1) * fades, 0)
    mixed = tl.load(
        partial + parts[:, None] * VALUE_SIZE + at[None, :],
        mask=(at[None, :] < VALUE_SIZE) & (split[:, None] >= 0),
        other=0.0,
    )
    found = tl.sum(mixed * fades[:, None], 0) / total
    tl.store(out + place * VALUE_SIZE + at, found.to(out.dtype.element_ty), mask=at < VALUE_SIZE)
