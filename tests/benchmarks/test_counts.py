from __future__ import annotations

import pytest
import torch

from benchmarks.counts import decode_counts
from benchmarks.profiles import KINDS
from inference.engine.models.loader import LoadedModel


def test_counts_do_not_vary(loaded: LoadedModel):
    first = decode_counts(loaded, 4)
    assert decode_counts(loaded, 4) == first
    assert first.python_calls > first.torch_ops > 0
    assert first.new_bytes > 0


def test_one_more_operator_in_the_model_is_seen(loaded: LoadedModel):
    before = decode_counts(loaded, 2)
    hook = loaded.module.get_submodule("model.layers.0.mlp").register_forward_hook(
        lambda module, inputs, output: torch.neg(output).neg()
    )
    try:
        after = decode_counts(loaded, 2)
    finally:
        hook.remove()
    assert after.torch_ops == before.torch_ops + 2
    assert after.new_bytes == before.new_bytes + 2 * 2 * loaded.hidden_size * 4  # two float32 rows, twice
    assert after.python_calls > before.python_calls


@pytest.mark.parametrize("kind", KINDS)
def test_steering_is_counted(loaded: LoadedModel, kind: str):
    plain, steered = decode_counts(loaded, 4), decode_counts(loaded, 4, profiles=KINDS[kind](loaded, 4))
    assert steered.torch_ops > plain.torch_ops
