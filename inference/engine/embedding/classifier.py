"""Load a classifier, which scores texts or pairs of texts for each of its labels.

Cross-encoders (rerankers), which score how well a document answers a query, have one label.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from inference.engine.embedding.encoder import LoadedEncoder, check_tokenizer, check_weights, facts_of
from inference.engine.errors import LoadError
from inference.engine.models.adaptations import freeze_long_rope
from inference.engine.models.facts import ModelSpec
from inference.engine.models.load_faults import enough_memory, readable_files
from inference.engine.models.loader import check_dtype, from_pretrained, resolve_device
from inference.torch_threads import borrowed_workers

Activation = Literal["sigmoid", "softmax", "none"]
ACTIVATIONS: dict[str, Activation] = {"Sigmoid": "sigmoid", "Softmax": "softmax", "Identity": "none"}


@dataclass(frozen=True, slots=True)
class LoadedClassifier(LoadedEncoder):
    """A loaded classifier. ``takes_types``: it distinguishes the texts of a pair by token types."""

    activation: Activation
    takes_types: bool

    def vectors(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        inputs = {"token_type_ids": types} if self.takes_types else {}
        logits = self.module(input_ids=ids, attention_mask=mask, **inputs).logits.float()
        if self.activation == "softmax":
            return torch.softmax(logits, dim=-1)
        return torch.sigmoid(logits) if self.activation == "sigmoid" else logits


def load_classifier(spec: ModelSpec) -> LoadedClassifier:
    """Load weights and tokenizer, and classify one token as a test. Raise LoadError."""
    device = resolve_device(spec.device)
    check_dtype(spec.dtype)
    check_weights(spec)
    with borrowed_workers(), enough_memory(spec.name), readable_files(spec.name, spec.path):
        module, tokenizer = from_pretrained(spec, device, AutoModelForSequenceClassification)
        check_tokenizer(spec, tokenizer)
        module.config.use_cache = False
        if module.config.get_text_config().pad_token_id is None:  # decoders find the end of a text by it
            module.config.get_text_config().pad_token_id = tokenizer.pad_token_id or 0
        loaded = _describe(spec, module, tokenizer, device)
        freeze_long_rope(module, loaded.max_model_len)
        _try(loaded)
    return loaded


def read_activation(config: Any) -> Activation:
    """Return the activation from the sentence-transformers config, or by problem type; sigmoid for a single label."""
    named = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    named = named or getattr(config, "sbert_ce_default_activation_function", None)
    if named is not None:
        name = str(named).rpartition(".")[2]
        if name not in ACTIVATIONS:
            raise LoadError(f"Its activation {named} is not supported.")
        return ACTIVATIONS[name]
    if config.problem_type == "regression":
        return "none"
    return "sigmoid" if config.num_labels == 1 or config.problem_type == "multi_label_classification" else "softmax"


def _describe(
    spec: ModelSpec, module: nn.Module, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> LoadedClassifier:
    own: Any = module.config
    return LoadedClassifier(
        **facts_of(spec, module, tokenizer, device),
        labels=tuple(str(own.id2label[place]) for place in range(own.num_labels)),
        pad_token_id=own.get_text_config().pad_token_id,
        activation=read_activation(own),
        takes_types="token_type_ids" in tokenizer.model_input_names
        and "token_type_ids" in inspect.signature(module.forward).parameters,
    )


@torch.inference_mode()
def _try(loaded: LoadedClassifier) -> None:
    ids = torch.full((1, 1), min(1, loaded.vocab_size - 1), dtype=torch.long, device=loaded.device)
    scores = loaded.vectors(ids, torch.ones_like(ids), torch.zeros_like(ids))
    if scores.shape != (1, len(loaded.labels)):
        raise ValueError(f"its scores have the shape {tuple(scores.shape)}, not (1, {len(loaded.labels)})")
