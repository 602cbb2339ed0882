"""Activations on disk: what a crash leaves, and batches in random order."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steering.training.errors import NoSpaceError, TrainingError
from steering.training.store import ActivationStore, BatchSampler, check_space

D = 8


def rows(num: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num, D, generator=torch.Generator().manual_seed(seed)) * 300


def test_rows_are_kept_in_float16(tmp_path):
    store = ActivationStore(tmp_path, "corpus")
    store.add(rows(5))
    store.add(rows(7, 1))
    store.flush(2)
    whole = torch.cat([rows(5), rows(7, 1)])
    stored = torch.from_numpy(store.rows().astype(np.float32)) * store.meta.unit
    torch.testing.assert_close(stored, whole, rtol=1e-3, atol=0.2)
    mean = float(whole.norm(dim=1).mean())
    assert store.meta.unit * store.scale == pytest.approx(mean / D**0.5)


def test_a_crash_loses_only_rows_after_the_last_flush(tmp_path):
    store = ActivationStore(tmp_path, "corpus")
    store.add(rows(5))
    store.flush(2)
    store.add(rows(7, 1))  # and the process ends
    again = ActivationStore(tmp_path, "corpus")
    assert (again.meta.rows, again.meta.documents) == (5, 2)
    again.add(rows(7, 1))
    again.flush(3)
    assert again.rows().shape == (12, D)


def test_a_store_of_another_corpus_is_refused(tmp_path):
    ActivationStore(tmp_path, "one").flush(0)
    with pytest.raises(TrainingError, match="another corpus") as found:
        ActivationStore(tmp_path, "two")
    assert found.value.param == "folder"


def test_batches_use_every_row_once_per_epoch():
    stored = np.arange(640 * 2, dtype=np.float16).reshape(640, 2)
    sampler = BatchSampler(stored, 32, seed=1, buffer_bytes=2 * 2 * 64 * 3)
    epoch = torch.cat([sampler.batch(number) for number in range(20)])
    assert torch.equal(epoch[:, 0].sort().values, torch.from_numpy(stored[:, 0].astype(np.float32)))
    second = torch.cat([sampler.batch(number) for number in range(20, 40)])
    assert not torch.equal(epoch, second)
    assert torch.equal(BatchSampler(stored, 32, seed=1, buffer_bytes=2 * 2 * 64 * 3).batch(25), sampler.batch(25))
    assert not torch.equal(BatchSampler(stored, 32, seed=2).batch(0), sampler.batch(0))


def test_fewer_rows_than_a_batch_are_refused():
    with pytest.raises(TrainingError) as found:
        BatchSampler(np.zeros((10, 2), np.float16), 32, seed=0)
    assert found.value.param == "corpus"


def test_a_full_disk_is_noticed_before(tmp_path):
    check_space(tmp_path / "new", 1)
    with pytest.raises(NoSpaceError, match="free") as found:
        check_space(tmp_path / "new", 1 << 60)
    assert (found.value.status, found.value.code) == (507, "insufficient_storage")
