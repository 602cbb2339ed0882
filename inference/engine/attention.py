"""Attention of packed sequences over the cache, registered with transformers under the name ``millm``.

Every architecture of transformers that uses its ``AttentionInterface`` calls :func:`packed_attention` with the
queries, keys and values of all tokens of a step; :class:`PackedBatch`, handed through the forward's keyword
arguments, says which token belongs to which sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from inference.engine.kv_cache import ContiguousCache

NAME = "millm"


@dataclass(frozen=True, slots=True)
class Segment:
    """``num_tokens`` consecutive tokens of one sequence in a step, the first at position ``start``."""

    slot: int
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The segments of a step in the order of their tokens, and the cache that they live in."""

    segments: tuple[Segment, ...]
    cache: ContiguousCache


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, tokens, head_dim]
    key: Tensor,  # [1, kv_heads, tokens, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_batch: PackedBatch,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature; returns ``[1, tokens, heads, head_dim]`` and no weights."""
    assert attention_mask is None, "packed sequences carry no mask"
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    outputs, first = [], 0
    for segment in packed_batch.segments:
        tokens = slice(first, first + segment.num_tokens)
        keys, values = packed_batch.cache.write(
            layer, segment.slot, segment.start, key[0, :, tokens], value[0, :, tokens]
        )
        outputs.append(_attend(query[0, :, tokens], keys, values, segment.start, scale, sliding_window, softcap))
        first = tokens.stop
    return torch.cat(outputs).unsqueeze(0), None


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, start: int, scale: float, window: int | None, softcap: float | None
) -> Tensor:
    """Causal attention of one sequence: ``[heads, n, d]`` over ``[kv_heads, length, d]`` -> ``[n, heads, d]``."""
    heads, num_queries, head_dim = query.shape
    kv_heads, length = keys.shape[0], keys.shape[1]
    offset = 0 if window is None else max(0, start - window + 1)
    keys, values = keys[:, offset:], values[:, offset:]
    mask = _mask(num_queries, start, length, offset, window, query.device)
    if softcap is not None:
        grouped = query.view(kv_heads, -1, num_queries, head_dim)
        out = _softcapped(grouped, keys.unsqueeze(1), values.unsqueeze(1), scale, softcap, mask)
    elif num_queries == 1 and mask is None:
        # The query heads of a group become query rows: keys and values are read once, not once a head.
        rows = query.view(1, kv_heads, heads // kv_heads, head_dim)
        out = functional.scaled_dot_product_attention(rows, keys[None], values[None], scale=scale)
    else:
        grouped = query.view(kv_heads, heads // kv_heads, num_queries, head_dim)
        group = grouped.shape[1]
        out = functional.scaled_dot_product_attention(
            grouped,
            keys.unsqueeze(1).expand(-1, group, -1, -1),
            values.unsqueeze(1).expand(-1, group, -1, -1),
            attn_mask=mask,
            scale=scale,
        )
    return out.reshape(heads, num_queries, -1).transpose(0, 1)


def _mask(
    num_queries: int, start: int, length: int, offset: int, window: int | None, device: torch.device
) -> Tensor | None:
    """``[n, length - offset]``, True where a query may look; None where all may."""
    if num_queries == 1:
        return None
    query_positions = torch.arange(start, start + num_queries, device=device).unsqueeze(1)
    key_positions = torch.arange(offset, length, device=device).unsqueeze(0)
    mask = key_positions <= query_positions
    return mask if window is None else mask & (key_positions > query_positions - window)


def _softcapped(query: Tensor, keys: Tensor, values: Tensor, scale: float, cap: float, mask: Tensor | None) -> Tensor:
    """Attention with Gemma 2's ``cap * tanh(scores / cap)``, softmax in float32."""
    scores = torch.tanh(query @ keys.transpose(-1, -2) * scale / cap) * cap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


AttentionInterface.register(NAME, packed_attention)
