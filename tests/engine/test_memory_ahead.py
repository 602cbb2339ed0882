"""Memory of the cache that is allocated while no request runs."""

from __future__ import annotations

import ctypes

import pytest
import torch

from inference.engine.cache import memory_ahead
from inference.engine.cache.layout import LayerLayout, group_layers
from inference.engine.cache.memory_ahead import MemoryAhead
from inference.engine.cache.paged import PagedCache
from inference.engine.cache.pool import KVPool
from inference.engine.kernels.pages import PAGE, VirtualTensor
from inference.engine.models.facts import DeviceMemory
from tests.engine.harness import EngineHarness, reference_tokens
from tests.engine.sequences import build_sequence

LAYOUTS = [LayerLayout(2, 64, 64, torch.float32), LayerLayout(2, 64, 32, torch.float32, window=64)]
GROUPS = group_layers(LAYOUTS)
PLENTY = DeviceMemory(2**40, 2**40)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(memory_ahead, "HUGE_PAGE", 64 << 10)


@pytest.fixture
def cache() -> PagedCache:
    return PagedCache(4, 4096, tuple(group.window for group in GROUPS), (1024, 512), prefixes=False)


def ahead_of(cache: PagedCache, memory: DeviceMemory = PLENTY) -> tuple[MemoryAhead, KVPool]:
    pool = KVPool(LAYOUTS, GROUPS, cache.num_blocks, cache.block_size, torch.device("cpu"))
    return MemoryAhead(pool, cache, GROUPS, lambda: memory), pool


def allocate_all(ahead: MemoryAhead) -> int:
    """Return the number of turns that it takes."""
    for turns in range(10_000):
        if not ahead.allocate_some():
            return turns
    raise AssertionError("it never ends")


def resident(tensor: torch.Tensor) -> int:
    """Return the bytes of the tensor's pages that are in memory."""
    size = tensor.numel() * tensor.element_size()
    start = tensor.data_ptr() // PAGE * PAGE
    pages = (ctypes.c_ubyte * (-(-(tensor.data_ptr() + size - start) // PAGE)))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(len(pages) * PAGE), pages) == 0
    return sum(each & 1 for each in pages) * PAGE


def test_allocating_keeps_the_content():
    virtual = VirtualTensor((8 * PAGE,), torch.uint8)
    virtual.tensor[PAGE + 5] = 7
    virtual.allocate(PAGE + 1, 4 * PAGE)
    assert virtual.tensor.sum() == 7 == virtual.tensor[PAGE + 5]
    assert resident(virtual.tensor) >= 3 * PAGE


def test_an_old_kernel_touches_each_page(monkeypatch):
    monkeypatch.setattr("inference.engine.kernels.pages._POPULATE_WRITE", 9999)
    virtual = VirtualTensor((64 * PAGE,), torch.uint8)
    virtual.tensor[PAGE + 5] = 7
    virtual.allocate(0, 64 * PAGE)
    assert virtual.tensor.sum() == 7
    assert resident(virtual.tensor) == 64 * PAGE


def test_so_many_tokens_are_ready_and_no_more(cache, monkeypatch):
    monkeypatch.setattr(memory_ahead, "AHEAD_TOKENS", 4096)
    ahead, pool = ahead_of(cache)
    assert allocate_all(ahead) > 1
    ready = 4096 // cache.block_size
    whole = sum(ready * cache.block_size * group.bytes_per_token for group in GROUPS)
    assert 0.9 * whole < ahead.num_bytes <= whole, "in whole pieces"
    for tensors in (pool.keys, pool.values):
        for tensor in tensors:
            block = tensor[0].numel() * tensor.element_size()
            assert 0.9 * ready * block < resident(tensor.transpose(1, 2))
    assert not ahead.allocate_some()


def test_what_sequences_use_is_replaced(cache, monkeypatch):
    monkeypatch.setattr(memory_ahead, "AHEAD_TOKENS", 2048)
    ahead, _ = ahead_of(cache)
    allocate_all(ahead)
    before = ahead.num_bytes
    sequence = build_sequence(1500)
    assert cache.begin(sequence, 0)
    assert cache.extend(sequence, 1500)
    assert ahead.num_bytes < before
    allocate_all(ahead)
    assert ahead.num_bytes == pytest.approx(before, rel=0.1)


def test_short_memory_is_left_alone(cache):
    ahead, _ = ahead_of(cache, DeviceMemory(2**34, 2**20))
    assert not ahead.allocate_some()
    assert ahead.num_bytes == 0


def test_the_whole_cache_is_the_most(monkeypatch):
    monkeypatch.setattr(memory_ahead, "AHEAD_TOKENS", 10**9)
    small = PagedCache(2, 256, (0, 64), (16, 16), prefixes=False)
    ahead, _ = ahead_of(small)
    allocate_all(ahead)
    assert ahead.num_bytes <= sum(16 * small.block_size * group.bytes_per_token for group in GROUPS)


def test_an_idle_engine_allocates_memory(llama):
    """Between requests, whose tokens do not change."""
    harness = EngineHarness(llama, kv_cache_backend="paged")
    free = harness.engine.stats().kv_unwritten_bytes
    prompt = (5, 6, 7)
    for _ in range(2):
        while harness.engine.use_idle_time():
            harness.engine.check_integrity()
        transcript = harness.generate(prompt=prompt, max_tokens=8)
        assert transcript.token_ids == reference_tokens(llama, prompt, 8)
    assert harness.engine.stats().kv_unwritten_bytes < free
