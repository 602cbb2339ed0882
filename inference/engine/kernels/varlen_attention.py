"""Attention of a whole step on an accelerator: our Triton kernel, torch's flash kernel, or plain torch.

The Triton kernel reads every cache, and supports softcaps and sinks. The flash kernel reads a paged cache through a
block table (torch 2.12 and newer; older versions need copies), and a contiguous one at the start of each sequence. It
is called below ``torch.nn.attention.varlen``, whose wrapper launches another kernel per layer and prevents a decode
step from processing the queries of a key head together. Kernels are tested on the device against the plain path, which
replaces them if they differ. None synchronises with the host.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from inference.engine.cache.layout import LayerLayout
from inference.engine.kernels import gpu
from inference.engine.kernels.attention_calls import AttentionCall, AttentionParams, Places
from inference.engine.kernels.native.fallback import attend_explicitly

logger = logging.getLogger(__name__)

PAGE_TOKENS = 256  # flash attention 2, which torch includes, requires pages of multiples of this
FLASH_DTYPES = (torch.bfloat16, torch.float16)
TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 4e-3, torch.float32: 1e-4}  # of the largest value


Kernel = Callable[[Tensor, Places, AttentionCall, AttentionParams], Tensor]


@dataclass(frozen=True, slots=True)
class VarlenAttention:
    """The chosen attention. ``kernel`` None: plain torch, for the ``reason``. ``str()`` is for the log.

    Only a kernel that ``is_complete`` supports softcaps, sinks, and all dtypes and head sizes; it does not depend on
    the bound of the number of keys.
    """

    kernel: Kernel | None
    reason: str
    is_complete: bool = False

    def __str__(self) -> str:
        return f"{'Triton' if self.is_complete else 'flash' if self.kernel else 'torch'}: {self.reason}"

    def attend(self, query: Tensor, places: Places, parts: Sequence[AttentionCall], look: AttentionParams) -> Tensor:
        """Attend, after keys and values are written: ``[tokens, heads, head_dim]`` -> ``[tokens, heads, d]``."""
        outputs = [self._attend(query[part.tokens], _of_part(places, part), part, look) for part in parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _attend(self, query: Tensor, places: Places, part: AttentionCall, look: AttentionParams) -> Tensor:
        is_special = bool(look.softcap) or look.sinks is not None
        if self.kernel is None or (is_special and not self.is_complete):
            return torch_attention(query, places, part, look)
        return self.kernel(query, places, part, look)


@dataclass(frozen=True, slots=True)
class VarlenStep:
    """Attention of a step. ``tables`` and ``starts`` of :class:`Places`, by layer group."""

    attention: VarlenAttention
    parts: tuple[AttentionCall, ...]
    tables: tuple[Tensor, ...]
    starts: tuple[Tensor | None, ...]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, group: int, look: AttentionParams) -> Tensor:
        """Attend ``[tokens, heads, head_dim]`` over a layer's cache -> ``[tokens, heads, d]``."""
        places = Places(keys, values, self.tables[group], self.starts[group])
        return self.attention.attend(query, places, self.parts, look)


def _of_part(places: Places, part: AttentionCall) -> Places:
    chosen = part.segments
    starts = None if places.starts is None else places.starts[chosen.start : chosen.stop + 1]
    return Places(places.keys, places.values, places.table[chosen], starts)


# The flash kernel


def flash_attention(query: Tensor, places: Places, part: AttentionCall, look: AttentionParams) -> Tensor:
    """Compute causal attention, aligned at the last query.

    With ``seqused_k`` the kernel uses ``cum_seq_k`` only for the start of each sequence, and ignores it with a block
    table.
    """
    keys, values, starts = places.keys, places.values, places.starts
    options: dict[str, Tensor | int] = {}
    if starts is None:
        starts, options["block_table"] = part.ends, places.table
    else:
        keys, values = keys.flatten(0, 1), values.flatten(0, 1)
    if look.window:
        options |= {"window_size_left": look.window - 1, "window_size_right": 0}
    out: Tensor = torch.ops.aten._flash_attention_forward.default(
        query,
        keys,
        values,
        part.ends,
        starts,
        part.max_queries,
        part.max_keys,
        dropout_p=0.0,
        is_causal=not look.window,  # a window implies it
        return_debug_mask=False,
        scale=look.scale,
        seqused_k=part.lengths,
        **options,
    )[0]
    return out


def flash_attention_of_copies(query: Tensor, places: Places, part: AttentionCall, look: AttentionParams) -> Tensor:
    """Attend over a paged cache whose pages the kernel does not support, on copies of keys and values."""
    keys, values = (_tokens(pool, places.table, part.max_keys).flatten(0, 1) for pool in (places.keys, places.values))
    starts = torch.arange(len(places.table) + 1, dtype=torch.int32, device=query.device) * part.max_keys
    return flash_attention(query, Places(keys.unsqueeze(0), values.unsqueeze(0), places.table, starts), part, look)


# Plain torch


def torch_attention(query: Tensor, places: Places, part: AttentionCall, look: AttentionParams) -> Tensor:
    """Attend in any dtype, with softcapping and sinks, on copies of keys and values. Does not synchronise with the
    host.
    """
    if part.max_queries == 1:
        return _gathered(query.unsqueeze(1), places, part.lengths, part.max_keys, look).squeeze(1)
    outputs, first = [], 0
    for i, count in enumerate(part.num_queries):
        mine = Places(places.keys, places.values, places.table[i : i + 1])
        queries = query[first : first + count].unsqueeze(0)
        outputs.append(_gathered(queries, mine, part.lengths[i : i + 1], part.max_keys, look).squeeze(0))
        first += count
    return torch.cat(outputs)


def _gathered(query: Tensor, places: Places, lengths: Tensor, max_keys: int, look: AttentionParams) -> Tensor:
    """Attend ``[n, q, heads, d]``, with the last query of each at position ``lengths - 1``."""
    n, num_queries, heads, _ = query.shape
    key_positions = torch.arange(max_keys, device=query.device)
    query_positions = lengths.unsqueeze(1) - num_queries + torch.arange(num_queries, device=query.device)
    mask = key_positions <= query_positions.unsqueeze(2)  # [n, q, keys]
    if look.window:
        mask &= key_positions > query_positions.unsqueeze(2) - look.window
    # Masked places may contain NaN of other sequences, and 0 * NaN is NaN.
    is_seen = mask.any(1)[:, :, None, None]
    keys, values = (torch.where(is_seen, _tokens(p, places.table, max_keys), 0) for p in (places.keys, places.values))
    kv_heads = keys.shape[2]
    grouped = query.view(n, num_queries, kv_heads, heads // kv_heads, -1).permute(0, 2, 3, 1, 4)
    rows = grouped.reshape(n, kv_heads, -1, query.shape[3])  # [n, kv_heads, group * q, d]
    seen = mask.repeat(1, heads // kv_heads, 1).unsqueeze(1)
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    if look.softcap or look.sinks is not None:
        sinks = None if look.sinks is None else look.sinks.view(kv_heads, -1).repeat_interleave(num_queries, 1)
        column = None if sinks is None else sinks.unsqueeze(-1)
        out = attend_explicitly(rows, keys, values, look.scale, look.softcap, column, seen)
    else:
        out = functional.scaled_dot_product_attention(rows, keys, values, attn_mask=seen, scale=look.scale)
    split = out.view(n, kv_heads, heads // kv_heads, num_queries, -1).permute(0, 3, 1, 2, 4)
    return split.reshape(n, num_queries, heads, -1)


def _tokens(pool: Tensor, table: Tensor, max_keys: int) -> Tensor:
    """Return the first ``max_keys`` tokens of each row of the table: ``[n, max_keys, kv_heads, d]``."""
    size = pool.shape[1]
    blocks = table[:, : -(-max_keys // size)].long()
    return pool[:, : min(size, max_keys)][blocks].flatten(1, 2)[:, :max_keys]


# The choice

WAYS_TO_PAGES = {"a paged cache": flash_attention, "copies of a paged cache": flash_attention_of_copies}
WAYS_TO_ROWS = {"a contiguous cache": flash_attention}


def choose_attention(
    layouts: Sequence[LayerLayout],
    num_heads: int,
    device: torch.device,
    *,
    page: int,
    ways: Mapping[str, Kernel] | None = None,
) -> VarlenAttention:
    """Return the first implementation that agrees with plain torch on every kind of layer of the model.

    ``page``: tokens per page; 0 for a cache with one block per sequence. ``ways``: the kernels to try.
    """
    problem = "no kernel"
    if ways is None and gpu.can_run(device):
        problem = _first_problem(layouts, num_heads, device, _triton_attention, page)
        if not problem:
            return VarlenAttention(_triton_attention, "a cache of pages or rows", is_complete=True)
        logger.warning("The Triton kernel for attention cannot be used: %s", problem)
    for name, kernel in (ways or (WAYS_TO_PAGES if page else WAYS_TO_ROWS)).items():
        problem = _first_problem(layouts, num_heads, device, kernel, page)
        if not problem:
            return VarlenAttention(kernel, name)
        logger.info("The flash kernel on %s cannot be used: %s", name, problem)
    return VarlenAttention(None, problem)


def _triton_attention(query: Tensor, places: Places, part: AttentionCall, look: AttentionParams) -> Tensor:
    from inference.engine.kernels.gpu.attention import paged_attention  # requires Triton

    return paged_attention(query, places, part, look)


def best_page(layouts: Sequence[LayerLayout], num_heads: int, device: torch.device, smallest: int) -> int:
    """Return the tokens per page of a paged cache that a kernel reads without copies; 0 if there is none.

    ``smallest``: the size for a kernel that reads all sizes.
    """
    if gpu.can_run(device) and not _first_problem(layouts, num_heads, device, _triton_attention, smallest):
        return smallest
    return 0 if _first_problem(layouts, num_heads, device, flash_attention, PAGE_TOKENS) else PAGE_TOKENS


def _first_problem(
    layouts: Sequence[LayerLayout], num_heads: int, device: torch.device, kernel: Kernel, page: int
) -> str:
    return next((p for each in dict.fromkeys(layouts) if (p := _problem(each, num_heads, device, kernel, page))), "")


def _problem(layout: LayerLayout, num_heads: int, device: torch.device, kernel: Kernel, page: int) -> str:
    """Return why the kernel does not support such a layer; empty if it does."""
    is_flash = kernel is not _triton_attention
    if layout.dtype not in TOLERANCES or (is_flash and layout.dtype not in FLASH_DTYPES):
        return f"it does not support {str(layout.dtype).removeprefix('torch.')}"
    if is_flash and layout.key_dim != layout.value_dim:
        return "keys and values have different sizes"
    look = AttentionParams(layout.key_dim**-0.5, layout.window)
    try:
        for num_queries in ((1, 1, 1), (5, 70, 1)):
            query, places, part = _trial(layout, num_heads, num_queries, device, page)
            got = kernel(query, places, part, look).float()
            expected = torch_attention(query, places, part, look).float()
            worst = float((got - expected).abs().max())
            if not worst <= TOLERANCES[layout.dtype] * float(expected.abs().max()):
                return f"it differs from torch's attention by {worst:.2g}"
    except Exception as error:  # noqa: BLE001 - a kernel that is compiled here can fail in many ways
        return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def _trial(
    layout: LayerLayout, num_heads: int, num_queries: tuple[int, ...], device: torch.device, page: int
) -> tuple[Tensor, Places, AttentionCall]:
    """Return random sequences of up to 670 tokens, scattered in a small cache."""
    generator = torch.Generator().manual_seed(0)
    lengths = [q + seen for q, seen in zip(num_queries, (0, 300, 600), strict=True)]
    size = page or PAGE_TOKENS * -(-max(lengths) // PAGE_TOKENS)
    blocks = len(lengths) * -(-max(lengths) // size)
    table = torch.randperm(blocks, generator=generator).view(len(lengths), -1).int()

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, layout.dtype)

    keys, values = (random(blocks, size, layout.num_kv_heads, dim) for dim in (layout.key_dim, layout.value_dim))
    part = AttentionCall(
        slice(0, sum(num_queries)),
        slice(0, len(lengths)),
        torch.tensor([0, *num_queries]).cumsum(0).int().to(device),
        torch.tensor(lengths, dtype=torch.int32, device=device),
        num_queries,
        max(lengths),
    )
    starts = None if page else functional.pad(table[:, 0] * size, (0, 1)).to(device)
    return random(sum(num_queries), num_heads, layout.key_dim), Places(keys, values, table.to(device), starts), part
