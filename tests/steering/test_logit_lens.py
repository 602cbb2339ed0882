"""The logit lens equals the product of a direction with the model's last weights, and disturbs nobody."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from core.runtime import runtime
from inference.files.sources import ModelSource
from inference.models import LanguageModel
from inference.steering_refs import STEERING_COMPILER, SAESource
from steering import services
from steering.features import unembedding
from steering.features.logit_lens import (
    MAX_WAITING,
    LensBusyError,
    LensTarget,
    LensUnavailableError,
    LensWorker,
    LogitLens,
    compute_lens,
    read_lens,
)
from steering.features.unembedding import UnembeddingError, open_unembedding
from steering.profiles.snapshot import source_of
from steering.sae_registry.registration import SAELocation
from tests.builders import ARCHITECTURES, build_model
from tests.engine.tiny_architectures import write_tiny_tower
from tests.steering.sae_files import random_weights, sae_config, write_sae

NOTHING = LogitLens((), ())


def subject(index: int = 0, *, is_in_residual: bool = True) -> LensTarget:
    return LensTarget(ModelSource("/no/such/model"), SAESource("s", "c", "/no", "", ""), index, is_in_residual)


NORMS = {"gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm"}


def expected(path: Path, direction: torch.Tensor) -> torch.Tensor:
    """``direction . gamma . W_U``, from the weights alone; the direction is centred where the norm centres."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    norm = model.get_submodule(NORMS.get(model.config.model_type, "model.norm"))
    gamma = norm.weight + 1 if "Gemma" in type(norm).__name__ else norm.weight
    centred = direction - direction.mean() if "LayerNorm" in type(norm).__name__ else direction
    with torch.no_grad():
        return model.get_output_embeddings().weight @ (centred * gamma)


@pytest.fixture
def direction() -> torch.Tensor:
    """Not centred, and longer than a residual of norm 1."""
    return torch.randn(32, generator=torch.Generator().manual_seed(3)) * 5 + 2


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_equals_the_product_of_the_weights(architecture, tied, tmp_path, monkeypatch, direction):
    path = randomised_norms(build_model(tmp_path, architecture, tie_word_embeddings=tied))
    monkeypatch.setattr(unembedding, "_PIECE_BYTES", 1000)  # several pieces, the last one shorter
    logits = open_unembedding(path).logits(direction.numpy())
    torch.testing.assert_close(torch.from_numpy(logits), expected(path, direction), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model_type", ["gemma3", "qwen2_5_vl"])
def test_of_a_model_for_text_and_pictures(model_type: str, tmp_path: Path, direction: torch.Tensor):
    whole = write_tiny_tower(tmp_path, model_type)
    norm = next(module for name, module in whole.named_modules() if name.endswith("language_model.norm"))
    gamma = norm.weight + 1 if "Gemma" in type(norm).__name__ else norm.weight
    with torch.no_grad():
        product = whole.get_output_embeddings().weight @ (direction * gamma)
    found = open_unembedding(tmp_path).logits(direction.numpy())
    assert np.allclose(found, product.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", NORMS)
@pytest.mark.parametrize("width", [32, 33])
def test_a_layer_norm_centres_and_its_bias_is_no_part_of_a_direction(architecture, width, tmp_path):
    """The bias would be the same for all features, and larger than what a short direction says."""
    path = layer_norm_model(tmp_path / "model", architecture, width)
    for scale in (0.05, 1.0, 20.0):
        direction = torch.randn(width, generator=torch.Generator().manual_seed(3)) * scale + 1
        found = torch.from_numpy(open_unembedding(path).logits(direction.numpy()))
        torch.testing.assert_close(found, expected(path, direction), atol=1e-3, rtol=1e-3)
        assert set(found.topk(10).indices.tolist()) == set(expected(path, direction).topk(10).indices.tolist())


def test_logits_grow_with_the_direction(tmp_path, direction):
    """As on Neuronpedia: twice the decoder row has twice the logits, and a row of zeros has none."""
    lens = open_unembedding(layer_norm_model(tmp_path / "model", "gpt2", 32))
    np.testing.assert_allclose(lens.logits(2 * direction.numpy()), 2 * lens.logits(direction.numpy()), rtol=1e-4)
    assert not lens.logits(np.zeros(32, np.float32)).any()


def test_a_norm_that_is_no_linear_map_of_directions_is_refused():
    class Odd(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x)

    with pytest.raises(UnembeddingError, match="Odd is neither a layer norm nor an RMS norm"):
        unembedding.read_gain(Odd(), 16)


def randomised_norms(path: Path) -> Path:
    """A random model's norms are all ones, of which no test would notice that they are left out."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.named_parameters():
        if (
            parameter.ndim == 1
            and "norm" in name.lower() + type(model.get_submodule(name.rpartition(".")[0])).__name__.lower()
        ):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 2 + 1
    model.save_pretrained(path)
    return path


def layer_norm_model(path: Path, architecture: str, width: int) -> Path:
    sizes: dict[str, dict[str, Any]] = {
        "gpt2": {"n_embd": width, "n_layer": 1, "n_head": 1, "n_positions": 16},
        "gpt_neox": {
            "hidden_size": width, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
            "rotary_pct": 1.0, "max_position_embeddings": 16,
        },
    }  # fmt: skip
    config = AutoConfig.for_model(architecture, vocab_size=200, bos_token_id=0, eos_token_id=1, **sizes[architecture])
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return randomised_norms(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reads_half_precision(dtype, tmp_path, direction):
    path = build_model(tmp_path)
    AutoModelForCausalLM.from_pretrained(path, dtype=dtype).save_pretrained(path)
    logits = open_unembedding(path).logits(direction.numpy())
    torch.testing.assert_close(torch.from_numpy(logits), expected(path, direction), atol=1e-4, rtol=1e-4)


def test_promoted_and_suppressed_tokens(tmp_path):
    tokenizer = Tokenizer.from_file(str(build_model(tmp_path) / "tokenizer.json"))
    logits = np.zeros(tokenizer.get_vocab_size() + 8, np.float32)
    cat = tokenizer.encode(" the").ids[0]
    logits[cat], logits[5], logits[-1] = 3.0, -2.0, 9.0  # the last stands for no token
    lens = read_lens(logits, tokenizer)
    assert (lens.promoted[0].id, lens.promoted[0].text, lens.promoted[0].logit) == (cat, " the", 3.0)
    assert (lens.suppressed[0].id, lens.suppressed[0].logit) == (5, -2.0)


def test_damaged_files_are_named(tmp_path):
    path = build_model(tmp_path)
    stored = open_unembedding(path).embeddings
    stored.file.write_bytes(stored.file.read_bytes()[: stored.start + 10])
    with pytest.raises(UnembeddingError, match="is truncated"):
        stored.whole()


@pytest.mark.parametrize("looked_at", [subject(), subject(is_in_residual=False)])
def test_says_why_there_is_none(looked_at):
    with pytest.raises(LensUnavailableError, match=r"does not exist; give a directory|not one of the residual"):
        compute_lens(looked_at)


async def test_one_after_the_other_and_only_once():
    running: list[int] = []

    def compute(target: LensTarget) -> LogitLens:
        running.append(target.index)
        return NOTHING

    worker = LensWorker(compute)
    await asyncio.gather(*(worker.look(subject(index)) for index in range(4)))
    await worker.look(subject(2))
    assert running == [0, 1, 2, 3]


async def test_too_many_are_refused_and_it_goes_on_after_a_failure():
    gate = threading.Event()

    def compute(target: LensTarget) -> LogitLens:
        gate.wait()
        if target.index == 0:
            raise LensUnavailableError("broken")
        return NOTHING

    worker = LensWorker(compute)
    looks = [asyncio.create_task(worker.look(subject(index))) for index in range(MAX_WAITING + 1)]
    await asyncio.sleep(0)
    with pytest.raises(LensBusyError):
        await worker.look(subject(99))
    gate.set()
    first, *others = await asyncio.gather(*looks, return_exceptions=True)
    assert isinstance(first, LensUnavailableError)
    assert others == [NOTHING] * MAX_WAITING
    assert await worker.look(subject(99)) == NOTHING


@pytest.mark.django_db
def test_whole_path_of_a_registered_sae(tmp_path):
    """From rows of the database through files on the disk, once for the API and once for the admin's page."""
    runtime.remove(STEERING_COMPILER)
    path = build_model(tmp_path / "model")
    model = LanguageModel.objects.create(name="tiny", source=str(path))
    weights = random_weights(d_in=32)
    location = SAELocation(str(write_sae(tmp_path / "sae", sae_config(d_in=32), weights)))
    sae = services.register_sae(name="tiny-sae", model=model, location=location)
    subject = LensTarget(model.model_source, source_of(sae), 7)
    worker = LensWorker(compute_lens)

    lens = worker.compute_blocking(subject, 60)
    assert asyncio.run(worker.look(subject)) == lens
    logits = expected(path, torch.tensor(weights["W_dec"][7], dtype=torch.float32))
    vocabulary = Tokenizer.from_file(str(path / "tokenizer.json")).get_vocab_size()
    order = logits[:vocabulary].argsort(descending=True).tolist()
    assert [token.id for token in lens.promoted] == order[:10]
    assert [token.id for token in lens.suppressed] == order[::-1][:10]
    assert lens.promoted[0].logit == pytest.approx(float(logits[order[0]]), abs=1e-4)
    runtime.remove(STEERING_COMPILER)
