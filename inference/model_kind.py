"""What a model in the Hugging Face layout is for, told from its directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

ModelKind = Literal["generation", "embedding", "classification"]

SENTENCE_TRANSFORMERS = "modules.json"  # its pipeline: transformer, pooling, normalisation
EMBEDDING_ENDINGS = ("Model", "ForMaskedLM")
GENERATION_ENDING = "ForCausalLM"
CLASSIFICATION_ENDING = "ForSequenceClassification"


def model_kind(path: Path, config: Mapping[str, Any]) -> ModelKind | None:
    """None for what can be neither. ``config`` is the content of config.json.

    A causal language model with a pipeline of sentence-transformers (Qwen3-Embedding) is for embeddings.
    """
    return kind_of_config(config, has_pipeline=(path / SENTENCE_TRANSFORMERS).is_file())


def kind_of_config(config: Mapping[str, Any], *, has_pipeline: bool) -> ModelKind | None:
    """The same of a model that is not here; ``has_pipeline``: of sentence-transformers."""
    names = config.get("architectures") or []
    names = [str(name) for name in names] if isinstance(names, list) else []
    if any(name.endswith(CLASSIFICATION_ENDING) for name in names):
        return "classification"  # a cross-encoder's pipeline names no pooling
    if has_pipeline:
        return "embedding"
    if any(name.endswith(GENERATION_ENDING) for name in names):
        return "generation"
    if any(name.endswith(EMBEDDING_ENDINGS) for name in names):
        return "embedding"
    return None
