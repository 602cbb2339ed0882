"""Attention of packed sequences over the cache, registered with transformers under the name ``millm``.

Every architecture of transformers that uses its ``AttentionInterface`` calls :func:`packed_attention` with the
queries, keys and values of all tokens of a step; :class:`PackedBatch`, handed through the forward's keyword
arguments, says which token belongs to which sequence. Single tokens come first in a step, then chunks of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from inference.engine import native
from inference.engine.kv_layout import LayerLayout
from inference.engine.kv_pool import KVPool
from inference.engine.varlen_attention import Look, VarlenStep

NAME = "millm"


@dataclass(frozen=True, slots=True)
class Segment:
    """``num_tokens`` consecutive tokens of one sequence in a step, the first at position ``start``."""

    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """Where the step's tokens are in the blocks of one layer group."""

    slot_mapping: Tensor  # [tokens] int64: block * block_size + offset
    block_table: Tensor  # [segments, blocks] int32


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The segments of a step in the order of their tokens; the first ``num_single`` have one token each."""

    segments: tuple[Segment, ...]
    num_single: int
    lengths: Tensor  # [num_single] int32: tokens that a single one may see, itself included
    places: tuple[GroupPlaces, ...]  # by layer group
    pool: KVPool
    varlen: VarlenStep | None = None  # on an accelerator: attends in the place of what is here


class LayoutProbe:
    """In a batch's place: notes each layer's shapes instead of attending."""

    def __init__(self) -> None:
        self.layouts: dict[int, LayerLayout] = {}


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, tokens, head_dim]
    key: Tensor,  # [1, kv_heads, tokens, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_batch: PackedBatch | LayoutProbe,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature; returns ``[1, tokens, heads, head_dim]`` and no weights."""
    assert attention_mask is None, "packed sequences carry no mask"
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if isinstance(packed_batch, LayoutProbe):
        packed_batch.layouts[layer] = LayerLayout(
            key.shape[1], key.shape[3], value.shape[3], key.dtype, sliding_window or 0
        )
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    look = Look(scale, sliding_window or 0, softcap or 0.0)
    return _attend_all(layer, query[0], key[0], value[0], packed_batch, look).unsqueeze(0), None


def _attend_all(layer: int, query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, look: Look) -> Tensor:
    """Write the step's keys and values, then attend: ``[heads, tokens, d]`` -> ``[tokens, heads, d]``."""
    keys, values = batch.pool.keys[layer], batch.pool.values[layer]
    group = batch.pool.group_of_layer[layer]
    places = batch.places[group]
    native.write_kv(keys, values, key.transpose(0, 1), value.transpose(0, 1), places.slot_mapping)
    if batch.varlen is not None:
        return batch.varlen.attend(query.transpose(0, 1), keys, values, group, look)
    outputs = []
    if single := batch.num_single:
        rows = query[:, :single].transpose(0, 1)
        outputs.append(
            native.decode_attention(
                rows, keys, values, places.block_table[:single], batch.lengths, look.scale, look.window, look.softcap
            )
        )
    first = single
    for i, segment in enumerate(batch.segments[single:], single):
        tokens = slice(first, first + segment.num_tokens)
        outputs.append(_attend(query[:, tokens], keys, values, places.block_table[i], segment, look))
        first = tokens.stop
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, segment: Segment, look: Look) -> Tensor:
    """Causal attention of one prompt's chunk: ``[heads, n, d]`` over its blocks -> ``[n, heads, d]``."""
    heads, num_queries, head_dim = query.shape
    offset = max(0, segment.start - look.window + 1) if look.window else 0
    k, v = (_gather(pool, table, offset, segment.end) for pool in (keys, values))
    group = heads // k.shape[0]
    mask = _mask(segment, offset, look.window, query.device)
    if look.softcap:
        grouped = query.view(k.shape[0], group, num_queries, head_dim)
        out = _softcapped(grouped, k.unsqueeze(1), v.unsqueeze(1), look, mask)
    else:
        out = functional.scaled_dot_product_attention(
            query.view(k.shape[0], group, num_queries, head_dim),
            k.unsqueeze(1).expand(-1, group, -1, -1),
            v.unsqueeze(1).expand(-1, group, -1, -1),
            attn_mask=mask,
            scale=look.scale,
        )
    return out.reshape(heads, num_queries, -1).transpose(0, 1)


def _gather(pool: Tensor, table: Tensor, start: int, end: int) -> Tensor:
    """Tokens ``start .. end`` of a sequence: ``[kv_heads, end - start, d]``; a view where they lie in one block."""
    size = pool.shape[1]
    first, last = start // size, -(-end // size)
    if last - first == 1:
        return pool[int(table[first]), start - first * size : end - first * size].transpose(0, 1)
    blocks = pool[table[first:last].long()]  # [blocks, block_size, kv_heads, d]
    return blocks.flatten(0, 1)[start - first * size : end - first * size].transpose(0, 1)


def _mask(segment: Segment, offset: int, window: int, device: torch.device) -> Tensor:
    """``[n, end - offset]``, True where a query may look."""
    query_positions = torch.arange(segment.start, segment.end, device=device).unsqueeze(1)
    key_positions = torch.arange(offset, segment.end, device=device).unsqueeze(0)
    mask = key_positions <= query_positions
    return mask & (key_positions > query_positions - window) if window else mask


def _softcapped(query: Tensor, keys: Tensor, values: Tensor, look: Look, mask: Tensor) -> Tensor:
    """Attention with Gemma 2's ``cap * tanh(scores / cap)``, softmax in float32."""
    scores = torch.tanh(query @ keys.transpose(-1, -2) * look.scale / look.softcap) * look.softcap
    scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


AttentionInterface.register(NAME, packed_attention)
