"""The language model inside a model for text and pictures, loaded by itself: its configuration and its weights.

Pictures are not supported, so the vision tower is neither read nor kept. For text alone the multi-axis positions of
Qwen-VL are all equal, which is plain RoPE: its language models are those of the family without pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

W = TypeVar("W")
# The model with the same computation, for text configurations that have no causal language model of their own.
PLAIN_TYPES = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}
# Prefixes of the language model's weights in files, newest layout first, and those of the model by itself.
PREFIXES = (
    ("model.language_model.", "model."),
    ("model.text_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("lm_head.", "lm_head."),
)
OTHERS = ("visual.", "model.visual.", "vision_tower.", "model.vision_tower.", "multi_modal_projector.")


def language_model_of(config: Any, weights: Mapping[str, W]) -> tuple[Any, Mapping[str, W]]:
    """Return the configuration and the weights of the language model; those given if the model is nothing else."""
    if not has_text_tower(config):
        return config, weights
    return _text_config(config), _text_weights(weights)


def has_text_tower(config: Any) -> bool:
    """Return whether the configuration contains one of a language model."""
    return config.get_text_config() is not config and getattr(config, "vision_config", None) is not None


def _text_config(config: Any) -> Any:
    """Return the configuration of the language model by itself."""
    from transformers import AutoConfig

    text = config.get_text_config()
    dtype = text.dtype or config.dtype
    plain_type = PLAIN_TYPES.get(text.model_type)
    if plain_type is not None:
        fields = {name: value for name, value in text.to_dict().items() if name not in {"model_type", "architectures"}}
        rope = dict(fields.pop("rope_parameters", None) or {})
        rope = {name: value for name, value in rope.items() if not name.startswith("mrope")} | {"rope_type": "default"}
        text = AutoConfig.for_model(plain_type, rope_parameters=rope, **fields)
    text.dtype = dtype
    text.tie_word_embeddings = bool(text.tie_word_embeddings or config.tie_word_embeddings)
    return text


def _text_weights(weights: Mapping[str, W]) -> dict[str, W]:
    """Return the weights of the language model, named as in the model by itself."""
    found = {}
    for name, weight in weights.items():
        renamed = _renamed(name)
        if renamed is not None:
            found[renamed] = weight
    if not any(name.startswith("model.") for name in found):  # Qwen-VL's first layout has no prefix of its own
        found |= {name: weight for name, weight in weights.items() if not name.startswith(OTHERS)}
    return found


def _renamed(name: str) -> str | None:
    return next((plain + name.removeprefix(prefix) for prefix, plain in PREFIXES if name.startswith(prefix)), None)
