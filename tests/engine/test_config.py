from __future__ import annotations

import pytest

from inference.engine.config import EngineConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batching_mode", "dynamic"),
        ("scheduler_policy", "random"),
        ("kv_cache_backend", "disk"),
        ("max_batch_size", 0),
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
