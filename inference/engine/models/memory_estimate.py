"""Estimate the memory of a model before loading it, from its config and the headers of its files."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig

from inference.engine.cache.prefix_keys import PREFIX_BLOCK
from inference.engine.config import READ_PLACES
from inference.engine.errors import LoadError
from inference.engine.kernels.varlen_attention import PAGE_TOKENS
from inference.engine.models.facts import MemoryEstimate, ModelSpec
from inference.engine.models.load_faults import enough_memory, readable_files
from inference.engine.models.loader import DTYPES, resolve_device
from inference.engine.models.weight_files import WeightHeader, pickled_bytes, read_headers, stored_dtype
from inference.files.text_tower import has_text_tower, language_model_of

KV_TOKENS = 4096  # of one long conversation; less would not be useful
INT8_SCALE_BYTES = 4  # a float32 scale per row of an int8 matrix
LOGITS_COPIES = 3  # float32: computed, edited by penalties, sorted
READ_COPIES = 2  # of logits of prompt places: computed, and float32 for log-probabilities


def estimate_memory(spec: ModelSpec, *, max_tokens: int, max_rows: int, kv_bytes: int = 0) -> MemoryEstimate:
    """Estimate the memory of a model. Raise LoadError like the loader.

    ``max_tokens``: tokens per step, of which ``max_rows`` are sampled. ``kv_bytes``: the configured size of the KV
    cache, 0 if unset. Weights: elements times their size once loaded. KV cache: the size of a token in all layers times
    tokens. Activations: those of one layer, and the logits of one step.
    """
    if spec.dtype not in DTYPES:
        raise LoadError(f"dtype must be one of {', '.join(DTYPES)}, got {spec.dtype!r}.")
    with enough_memory(spec.name), readable_files(spec.name, spec.path):  # it maps files
        return _estimate(spec, max_tokens, max_rows, kv_bytes)


def _estimate(spec: ModelSpec, max_tokens: int, max_rows: int, kv_bytes: int) -> MemoryEstimate:
    config, headers = _read_config(spec, read_headers(spec.path))
    dtype = _target_dtype(spec, config, headers)
    if headers:
        num_bytes = sum(_loaded_bytes(header, dtype, spec.weights) for header in _without_copies(headers, config))
    else:
        num_bytes = pickled_bytes(spec.path)
    if spec.kind != "generation":
        return MemoryEstimate(num_bytes, 0, _activation_bytes(config, max_tokens, 0, dtype))
    length, token_bytes = _sequence_length(config, spec.max_seq_len), _token_bytes(config, dtype)
    most_kv = max_rows * token_bytes * (length + PREFIX_BLOCK)
    return MemoryEstimate(
        weights=num_bytes + _head_copy_bytes(spec, config, dtype),
        kv=min(most_kv, kv_bytes) if kv_bytes else token_bytes * min(_least_tokens(spec, config, max_tokens), length),
        activations=_activation_bytes(config, max_tokens, max_rows, dtype),
        most_kv=most_kv,
    )


def _read_config(spec: ModelSpec, headers: list[WeightHeader]) -> tuple[Any, list[WeightHeader]]:
    """Return the configuration of the language model, and the headers of its weights."""
    options = {"trust_remote_code": spec.trust_remote_code, "local_files_only": True}
    config = AutoConfig.from_pretrained(spec.path, **options)
    if spec.kind == "generation" and has_text_tower(config):
        config, own = language_model_of(config, {header.name: header for header in headers})
        headers = list(own.values())
    return config.get_text_config(), headers


def _target_dtype(spec: ModelSpec, config: Any, headers: list[WeightHeader]) -> torch.dtype:
    """Return the dtype. ``auto``, as in transformers: that of the config, or of the first floating-point tensor."""
    dtype = DTYPES[spec.dtype]
    if isinstance(dtype, torch.dtype):
        return dtype
    if isinstance(config.dtype, torch.dtype):
        return config.dtype
    return stored_dtype(headers)


def _without_copies(headers: list[WeightHeader], config: Any) -> list[WeightHeader]:
    """Return the headers without a tied head, which some files contain although it is the embedding."""
    tied = bool(getattr(config, "tie_word_embeddings", False)) and any("embed" in header.name for header in headers)
    return [header for header in headers if not (tied and header.name.endswith("lm_head.weight"))]


def _head_copy_bytes(spec: ModelSpec, config: Any, dtype: torch.dtype) -> int:
    """Return the size of the copy of a tied head, which is needed in int8, and on the CPU in float32."""
    if not getattr(config, "tie_word_embeddings", False):
        return 0
    if spec.weights != "native":
        return int(config.vocab_size) * (int(config.hidden_size) + INT8_SCALE_BYTES)
    if resolve_device(spec.device).type != "cpu":
        return 0
    return int(config.vocab_size) * int(config.hidden_size) * dtype.itemsize if dtype == torch.float32 else 0


def _loaded_bytes(header: WeightHeader, dtype: torch.dtype, weights: str) -> int:
    if not header.is_float:
        return header.num_bytes
    if weights != "native" and _is_linear(header):
        return header.num_elements + header.shape[0] * INT8_SCALE_BYTES
    return header.num_elements * dtype.itemsize


def _is_linear(header: WeightHeader) -> bool:
    """Return whether a weight is that of a linear. Embeddings and the head keep their dtype."""
    is_table = any(part in header.name for part in ("embed", "wte", "wpe", "lm_head"))
    return len(header.shape) == 2 and not is_table


def _sequence_length(config: Any, max_seq_len: int) -> int:
    own_length = int(getattr(config, "max_position_embeddings", None) or KV_TOKENS)
    return min(own_length, max_seq_len or own_length)


def _least_tokens(spec: ModelSpec, config: Any, max_tokens: int) -> int:
    """Return the tokens of one long conversation, and at least those that layers with a window need in one step."""
    block = PREFIX_BLOCK if resolve_device(spec.device).type == "cpu" else PAGE_TOKENS
    types = getattr(config, "layer_types", None)
    window = 0 if types and "sliding_attention" not in types else getattr(config, "sliding_window", None) or 0
    return max(KV_TOKENS, int(window) + max_tokens + 3 * block)


def _token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return the size of the keys and values of one token in all layers."""
    num_layers = int(config.num_hidden_layers)
    return sum(heads * dim for layer in range(num_layers) for heads, dim in [_kv_shape(config, layer)]) * dtype.itemsize


def _kv_shape(config: Any, layer: int) -> tuple[int, int]:
    """Return the number of key heads in a layer, and the values per head for keys and values together."""
    heads = int(config.num_attention_heads)
    if getattr(config, "kv_lora_rank", None):  # latent attention: the cache holds keys and values of every query head
        return heads, int(config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim)
    key_dim = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    return _key_heads(config, layer, heads), key_dim + int(getattr(config, "v_head_dim", None) or key_dim)


def _key_heads(config: Any, layer: int, heads: int) -> int:
    """Return the number of key heads, which differs from the configuration in some architectures."""
    key_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if getattr(config, "multi_query", False):
        return 1
    if config.model_type == "jetmoe":  # keys are repeated per expert
        return heads
    if config.model_type == "mimo_v2_flash" and config.layer_types[layer] == "sliding_attention":
        return 2 * key_heads
    return key_heads


def _activation_bytes(config: Any, max_tokens: int, max_rows: int, dtype: torch.dtype) -> int:
    """Return the size of the activations. A layer needs about 8 hidden sizes and 3 intermediate sizes per token."""
    hidden = config.hidden_size
    sizes = getattr(config, "intermediate_size", None) or 4 * hidden
    intermediate = max(sizes) if isinstance(sizes, list | tuple) else sizes  # Gemma 3n has one per layer
    layer = (max_tokens + max_rows) * (8 * hidden + 3 * intermediate) * dtype.itemsize
    read = min(max_tokens, READ_PLACES) if max_rows else 0
    return int(layer + (max_rows * LOGITS_COPIES + read * READ_COPIES) * config.vocab_size * 4)
