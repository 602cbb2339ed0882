"""Models for text and pictures are served as the language models inside them, exactly as transformers computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from inference.engine.embedding.classifier import load_classifier
from inference.engine.errors import LoadError
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.engine.models.memory_estimate import estimate_memory
from tests.builders import build_tokenizer
from tests.engine.harness import EngineHarness
from tests.engine.tiny_architectures import TOWERS, tiny_config, write_tiny_tower

PROMPT = tuple(3 + (11 * i) % 300 for i in range(23))
NUM_TOKENS = 12


def greedy(module: Any) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(NUM_TOKENS):
        with torch.inference_mode():
            tokens.append(int(module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("model_type", TOWERS)
def test_text_is_that_of_the_whole_model(tmp_path: Path, model_type: str):
    whole = write_tiny_tower(tmp_path, model_type)
    loaded = load_model(ModelSpec("tower", tmp_path, dtype="float32", device="cpu"))
    with torch.inference_mode():
        expected = whole(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0]
    assert len(expected.unique()) > 100
    made = EngineHarness(loaded).generate(prompt=PROMPT, max_tokens=NUM_TOKENS).token_ids
    assert made == greedy(whole)[: len(made)]
    assert len(made) > 1


def test_weights_in_the_layout_of_newer_files_are_found(tmp_path: Path):
    whole = write_tiny_tower(tmp_path, "gemma3")
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    newer = {name.replace("language_model.model.", "model.language_model."): value for name, value in weights.items()}
    assert newer.keys() != weights.keys()
    save_file(newer, file, metadata={"format": "pt"})
    loaded = load_model(ModelSpec("tower", tmp_path, dtype="float32", device="cpu"))
    made = EngineHarness(loaded).generate(prompt=PROMPT, max_tokens=NUM_TOKENS).token_ids
    assert made == greedy(whole)[: len(made)]


def test_missing_weights_are_refused(tmp_path: Path):
    write_tiny_tower(tmp_path, "gemma3")
    file = tmp_path / "model.safetensors"
    weights = {name: value for name, value in load_file(file).items() if "layers.1.mlp" not in name}
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(LoadError, match=r"lack weights of the language model, such as model\.layers\.1\.mlp"):
        load_model(ModelSpec("tower", tmp_path, dtype="float32", device="cpu"))


def test_quantised_towers_are_refused(tmp_path: Path):
    write_tiny_tower(tmp_path, "gemma3")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(LoadError, match="quantised model for text and pictures"):
        load_model(ModelSpec("tower", tmp_path, dtype="float32", device="cpu"))


def test_a_classifier_for_text_and_pictures_keeps_its_head(tmp_path: Path):
    text_type, changes, vision = TOWERS["gemma3"]
    config = CONFIG_MAPPING["gemma3"](
        text_config=tiny_config(text_type, **changes).to_dict(), vision_config=vision, num_labels=3
    )
    whole = AutoModelForSequenceClassification.from_config(config)
    whole.save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    loaded = load_classifier(ModelSpec("tower", tmp_path, dtype="float32", device="cpu", kind="classification"))
    assert len(loaded.labels) == 3
    assert torch.equal(loaded.module.state_dict()["score.weight"], whole.state_dict()["score.weight"])


def test_the_memory_of_the_pictures_is_not_counted(tmp_path: Path):
    write_tiny_tower(tmp_path, "gemma3")
    spec = ModelSpec("tower", tmp_path, dtype="float32", device="cpu")
    loaded = load_model(spec)
    estimate = estimate_memory(spec, max_tokens=16, max_rows=4)
    assert estimate.weights == pytest.approx(loaded.memory_bytes, rel=0.02)
