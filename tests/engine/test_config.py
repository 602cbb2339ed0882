from __future__ import annotations

import pytest

from inference.engine.config import EngineConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batching_mode", "dynamic"),
        ("scheduler_policy", "random"),
        ("kv_cache_backend", "disk"),
        ("max_batch_size", -1),
        ("max_prefill_tokens", -1),
        ("speculative_method", "eagle"),
        ("num_speculative_tokens", 0),
        ("prompt_lookup_min", 0),
        ("prompt_lookup_max", 1),
        ("min_speculative_gain", 0.9),
        ("min_speculative_gain", float("nan")),
    ],
)
def test_unsupported_values_are_errors(field, value):
    with pytest.raises(ValueError, match=field):
        EngineConfig(**{field: value})


@pytest.mark.parametrize(("device", "batch", "prompts"), [("cpu", 16, 512), ("cuda", 64, 4096), ("mps", 64, 4096)])
def test_sizes_are_chosen_for_the_device(device, batch, prompts):
    chosen = EngineConfig(max_batch_size=0, max_prefill_tokens=0).on(device)
    assert (chosen.max_batch_size, chosen.max_prefill_tokens) == (batch, prompts)
    assert EngineConfig(max_batch_size=5, max_prefill_tokens=0).on(device).max_batch_size == 5
