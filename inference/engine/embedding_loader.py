"""From a directory to a model that embeds texts: an encoder such as BERT, or a decoder such as Qwen3-Embedding."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, PreTrainedTokenizerBase

from inference.engine.errors import LoadError
from inference.engine.linears import bytes_of
from inference.engine.load_faults import enough_memory, readable_files
from inference.engine.loader import LoadedModel, ModelSpec, check_dtype, from_pretrained, resolve_device
from inference.engine.pooling import Pooling, read_pooling
from inference.torch_threads import borrowed_workers

SENSIBLE_LENGTH = 10**6  # tokenizers without a limit say 10**30
# Their position embeddings begin behind the padding token's.
OFFSET_POSITIONS = frozenset({"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "longformer"})


@dataclass(frozen=True, slots=True)
class LoadedEmbedder(LoadedModel):
    """``hidden_size`` is the vectors' dimension. ``pad_token_id`` fills batches up; no text attends to it."""

    pooling: Pooling
    pad_token_id: int


def load_embedder(spec: ModelSpec) -> LoadedEmbedder:
    """Load weights and tokenizer and embed one token as a trial; LoadError says in a sentence what is wrong."""
    device = resolve_device(spec.device)
    check_dtype(spec.dtype)
    if spec.weights == "int8":
        raise LoadError(f"{spec.name} is an embedding model; int8 weights are for models that generate.")
    with borrowed_workers(), enough_memory(spec.name), readable_files(spec.name, spec.path):
        module, tokenizer = from_pretrained(spec, device, AutoModel)
        if not tokenizer.is_fast:
            raise LoadError(f"{spec.name} has no fast tokenizer (tokenizer.json).")
        module.config.use_cache = False  # decoders would keep keys and values for tokens that never follow
        loaded = _describe(spec, module, tokenizer, device)
        _try(loaded)
    return loaded


def _describe(
    spec: ModelSpec, module: nn.Module, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> LoadedEmbedder:
    config = module.config.get_text_config()  # type: ignore[union-attr, operator]
    return LoadedEmbedder(
        name=spec.name,
        module=module,
        tokenizer=tokenizer,
        max_model_len=_max_length(spec, config, tokenizer),
        vocab_size=int(config.vocab_size),
        eos_token_ids=frozenset(),
        special_token_ids=frozenset(tokenizer.all_special_ids),
        memory_bytes=bytes_of(module),
        hidden_size=int(config.hidden_size),
        num_layers=int(config.num_hidden_layers),
        dtype=str(next(module.parameters()).dtype).removeprefix("torch."),
        device=str(device),
        grammars=None,
        pooling=read_pooling(spec.path, is_decoder=is_decoder(config)),
        pad_token_id=tokenizer.pad_token_id or 0,
    )


def is_decoder(config: Any) -> bool:
    """By its architecture's name; a bidirectional encoder has none of a causal language model."""
    return any(name.endswith("ForCausalLM") for name in config.architectures or ())


def _max_length(spec: ModelSpec, config: Any, tokenizer: PreTrainedTokenizerBase) -> int:
    """The least of what the pipeline, the tokenizer, the positions and the specification allow."""
    positions = getattr(config, "max_position_embeddings", 0) or 0
    if positions and config.model_type in OFFSET_POSITIONS:
        positions -= config.pad_token_id + 1
    lengths = [_pipeline_length(spec.path), int(tokenizer.model_max_length), positions, spec.max_seq_len]
    return min(length for length in [*lengths, SENSIBLE_LENGTH] if length > 0)


def _pipeline_length(path: Path) -> int:
    file = path / "sentence_bert_config.json"
    length = json.loads(file.read_text()).get("max_seq_length") if file.is_file() else None
    return length if isinstance(length, int) else 0


@torch.inference_mode()
def _try(loaded: LoadedEmbedder) -> None:
    ids = torch.zeros(1, 1, dtype=torch.long, device=loaded.device)
    states = loaded.module(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    if states.shape != (1, 1, loaded.hidden_size):
        raise ValueError(f"its states have the shape {tuple(states.shape)}, not (1, 1, {loaded.hidden_size})")
