from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.shapes import SHAPES, shape_folder
from benchmarks.tokenizer import FIRST_WORD, build_tokenizer
from inference.engine.models.loader import LoadedModel


def test_the_tokenizer_fills_the_vocabulary_with_visible_words():
    tokenizer = build_tokenizer(1024)
    assert len(tokenizer) == 1024
    words = tokenizer.decode(range(FIRST_WORD, 1024)).split()
    assert len(set(words)) == 1024 - FIRST_WORD


def test_the_tokenizer_takes_any_text():
    tokenizer = build_tokenizer(1024)
    text = "Grüße, 世界 😀"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_tokenizer_needs_room_for_the_bytes():
    with pytest.raises(ValueError, match="more than 259"):
        build_tokenizer(100)


def test_a_shape_is_what_it_says(loaded: LoadedModel):
    shape = SHAPES["tiny"]
    assert (loaded.num_layers, loaded.hidden_size, loaded.vocab_size) == (shape.layers, shape.hidden, shape.vocab)
    assert loaded.dtype == shape.dtype


def test_bytes_per_step_are_the_matrices(models: Path):
    """Norms are read as well, but they are next to nothing."""
    saved = load_file(shape_folder(SHAPES["tiny"], models) / "model.safetensors")
    assert SHAPES["tiny"].bytes_per_step == sum(p.nbytes for p in saved.values() if p.ndim == 2)


def test_the_large_shape_weighs_what_the_real_model_does():
    assert SHAPES["qwen3-0.6b"].bytes_per_step == pytest.approx(1.19e9, rel=0.01)
