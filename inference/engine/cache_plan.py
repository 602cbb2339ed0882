"""Which cache a model gets: its policy and its tensors, sized for the machine."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from inference.engine.attention import LayoutProbe
from inference.engine.cache_policy import PREFIX_BLOCK, CachePolicy
from inference.engine.config import EngineConfig
from inference.engine.contiguous_cache import ContiguousCache
from inference.engine.device_memory import device_memory
from inference.engine.kv_layout import LayerGroup, LayerLayout, group_layers
from inference.engine.kv_pool import KVPool
from inference.engine.loader import LoadedModel
from inference.engine.paged_cache import PagedCache

FREE_SHARE = 0.5  # of the free memory, when no size is set


@dataclass(frozen=True, slots=True)
class ModelCache:
    """``policy`` keeps the books, ``pool`` the tensors."""

    policy: CachePolicy
    pool: KVPool
    num_bytes: int


def make_cache(loaded: LoadedModel, config: EngineConfig, max_seq_len: int) -> ModelCache:
    """A cache for the model; MemoryError when not even one block fits."""
    device = torch.device(loaded.device)
    layouts = probe_layouts(loaded)
    groups = group_layers(layouts)
    backend = config.kv_cache_backend
    if backend == "auto":
        backend = "contiguous" if device.type == "cpu" else "paged"
    most = _most_bytes(groups, config, max_seq_len)
    num_bytes = min(most, config.kv_cache_bytes or int(device_memory(device).free * FREE_SHARE))
    per_token = sum(group.bytes_per_token for group in groups)
    if num_bytes < 2 * PREFIX_BLOCK * per_token:
        raise MemoryError(f"{num_bytes} bytes are too few for keys and values of {per_token} bytes a token.")
    make = _contiguous if backend == "contiguous" else _paged
    return make(layouts, groups, config, max_seq_len, num_bytes, device)


@torch.inference_mode()
def probe_layouts(loaded: LoadedModel) -> list[LayerLayout]:
    """The layers' shapes, read off a forward pass of one token."""
    probe = LayoutProbe()
    token = torch.zeros(1, 1, dtype=torch.long, device=loaded.device)
    loaded.module(input_ids=token, position_ids=token, use_cache=False, packed_batch=probe)
    return [probe.layouts[layer] for layer in sorted(probe.layouts)]


def _most_bytes(groups: tuple[LayerGroup, ...], config: EngineConfig, max_seq_len: int) -> int:
    """What a full batch of the longest sequences takes; paged blocks round up, and windows overlap with a chunk."""
    length = max_seq_len + PREFIX_BLOCK
    return config.max_batch_size * sum(group.bytes_per_token * length for group in groups)


def _contiguous(
    layouts: list[LayerLayout],
    groups: tuple[LayerGroup, ...],
    config: EngineConfig,
    max_seq_len: int,
    num_bytes: int,
    device: torch.device,
) -> ModelCache:
    rows = config.max_batch_size
    if device.type != "cpu":  # a GPU has no memory that is taken on first use
        rows = max(1, min(rows, num_bytes // (max_seq_len * sum(group.bytes_per_token for group in groups))))
    policy = ContiguousCache(
        rows,
        max_seq_len,
        tuple(group.window for group in groups),
        tuple(group.bytes_per_token for group in groups),
        num_bytes,
        prefixes=config.prefix_cache,
    )
    pool = KVPool(layouts, groups, [rows] * len(groups), max_seq_len, device)
    return ModelCache(policy, pool, num_bytes)


def _paged(
    layouts: list[LayerLayout],
    groups: tuple[LayerGroup, ...],
    config: EngineConfig,
    max_seq_len: int,
    num_bytes: int,
    device: torch.device,
) -> ModelCache:
    """Groups get blocks in proportion to what a sequence keeps in them."""
    kept = [min(max_seq_len, g.window + config.max_prefill_tokens) if g.window else max_seq_len for g in groups]
    total = sum(group.bytes_per_token * tokens for group, tokens in zip(groups, kept, strict=True))
    share = min(1.0, num_bytes / (total * config.max_batch_size))
    num_blocks = tuple(max(2, int(share * config.max_batch_size * tokens) // PREFIX_BLOCK + 1) for tokens in kept)
    policy = PagedCache(
        config.max_batch_size,
        max_seq_len,
        tuple(group.window for group in groups),
        num_blocks,
        prefixes=config.prefix_cache,
    )
    pool = KVPool(layouts, groups, num_blocks, PREFIX_BLOCK, device)
    return ModelCache(policy, pool, num_bytes)
