from __future__ import annotations

import pytest
import torch

from inference.engine.kv_cache import INITIAL_CAPACITY, ContiguousCache


def test_write_returns_all_so_far_and_grows():
    cache = ContiguousCache(num_slots=2, max_seq_len=1000)
    slot = cache.allocate()
    keys = torch.randn(2, INITIAL_CAPACITY + 50, 4)
    cache.write(0, slot, 0, keys[:, :100], keys[:, :100])
    got, values = cache.write(0, slot, 100, keys[:, 100:], keys[:, 100:] * 2)
    assert torch.equal(got, keys)
    assert torch.equal(values[:, 100:], keys[:, 100:] * 2)


def test_slots_are_separate():
    cache = ContiguousCache(2, 10)
    a, b = cache.allocate(), cache.allocate()
    cache.write(0, a, 0, torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    got, _ = cache.write(0, b, 0, torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))
    assert got.sum() == 0


def test_release_frees_memory_and_only_once():
    cache = ContiguousCache(1, 10)
    slot = cache.allocate()
    cache.write(0, slot, 0, torch.ones(1, 1, 2), torch.ones(1, 1, 2))
    assert cache.num_bytes() > 0
    cache.release(slot)
    assert cache.num_bytes() == 0
    with pytest.raises(ValueError, match="free already"):
        cache.release(slot)
    cache.check_integrity(set())


def test_more_than_a_slot_takes_is_refused():
    cache = ContiguousCache(1, 4)
    with pytest.raises(ValueError, match="5 tokens do not fit into a slot of 4"):
        cache.write(0, cache.allocate(), 0, torch.ones(1, 5, 2), torch.ones(1, 5, 2))


def test_integrity_sees_a_leak():
    cache = ContiguousCache(2, 4)
    cache.allocate()
    with pytest.raises(AssertionError, match="leaked"):
        cache.check_integrity(set())
