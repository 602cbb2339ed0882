"""The registry's access to the engine's loader. The functions import torch when they are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings

from inference.files.architectures import MEDIA_KINDS
from inference.models import LanguageModel
from inference.registry.memory_plan import Place
from inference.registry.records import smallest

MEDIA_ACTIVATIONS = 0.25  # of the weights: an allowance, not measured for large sizes
WEIGHTS: dict[LanguageModel.Quantization, Weights] = {
    LanguageModel.Quantization.NONE: "native",
    LanguageModel.Quantization.INT8: "int8",
    LanguageModel.Quantization.W8A8: "w8a8",
}

if TYPE_CHECKING:
    from inference.engine.models.facts import LoadedFacts, MemoryEstimate, ModelSpec, Weights
    from inference.engine.models.loader import LoadedModel


def spec_for(row: LanguageModel, path: Path) -> ModelSpec:
    """Return the specification of the model for the engine."""
    from inference.engine.models.facts import ModelSpec

    source = row.model_source
    return ModelSpec(
        name=row.name,
        path=path,
        dtype=row.dtype,
        device=row.device,
        trust_remote_code=source.trust_remote_code,
        allow_pickle=source.allow_pickle,
        max_seq_len=smallest(row.context_length, settings.MILLM_MAX_SEQ_LEN),
        kind=row.kind_in(path),
        batch_invariant=settings.MILLM_BATCH_INVARIANT,
        options=row.default_sampling,
        weights=WEIGHTS[LanguageModel.Quantization(row.quantization)],
        replicas=row.replicas or 0,
    )


def load_from_directory(spec: ModelSpec) -> LoadedModel:
    from inference.engine.embedding.classifier import load_classifier
    from inference.engine.embedding.embedder import load_embedder
    from inference.engine.models.loader import load_model

    loaders = {"generation": load_model, "embedding": load_embedder, "classification": load_classifier}
    return loaders[spec.kind](spec)


def estimate_from_directory(spec: ModelSpec) -> MemoryEstimate:
    from inference.engine.config import EngineConfig
    from inference.engine.models.facts import MemoryEstimate
    from inference.engine.models.memory_estimate import estimate_memory

    if spec.kind in MEDIA_KINDS:
        weights = weight_bytes(spec)
        return MemoryEstimate(weights=weights, kv=0, activations=int(weights * MEDIA_ACTIVATIONS))
    config = EngineConfig(**settings.MILLM_ENGINE_OPTIONS).on(device_of(spec).partition(":")[0])
    return estimate_memory(
        spec,
        max_tokens=config.max_prefill_tokens,
        max_rows=config.max_batch_size,
        kv_bytes=config.kv_cache_bytes,
    )


def weight_bytes(spec: ModelSpec) -> int:
    """Return the size of a media model's weights in memory, those of a pipeline's parts included."""
    from inference.engine.models.weight_files import read_headers

    width = {"float32": 4, "float16": 2, "bfloat16": 2}.get(spec.dtype, 4 if device_of(spec) == "cpu" else 0)
    folders = [spec.path, *(path for path in spec.path.iterdir() if path.is_dir())]
    headers = [header for folder in folders for header in read_headers(folder)]
    return sum(header.num_elements * width if width and header.is_float else header.num_bytes for header in headers)


def device_of(spec: ModelSpec) -> str:
    """Return the device, with ``auto`` resolved. Raise LoadError if this machine lacks it."""
    from inference.engine.models.loader import resolve_device

    return str(resolve_device(spec.device))


def release_loaded(loaded: LoadedModel) -> None:
    from inference.engine.models.loader import release_model

    release_model(loaded)


def free_unused() -> None:
    from inference.engine.scheduling.step_isolation import free_unused_memory

    free_unused_memory()


@dataclass(frozen=True, slots=True)
class ModelLoading:
    """The steps from a specification to a loaded model and back. Tests pass their own."""

    load: Callable[[ModelSpec], LoadedModel | LoadedFacts] = load_from_directory
    estimate: Callable[[ModelSpec], MemoryEstimate] = estimate_from_directory
    device_of: Callable[[ModelSpec], str] = device_of
    release: Callable[[Any], None] = release_loaded  # of what ``load`` returned
    free_unused: Callable[[], None] = free_unused
    places: Callable[[ModelSpec], Sequence[Place]] = lambda spec: [Place()]  # where it would be loaded now
    wait_for_places: Callable[[ModelSpec], None] = lambda spec: None  # before a load
