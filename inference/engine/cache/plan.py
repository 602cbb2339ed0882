"""Choose and size the cache of a model: its policy and its tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from inference.engine.cache.contiguous import ContiguousCache
from inference.engine.cache.device_memory import device_memory
from inference.engine.cache.layout import LayerGroup, LayerLayout, group_layers, num_heads
from inference.engine.cache.memory_ahead import MemoryAhead
from inference.engine.cache.paged import PagedCache, window_blocks
from inference.engine.cache.policy import CachePolicy
from inference.engine.cache.pool import KVPool
from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.config import EngineConfig
from inference.engine.errors import LoadError
from inference.engine.kernels import native
from inference.engine.kernels.varlen_attention import best_page
from inference.engine.models.loader import LoadedModel
from inference.engine.models.self_check import probe_layouts

FREE_SHARE = 0.5  # of the free memory, if no size is configured


@dataclass(frozen=True, slots=True)
class ModelCache:
    """The cache of a model: ``num_tokens`` tokens in ``num_bytes`` of memory."""

    policy: CachePolicy
    pool: KVPool
    backend: Literal["contiguous", "paged"]
    num_bytes: int
    num_tokens: int
    ahead: MemoryAhead | None = None  # only if the memory is allocated when it is used


@dataclass(frozen=True, slots=True)
class _Measures:
    """The inputs for sizing a cache: layer groups, and ``num_bytes`` of memory on the device."""

    layouts: list[LayerLayout]
    groups: tuple[LayerGroup, ...]
    max_seq_len: int
    num_bytes: int
    device: torch.device

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(group.window for group in self.groups)

    @property
    def num_tokens(self) -> int:
        """The number of tokens that fit if all layers keep all tokens."""
        return self.num_bytes // sum(group.bytes_per_token for group in self.groups)

    def pool(self, num_blocks: Sequence[int], block_size: int, *, has_spare: bool = False) -> KVPool:
        return KVPool(self.layouts, self.groups, num_blocks, block_size, self.device, has_spare=has_spare)


def make_cache(loaded: LoadedModel, config: EngineConfig, max_seq_len: int) -> ModelCache:
    """Return a cache for the model. Raise LoadError if the memory is too small for a single sequence."""
    device = torch.device(loaded.device)
    layouts = probe_layouts(loaded.module)
    groups = group_layers(layouts)
    per_token = sum(group.bytes_per_token for group in groups)
    # A full batch of the longest sequences; paged blocks round up, and windows overlap with a chunk.
    most = config.max_batch_size * per_token * (max_seq_len + PREFIX_BLOCK)
    num_bytes = min(most, config.kv_cache_bytes or int(device_memory(device).free * FREE_SHARE))
    if num_bytes < 2 * PREFIX_BLOCK * per_token:
        raise _too_small(loaded.name, num_bytes, 2 * PREFIX_BLOCK * per_token)
    measures = _Measures(layouts, groups, max_seq_len, num_bytes, device)
    page = best_page(layouts, num_heads(loaded.module), device, PREFIX_BLOCK) if _may_read_pages(device, config) else 0
    if _backend(measures, config, reads_pages=bool(page)) == "contiguous":
        return _contiguous(measures, config)
    page = page or PREFIX_BLOCK
    least = _least_bytes(measures, config, page)
    if num_bytes < min(least, most):
        raise _too_small(loaded.name, num_bytes, least)
    return _paged(measures, config, page)


def _too_small(name: str, num_bytes: int, least: int) -> LoadError:
    return LoadError(
        f"{name} needs at least {least} bytes for the KV cache of one sequence, but only {num_bytes} are available. "
        "Raise MILLM_KV_CACHE_BYTES or MILLM_MEMORY_BUDGET, lower MILLM_MAX_PREFILL_TOKENS, or unload another model."
    )


def _may_read_pages(device: torch.device, config: EngineConfig) -> bool:
    return device.type != "cpu" and config.attention_kernel == "auto"


def _backend(measures: _Measures, config: EngineConfig, *, reads_pages: bool) -> str:
    """Return the policy for ``auto``. Contiguous on a GPU whose kernel does not support pages, if memory suffices, and
    on the CPU without our kernels, because torch's attention is much faster with one block per sequence.
    """
    if config.kv_cache_backend != "auto":
        return config.kv_cache_backend
    if measures.device.type == "cpu":
        return "paged" if native.active().is_native else "contiguous"
    full = config.max_batch_size * measures.max_seq_len * sum(group.bytes_per_token for group in measures.groups)
    return "contiguous" if not reads_pages and full <= measures.num_bytes else "paged"


def _contiguous(measures: _Measures, config: EngineConfig) -> ModelCache:
    rows, length = config.max_batch_size, measures.max_seq_len
    bytes_per_token = tuple(group.bytes_per_token for group in measures.groups)
    if measures.device.type != "cpu":  # GPU memory is not allocated on first use
        rows = max(1, min(rows, measures.num_bytes // (length * sum(bytes_per_token))))
    policy = ContiguousCache(
        rows, length, measures.windows, bytes_per_token, measures.num_bytes, prefixes=config.prefix_cache
    )
    pool = measures.pool([rows] * len(bytes_per_token), length)
    return ModelCache(policy, pool, "contiguous", measures.num_bytes, measures.num_tokens)


def _paged(measures: _Measures, config: EngineConfig, page: int) -> ModelCache:
    """Give each group what one sequence needs, and share the rest in proportion to the needs of a full batch."""
    rows, length = config.max_batch_size, measures.max_seq_len
    kept = [_kept_tokens(window, length, config) for window in measures.windows]
    least = _least_blocks(measures, config, page)
    more = [max(0, rows * tokens // page + 1 - count) for tokens, count in zip(kept, least, strict=True)]
    block_bytes = [page * group.bytes_per_token for group in measures.groups]
    rest = max(0, measures.num_bytes - _least_bytes(measures, config, page))
    share = min(1.0, rest / max(1, sum(n * size for n, size in zip(more, block_bytes, strict=True))))
    num_blocks = tuple(count + int(share * n) for count, n in zip(least, more, strict=True))
    policy = PagedCache(
        rows,
        length,
        measures.windows,
        num_blocks,
        prefixes=config.prefix_cache,
        block_size=page,
        max_chunk=config.max_prefill_tokens,
    )
    pool = measures.pool(num_blocks, page, has_spare=True)
    num_bytes = sum(n * size for n, size in zip(num_blocks, block_bytes, strict=True))
    num_tokens = min(n for n, kept_by in zip(num_blocks, kept, strict=True) if kept_by == max(kept)) * page
    ahead = MemoryAhead(pool, policy, measures.groups) if measures.device.type == "cpu" else None
    return ModelCache(policy, pool, "paged", num_bytes, num_tokens, ahead)


def _kept_tokens(window: int, length: int, config: EngineConfig) -> int:
    """Return the number of tokens of the longest sequence that layers with this window keep."""
    return min(length, window + config.max_prefill_tokens) if window else length


def _least_blocks(measures: _Measures, config: EngineConfig, page: int) -> list[int]:
    """Return the blocks per group that one sequence needs, because a sequence must be able to run alone.

    Layers without a window limit its length; layers with one must hold the window and a chunk.
    """
    longest = -(-measures.max_seq_len // page)
    return [
        max(2, min(longest, window_blocks(window, config.max_prefill_tokens, page) + 1)) if window else 2
        for window in measures.windows
    ]


def _least_bytes(measures: _Measures, config: EngineConfig, page: int) -> int:
    counts = _least_blocks(measures, config, page)
    return sum(n * page * group.bytes_per_token for n, group in zip(counts, measures.groups, strict=True))
