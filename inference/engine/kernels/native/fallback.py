"""The kernels in plain torch, for machines without a compiler, for other devices than the CPU, and for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from inference.engine.kernels.native.steering_tensors import (
    ACTS,
    KEEPS_NORM,
    NORMALIZATIONS,
    Code,
    Number,
    SteeringTensors,
)
from inference.engine.kernels.row_tiles import TILE_ROWS

LAYER_NORM_EPS = 1e-5  # added to the deviation, as in SAELens
ORDERED_KEYS = 64  # keys whose weights are added up before they join the others
LOWEST = -1e30  # stands for a maximum over nothing, to be subtracted safely


def decode_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    lengths: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """See :func:`inference.engine.kernels.native.decode_attention`."""
    heads, kv_heads = query.shape[1], keys.shape[2]
    out = query.new_empty(*query.shape[:2], values.shape[-1])
    for i, length in enumerate(lengths.tolist()):
        first = max(0, length - window) if window else 0
        seen_keys = _gather(keys, block_table[i], first, length)
        seen_values = _gather(values, block_table[i], first, length)
        rows = query[i].reshape(kv_heads, heads // kv_heads, -1)
        attended = (
            attend_explicitly(rows, seen_keys, seen_values, scale, softcap, _by_key_head(sinks, kv_heads))
            if softcap or sinks is not None
            else functional.scaled_dot_product_attention(rows[None], seen_keys[None], seen_values[None], scale=scale)[0]
        )
        out[i] = attended.reshape(heads, -1)
    return out


def prompt_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    starts: Tensor,
    counts: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """See :func:`inference.engine.kernels.native.prompt_attention`."""
    chunks, first = [], 0
    for table, start, count in zip(block_table, starts.tolist(), counts.tolist(), strict=True):
        offset = max(0, start - window + 1) if window else 0
        k, v = (_gather(pool, table, offset, start + count) for pool in (keys, values))
        grouped = query[first : first + count].reshape(count, k.shape[0], -1, query.shape[-1])
        rows = grouped.permute(1, 2, 0, 3)  # [kv_heads, group, n, d]
        mask = _causal(start, count, offset, window, query.device)
        own_sinks = _by_key_head(sinks, k.shape[0])
        attended = (
            attend_explicitly(rows, k.unsqueeze(1), v.unsqueeze(1), scale, softcap, _column(own_sinks), mask)
            if softcap or sinks is not None
            else functional.scaled_dot_product_attention(
                rows,
                k.unsqueeze(1).expand(-1, rows.shape[1], -1, -1),
                v.unsqueeze(1).expand(-1, rows.shape[1], -1, -1),
                attn_mask=mask,
                scale=scale,
            )
        )
        chunks.append(attended.flatten(0, 1).transpose(0, 1))
        first += count
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


def ordered_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    starts: Tensor,
    counts: Tensor,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None = None,
) -> Tensor:
    """See :func:`inference.engine.kernels.native.prompt_attention` with ``ordered``.

    Each product has the same shape: TILE_ROWS tokens of a sequence, and ORDERED_KEYS keys from a multiple of that on.
    """
    look = _Look(scale, window, softcap, _column(_by_key_head(sinks, keys.shape[2])))
    outputs, first = [], 0
    for table, start, count in zip(block_table, starts.tolist(), counts.tolist(), strict=True):
        oldest = max(0, start - window + 1) if window else 0
        seen = [_in_blocks(_gather(pool, table, oldest, start + count), oldest) for pool in (keys, values)]
        for tile in range(0, count, TILE_ROWS):
            own = query[first + tile : first + min(count, tile + TILE_ROWS)]
            outputs.append(_attend_tile(own, start + tile, seen[0], seen[1], oldest // ORDERED_KEYS, look))
        first += count
    return torch.cat(outputs)


class _Look(NamedTuple):
    """As :class:`~inference.engine.kernels.varlen_attention.AttentionParams`; ``sinks`` ``[kv_heads, group, 1, 1]``."""

    scale: float
    window: int
    softcap: float
    sinks: Tensor | None


def _in_blocks(tokens: Tensor, first: int) -> Tensor:
    """Return ``[kv_heads, n, d]`` from place ``first`` on as float32 blocks ``[blocks, kv_heads, ORDERED_KEYS, d]``.

    Zeros fill the first and the last one.
    """
    before = first % ORDERED_KEYS
    after = -(before + tokens.shape[1]) % ORDERED_KEYS
    padded = functional.pad(tokens.float(), (0, 0, before, after))
    return padded.reshape(len(padded), -1, ORDERED_KEYS, padded.shape[2]).transpose(0, 1).contiguous()


def _attend_tile(query: Tensor, start: int, keys: Tensor, values: Tensor, first_block: int, look: _Look) -> Tensor:
    """Attend ``[n, heads, d]``, the first at position ``start``, block after block with an online softmax."""
    count, heads, size = query.shape
    kv_heads, group = keys.shape[1], heads // keys.shape[1]
    padded = query.new_zeros(TILE_ROWS, heads, size, dtype=torch.float32)
    padded[:count] = query
    rows = padded.view(TILE_ROWS, kv_heads, group, size).permute(1, 2, 0, 3).flatten(1, 2).contiguous()
    shape = (kv_heads, group, TILE_ROWS, 1)
    maximum = rows.new_full(shape, -math.inf) if look.sinks is None else look.sinks.expand(shape).contiguous()
    total, mixed = (maximum > -math.inf).float(), rows.new_zeros(*shape[:3], values.shape[-1])
    positions = torch.arange(start, start + TILE_ROWS, device=query.device).unsqueeze(1)
    for block in range((start + count - 1) // ORDERED_KEYS + 1 - first_block):
        scores = torch.bmm(rows, keys[block].transpose(1, 2)).view(kv_heads, group, TILE_ROWS, ORDERED_KEYS)
        scores = scores * look.scale
        if look.softcap:
            scores = torch.tanh(scores / look.softcap) * look.softcap
        begin = (first_block + block) * ORDERED_KEYS
        places = torch.arange(begin, begin + ORDERED_KEYS, device=query.device)
        hidden = places > positions
        if look.window:
            hidden |= places <= positions - look.window
        scores = scores.masked_fill(hidden, -math.inf)
        top = torch.maximum(maximum, scores.amax(-1, keepdim=True))
        safe = top.clamp_min(LOWEST)
        weights, fade = (scores - safe).exp(), (maximum - safe).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        mixed = mixed * fade + torch.bmm(weights.flatten(1, 2), values[block]).view(mixed.shape)
        maximum = top
    out = (mixed / total).permute(2, 0, 1, 3).flatten(1, 2)
    return out[:count].to(query.dtype)


def write_kv(keys: Tensor, values: Tensor, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
    """See :func:`inference.engine.kernels.native.write_kv`."""
    slots = slot_mapping.to(keys.device)
    if keys.is_contiguous() and values.is_contiguous():
        keys.flatten(0, 1)[slots] = key  # saves two operations
        values.flatten(0, 1)[slots] = value
        return
    block, offset = slots // keys.shape[1], slots % keys.shape[1]
    keys[block, offset] = key
    values[block, offset] = value


class Replacement(NamedTuple):
    """A step ``[tokens, d]`` float32 that a token takes if an entry of its row in ``slots`` ``[m]`` changes by 1."""

    slots: Tensor
    step: Tensor


def steer(
    hidden: Tensor,
    rows: Tensor,
    tables: SteeringTensors,
    given: Tensor | None = None,
    replacements: Sequence[Replacement] = (),
) -> tuple[Tensor, Tensor]:
    """See :func:`inference.engine.kernels.native.steer`. Shapes are known in advance, so it does not synchronise with
    the device.
    """
    h = hidden.float()
    norm = h.norm(dim=-1, keepdim=True)
    steered = tables.vectors[rows].masked_fill_(norm > tables.norm_limits[rows].unsqueeze(1), 0.0)
    if len(tables.read):
        steered.add_(_entries_delta(h, norm, rows, tables, given, replacements))
    steered.add_(h)
    flags = tables.flags[rows].unsqueeze(1)
    steered_norm = steered.norm(dim=-1, keepdim=True)
    keeps = (flags & KEEPS_NORM).bool() & (steered_norm > 0)
    steered.mul_(torch.where(keeps, norm / steered_norm, 1.0))
    out = torch.where((flags & ACTS).bool(), steered.to(hidden.dtype), hidden)
    return out, _relative_change(steered.copy_(out).sub_(h), norm.squeeze(1))


def steer_each(
    hidden: Tensor,
    rows: Tensor,
    tables: SteeringTensors,
    given: Tensor | None = None,
    replacements: Sequence[Replacement] = (),
) -> tuple[Tensor, Tensor]:
    """Return :func:`steer`, computed token by token from the token's own row and its entries only."""
    out, changes = hidden.clone(), hidden.new_zeros(len(hidden), dtype=torch.float32)
    own: dict[int, tuple[SteeringTensors, Tensor]] = {}
    for place, row in enumerate(rows.tolist()):
        if not int(tables.flags[row]) & ACTS:
            continue
        if row not in own:
            own[row] = _own_table(tables, row)
        table, slots = own[row]
        token = slice(place, place + 1)
        out[token], changes[token] = steer(
            hidden[token],
            rows.new_zeros(1),
            table,
            None if given is None else given[token][:, slots],
            [_own_replacement(each, slots, token) for each in replacements],
        )
    return out, changes


def _own_table(tables: SteeringTensors, row: int) -> tuple[SteeringTensors, Tensor]:
    """Return a table with one row and its entries, and the slots that they have in the whole table."""
    slots = tables.slots[row, : int(tables.counts[row])].long()
    codes = tables.codes[slots].clone()
    place_of = {slot: place for place, slot in enumerate(slots.tolist())}
    codes[:, Code.ROW] = 0
    codes[:, Code.GATE] = torch.tensor([place_of[gate] for gate in codes[:, Code.GATE].tolist()], dtype=torch.int32)
    kinds = {NORMALIZATIONS[code] for code in codes[:, Code.NORMALIZATION].tolist()} | {"none"}
    one = slice(row, row + 1)
    table = SteeringTensors(
        flags=tables.flags[one],
        vectors=tables.vectors[one],
        norm_limits=tables.norm_limits[one],
        counts=tables.counts[one],
        slots=torch.arange(len(slots), dtype=torch.int32).unsqueeze(0),
        read=tables.read[slots],
        write=tables.write[slots],
        numbers=tables.numbers[slots],
        codes=codes,
        normalizations=tuple(kind for kind in NORMALIZATIONS if kind in kinds),
    )
    return table, slots


def _own_replacement(replacement: Replacement, slots: Tensor, token: slice) -> Replacement:
    """Return the part of a replacement that concerns one token; other rows' entries have no place in its table."""
    own = (slots.unsqueeze(1) == replacement.slots).any(1).nonzero().squeeze(1)
    return Replacement(own, replacement.step[token])


def _relative_change(delta: Tensor, norm: Tensor) -> Tensor:
    moved = delta.norm(dim=-1)
    share = torch.where(norm > 0, moved / norm, 1.0)
    return torch.where(moved == 0, 0.0, share)


def _entries_delta(
    h: Tensor,
    norm: Tensor,
    rows: Tensor,
    tables: SteeringTensors,
    given: Tensor | None,
    replacements: Sequence[Replacement],
) -> Tensor:
    """Return ``[tokens, d]``: the sum of the changes by the entries of each token's row."""
    numbers, codes = tables.numbers.unbind(1), tables.codes.unbind(1)
    views = [_view(h, kind) for kind in tables.normalizations]
    a = _activations(views, tables, given)
    change = numbers[Number.GAIN_LESS_ONE] * a + numbers[Number.OFFSET]
    change = torch.minimum(torch.maximum(change, numbers[Number.LOWER] - a), numbers[Number.UPPER] - a)
    gate = codes[Code.GATE].long()
    is_open = a[:, gate] > numbers[Number.FLOOR]
    is_open = is_open & is_open[:, gate] & (codes[Code.ROW] == rows.unsqueeze(1)) & (norm <= numbers[Number.NORM_LIMIT])
    change = torch.where(is_open, change, 0.0)
    parts = [
        (change if len(views) == 1 else change * (codes[Code.NORMALIZATION] == NORMALIZATIONS.index(kind)))
        @ tables.write
        * scale
        for kind, (_, scale) in zip(tables.normalizations, views, strict=True)
    ]
    parts += [change[:, one.slots].sum(1, keepdim=True) * one.step for one in replacements]
    return torch.stack(parts).sum(0)


def _activations(views: list[tuple[Tensor, Tensor]], tables: SteeringTensors, given: Tensor | None) -> Tensor:
    """Return the activations of all entries, ``[tokens, entries]``."""
    bias, threshold = tables.numbers[:, Number.BIAS], tables.numbers[:, Number.THRESHOLD]
    pre = functional.linear(views[0][0], tables.read, bias)
    for kind, (x, _) in zip(tables.normalizations[1:], views[1:], strict=True):
        is_kind = tables.codes[:, Code.NORMALIZATION] == NORMALIZATIONS.index(kind)
        pre = torch.where(is_kind, functional.linear(x, tables.read, bias), pre)
    a = torch.where(pre > threshold, pre, 0.0)
    return a if given is None else torch.where(tables.codes[:, Code.IS_GIVEN].bool(), given, a)


def _view(h: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return the residual as normalised by an SAE, ``[tokens, d]``, and its scale, ``[tokens, 1]``."""
    if kind == "none":
        return h, h.new_ones(1, 1)
    if kind == "constant_norm_rescale":
        scale = h.norm(dim=-1, keepdim=True) / math.sqrt(h.shape[-1])
        return h / torch.where(scale > 0, scale, 1.0), scale
    centred = h - h.mean(dim=-1, keepdim=True)
    scale = centred.std(dim=-1, keepdim=True)
    return centred / (scale + LAYER_NORM_EPS), scale


def _gather(pool: Tensor, blocks: Tensor, first: int, length: int) -> Tensor:
    """Return tokens ``first`` to ``length`` as ``[kv_heads, tokens, head_dim]``; a view if they are in one block."""
    size = pool.shape[1]
    selected = blocks[first // size : -(-length // size)]
    skipped = first - first // size * size
    tokens = pool[int(selected[0])] if len(selected) == 1 else pool[selected.to(pool.device).long()].flatten(0, 1)
    return tokens[skipped : skipped + length - first].transpose(0, 1)


def _causal(start: int, count: int, offset: int, window: int, device: torch.device) -> Tensor:
    """Return a mask ``[count, start + count - offset]``, True where a query may attend. Queries start at position
    ``start``."""
    queries = torch.arange(start, start + count, device=device).unsqueeze(1)
    seen = torch.arange(offset, start + count, device=device).unsqueeze(0)
    mask = seen <= queries
    return mask & (seen > queries - window) if window else mask


def _by_key_head(sinks: Tensor | None, kv_heads: int) -> Tensor | None:
    """Reshape ``[heads]`` to ``[kv_heads, group, 1]``."""
    return None if sinks is None else sinks.view(kv_heads, -1, 1)


def _column(sinks: Tensor | None) -> Tensor | None:
    return None if sinks is None else sinks.unsqueeze(-1)


def attend_explicitly(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    scale: float,
    softcap: float,
    sinks: Tensor | None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute attention that torch does not support, in float32: Gemma 2's ``cap * tanh(scores / cap)``, and sinks.

    A sink is a score, the same for all queries of a head, that takes part in the softmax without a value. ``sinks``
    broadcast to a column of the scores.
    """
    scores = query.float() @ keys.float().transpose(-1, -2) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks.float().expand(*scores.shape[:-1], 1)), -1)
    weights = scores.softmax(-1)
    if sinks is not None:
        weights = weights[..., :-1]
    return (weights @ values.float()).to(query.dtype)
