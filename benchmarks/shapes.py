"""Models of named shapes with random weights: the speed does not depend on the values of the weights."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from benchmarks.tokenizer import build_tokenizer

MAX_POSITIONS = 8192
DEFAULT_FOLDER = Path(tempfile.gettempdir()) / "millm-benchmarks"
CONFIGS = {"llama": LlamaConfig, "qwen3": Qwen3Config}


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of a decoder. It is saved and run in ``dtype``."""

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

    @property
    def bytes_per_step(self) -> int:
        """Bytes of weights that every decode step reads: all matrices, and the (tied) embedding once, as the head."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate
        element = getattr(torch, self.dtype).itemsize
        return int((self.layers * (attention + mlp) + self.vocab * self.hidden) * element)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", "llama", 2, 64, 4, 2, 16, 128, 1024, "float32"),
        Shape("small", "llama", 8, 512, 8, 4, 64, 1408, 8192, "float32"),
        Shape("qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, "bfloat16"),
    )
}


def shape_folder(shape: Shape, folder: Path = DEFAULT_FOLDER) -> Path:
    """Return the folder of the model in the Hugging Face layout under ``folder``. Write it if it does not exist."""
    path = folder / shape.name
    if not (path / "model.safetensors").exists():
        _write(shape, path)
    return path


def _write(shape: Shape, path: Path) -> None:
    config = CONFIGS[shape.family](
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    build_tokenizer(shape.vocab).save_pretrained(path)
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, shape.dtype)).save_pretrained(path)
