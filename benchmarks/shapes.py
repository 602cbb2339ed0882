"""Models of named shapes with random weights: speed does not depend on what weights say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from inference.engine.loader import LoadedModel, ModelSpec, load_model
from tests.builders import build_tokenizer


@dataclass(frozen=True)
class Shape:
    """A decoder's dimensions; ``dtype`` is what it is saved and run in."""

    name: str
    family: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    dtype: str


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("small", "llama", 8, 512, 8, 4, 64, 1408, 8192, "float32"),
        Shape("qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, "bfloat16"),
    )
}
CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}


def load_shape(name: str, folder: Path) -> LoadedModel:
    """Write the shape under ``folder`` unless it is there, and load it."""
    shape, path = SHAPES[name], folder / name
    if not (path / "model.safetensors").exists():
        _write(shape, path)
    return load_model(ModelSpec(name, path, dtype=shape.dtype))


def _write(shape: Shape, path: Path) -> None:
    config = CONFIGS[shape.family](
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype))
    model.save_pretrained(path)
    build_tokenizer().save_pretrained(path)
