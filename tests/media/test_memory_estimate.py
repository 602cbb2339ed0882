"""The memory estimate of media models, against what their weights take."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.models.facts import ModelSpec
from inference.registry.loading import estimate_from_directory
from media.messages import ModelSpec as WorkerSpec
from media.worker.models import load
from tests.media.tiny import save_stable_diffusion


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_pipeline_s_parts_are_counted_in_the_dtype_they_are_loaded_in(tmp_path: Path, dtype: str) -> None:
    path = save_stable_diffusion(tmp_path)
    estimate = estimate_from_directory(ModelSpec("sd", path, dtype=dtype, device="cpu", kind="image"))
    weights = load(WorkerSpec("sd", "image", path, dtype, "cpu")).facts.memory_bytes
    assert estimate.weights == pytest.approx(weights, rel=0.01)
    assert estimate.activations > 0
