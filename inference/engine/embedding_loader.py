"""From a directory to a model that embeds texts: an encoder such as BERT, or a decoder such as Qwen3-Embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedTokenizerBase

from inference.engine.encoder import LoadedEncoder, check_tokenizer, check_weights, facts_of
from inference.engine.load_faults import enough_memory, readable_files
from inference.engine.loader import ModelSpec, check_dtype, from_pretrained, resolve_device
from inference.engine.long_rope import freeze_long_rope
from inference.engine.pooling import Pooling, read_pooling
from inference.torch_threads import borrowed_workers


@dataclass(frozen=True, slots=True)
class LoadedEmbedder(LoadedEncoder):
    """``hidden_size`` is the vectors' dimension."""

    pooling: Pooling

    def vectors(self, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
        states = self.module(input_ids=ids, attention_mask=mask).last_hidden_state
        return self.pooling(states, mask)


def load_embedder(spec: ModelSpec) -> LoadedEmbedder:
    """Load weights and tokenizer and embed one token as a trial; LoadError says in a sentence what is wrong."""
    device = resolve_device(spec.device)
    check_dtype(spec.dtype)
    check_weights(spec)
    with borrowed_workers(), enough_memory(spec.name), readable_files(spec.name, spec.path):
        module, tokenizer = from_pretrained(spec, device, AutoModel)
        check_tokenizer(spec, tokenizer)
        module.config.use_cache = False  # decoders would keep keys and values for tokens that never follow
        loaded = _describe(spec, module, tokenizer, device)
        freeze_long_rope(module, loaded.max_model_len)
        _try(loaded)
    return loaded


def _describe(
    spec: ModelSpec, module: nn.Module, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> LoadedEmbedder:
    config = module.config.get_text_config()  # type: ignore[union-attr, operator]
    return LoadedEmbedder(
        **facts_of(spec, module, tokenizer, device),
        pad_token_id=tokenizer.pad_token_id or 0,
        pooling=read_pooling(spec.path, is_decoder=is_decoder(config)),
    )


def is_decoder(config: Any) -> bool:
    """By its architecture's name; a bidirectional encoder has none of a causal language model."""
    return any(name.endswith("ForCausalLM") for name in config.architectures or ())


@torch.inference_mode()
def _try(loaded: LoadedEmbedder) -> None:
    ids = torch.zeros(1, 1, dtype=torch.long, device=loaded.device)
    states = loaded.module(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    if states.shape != (1, 1, loaded.hidden_size):
        raise ValueError(f"its states have the shape {tuple(states.shape)}, not (1, 1, {loaded.hidden_size})")
