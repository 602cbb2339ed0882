"""The common parts of embedding models and classifiers."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from inference.engine.errors import LoadError
from inference.engine.kernels.linears import bytes_of
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import LoadedModel

SENSIBLE_LENGTH = 10**6  # tokenizers without a limit have 10**30
# Their position embeddings begin after the padding token's.
OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"})


@dataclass(frozen=True, slots=True)
class LoadedEncoder(LoadedModel):
    """A loaded encoder. ``pad_token_id`` pads batches; no token attends to it."""

    pad_token_id: int

    @abstractmethod
    def vectors(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        """Return ``[texts, numbers]`` float32 for padded texts ``[texts, tokens]``. ``types``: token types."""


def check_weights(spec: ModelSpec) -> None:
    if spec.weights != "native":
        raise LoadError(
            f"{spec.name} is a model for {spec.kind}. Quantization ({spec.weights}) is only supported for models that "
            "generate text."
        )


def check_tokenizer(spec: ModelSpec, tokenizer: PreTrainedTokenizerBase) -> None:
    if not tokenizer.is_fast:
        raise LoadError(f"{spec.name} has no fast tokenizer (tokenizer.json).")


def facts_of(
    spec: ModelSpec, module: nn.Module, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> dict[str, Any]:
    """Return the common fields of LoadedModel."""
    config = module.config.get_text_config()  # type: ignore[union-attr, operator]
    return {
        "name": spec.name,
        "module": module,
        "tokenizer": tokenizer,
        "max_model_len": max_length(spec, config, tokenizer),
        "vocab_size": int(config.vocab_size),
        "eos_token_ids": frozenset[int](),
        "special_token_ids": frozenset(tokenizer.all_special_ids),
        "memory_bytes": bytes_of(module),
        "hidden_size": int(config.hidden_size),
        "num_layers": int(config.num_hidden_layers),
        "dtype": str(next(module.parameters()).dtype).removeprefix("torch."),
        "device": str(device),
        "grammars": None,
    }


def max_length(spec: ModelSpec, config: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the minimum of the lengths that pipeline, tokenizer, position embeddings and specification allow."""
    positions = getattr(config, "max_position_embeddings", 0) or 0
    if positions and config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    lengths = [_pipeline_length(spec.path), int(tokenizer.model_max_length), positions, spec.max_seq_len]
    return min(length for length in [*lengths, SENSIBLE_LENGTH] if length > 0)


def _pipeline_length(path: Path) -> int:
    file = path / "sentence_bert_config.json"
    length = json.loads(file.read_text()).get("max_seq_length") if file.is_file() else None
    return length if isinstance(length, int) else 0
