"""Attention of packed sequences over the cache, registered with transformers under the name ``millm``.

Every architecture of transformers that uses its ``AttentionInterface`` calls :func:`packed_attention` with the
queries, keys and values of all tokens of a step. :class:`PackedBatch`, passed as a keyword argument of the forward,
maps tokens to sequences. Single tokens come first in a step, then chunks of prompts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from inference.engine.cache.layout import LayerLayout
from inference.engine.cache.pool import KVPool
from inference.engine.kernels import native
from inference.engine.kernels.attention_calls import AttentionParams
from inference.engine.kernels.varlen_attention import VarlenStep

NAME = "millm"


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """``num_tokens`` consecutive tokens of one sequence in a step, the first at position ``start``."""

    start: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.start + self.num_tokens


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """The places of a step's tokens in the blocks of one layer group."""

    slot_mapping: Tensor  # [tokens] int64: block * block_size + offset
    block_table: Tensor  # [segments, blocks] int32


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """The segments of a step in the order of their tokens. The first ``num_single`` have one token each.

    Several single tokens may belong to one sequence, because all keys of a step are written before any is read.
    """

    segments: tuple[TokenSpan, ...]
    num_single: int
    lengths: Tensor  # [num_single] int32: tokens that a single token attends to, including itself
    starts: Tensor  # int32, of the other segments: the position of each one's first token
    counts: Tensor  # int32, of the other segments: how many tokens each has
    places: tuple[GroupPlaces, ...]  # by layer group
    pool: KVPool
    varlen: VarlenStep | None = None  # on an accelerator: replaces the attention of this class
    batch_invariant: bool = False  # on the CPU: the bits of a token's results depend on its own sequence only
    outputs: Tensor | None = None  # [needed] int64: the places whose output of the last layer is used; None: all


def single_tokens(batch: PackedBatch, places: Tensor) -> PackedBatch:
    """Return the tokens at ``places`` ``[n]`` of a step as a batch of single tokens, whose keys and values are written
    already.
    """
    starts, counts = torch.tensor([(each.start, each.num_tokens) for each in batch.segments]).unbind(1)
    ends = counts.cumsum(0)
    owners = torch.searchsorted(ends, places, right=True)
    positions = starts[owners] + places - (ends - counts)[owners]
    nothing = torch.empty(0, dtype=torch.int32)
    return PackedBatch(
        segments=tuple(TokenSpan(position, 1) for position in positions.tolist()),
        num_single=len(places),
        lengths=(positions + 1).int(),
        starts=nothing,
        counts=nothing,
        places=tuple(GroupPlaces(of.slot_mapping[places], of.block_table[owners]) for of in batch.places),
        pool=batch.pool,
        batch_invariant=batch.batch_invariant,
    )


class LayoutProbe:
    """A replacement for a batch that records each layer's shapes instead of attending."""

    def __init__(self) -> None:
        self.layouts: dict[int, LayerLayout] = {}


class WholeText:
    """A replacement for a batch: the step is one text from its start, without a cache, by differentiable operations."""


Batch = PackedBatch | LayoutProbe | WholeText


class _UnderWay(threading.local):
    batch: Batch | None = None


_under_way = _UnderWay()


def keep_batch(_: torch.nn.Module, __: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Set the batch for a module whose layers drop unknown keyword arguments. A forward pre-hook."""
    _under_way.batch = kwargs.get("packed_batch")


def drop_batch(*_: Any) -> None:
    """Drop the reference to the batch and so to the cache's memory. A forward hook."""
    _under_way.batch = None


@contextmanager
def whole_text() -> Iterator[WholeText]:
    """Let layers that are called one by one in the block attend to one whole text."""
    _under_way.batch = text = WholeText()
    try:
        yield text
    finally:
        _under_way.batch = None


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, heads, tokens, head_dim]
    key: Tensor,  # [1, kv_heads, tokens, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_batch: Batch | None = None,
    **constants: Any,
) -> tuple[Tensor, None]:
    """Compute attention with transformers' signature. Returns ``[1, tokens, heads, head_dim]`` and no weights.

    ``packed_batch`` None: use that of the current forward pass, for layers that do not pass it on. ``constants``: those
    of :func:`params_of`; others are ignored.
    """
    assert attention_mask is None, "packed sequences have no mask"
    packed_batch = batch_of(packed_batch)
    assert packed_batch is not None, "the forward pass has a packed batch"
    look = params_of(query.shape[-1], **constants)
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    if isinstance(packed_batch, LayoutProbe):
        packed_batch.layouts[layer] = LayerLayout(key.shape[1], key.shape[3], value.shape[3], key.dtype, look.window)
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None
    if isinstance(packed_batch, WholeText):
        return _attend_whole(query[0], key[0], value[0], look).unsqueeze(0), None
    return _attend_all(layer, query[0], key[0], value[0], packed_batch, look).unsqueeze(0), None


def batch_of(packed_batch: Batch | None) -> Batch | None:
    """Return the batch that a layer passes on, or else that of the current forward pass."""
    return packed_batch or _under_way.batch


def params_of(
    head_dim: int,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> AttentionParams:
    """Return the parameters of transformers' keyword arguments. ``s_aux``: attention sinks, one score per head."""
    scale = head_dim**-0.5 if scaling is None else scaling
    return AttentionParams(scale, sliding_window or 0, softcap or 0.0, None if s_aux is None else s_aux.float())


def _attend_whole(query: Tensor, key: Tensor, value: Tensor, look: AttentionParams) -> Tensor:
    """Attend in float32: ``[heads, tokens, d]`` -> ``[tokens, heads, d]``."""
    group, num_tokens = query.shape[0] // key.shape[0], query.shape[1]
    key, value = (x.float().repeat_interleave(group, 0) for x in (key, value))
    scores = query.float() @ key.transpose(1, 2) * look.scale
    if look.softcap:
        scores = look.softcap * torch.tanh(scores / look.softcap)
    places = torch.arange(num_tokens, device=query.device)
    distance = places.unsqueeze(1) - places
    hidden = (distance < 0) | (distance >= (look.window or num_tokens))
    scores = scores.masked_fill(hidden, float("-inf"))
    if look.sinks is not None:
        scores = torch.cat([scores, look.sinks.view(-1, 1, 1).expand(-1, num_tokens, 1)], dim=-1)
    weights = scores.softmax(-1)[..., :num_tokens]
    return (weights @ value).to(query.dtype).transpose(0, 1)


def _attend_all(
    layer: int, query: Tensor, key: Tensor, value: Tensor, batch: PackedBatch, look: AttentionParams
) -> Tensor:
    """Write the step's keys and values, then attend: ``[heads, tokens, d]`` -> ``[tokens, heads, d]``."""
    keys, values = batch.pool.keys[layer], batch.pool.values[layer]
    group = batch.pool.group_of_layer[layer]
    places = batch.places[group]
    native.write_kv(keys, values, key.transpose(0, 1), value.transpose(0, 1), places.slot_mapping)
    if batch.varlen is not None:
        return batch.varlen.attend(query.transpose(0, 1), keys, values, group, look)
    single, packed, how = batch.num_single, query.transpose(0, 1), (look.scale, look.window, look.softcap, look.sinks)
    outputs, ordered = [], batch.batch_invariant
    if single:
        table = places.block_table[:single]
        lengths = batch.lengths
        outputs.append(native.decode_attention(packed[:single], keys, values, table, lengths, *how, ordered=ordered))
    if single < len(batch.segments):
        table = places.block_table[single:]
        starts, counts = batch.starts, batch.counts
        outputs.append(
            native.prompt_attention(packed[single:], keys, values, table, starts, counts, *how, ordered=ordered)
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


AttentionInterface.register(NAME, packed_attention)
