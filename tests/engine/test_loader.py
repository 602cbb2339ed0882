from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from inference.engine.errors import LoadError
from inference.engine.kernels import native
from inference.engine.models import loader
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model, resolve_device
from tests.builders import ARCHITECTURES, build_model


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_facts_of_a_model(loaded_models, architecture):
    loaded = loaded_models[architecture]
    assert (loaded.hidden_size, loaded.num_layers, loaded.max_model_len) == (32, 4, 256)
    assert loaded.vocab_size == len(loaded.tokenizer)
    assert 2 in loaded.eos_token_ids
    assert loaded.special_token_ids == {0, 1, 2}
    assert loaded.memory_bytes >= 4 * sum(p.numel() for p in loaded.module.parameters())
    assert not any(p.requires_grad for p in loaded.module.parameters())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtype(tmp_path, dtype):
    loaded = load_model(ModelSpec("m", build_model(tmp_path), dtype=dtype, device="cpu"))
    assert loaded.dtype == dtype
    assert next(loaded.module.parameters()).dtype is getattr(torch, dtype)


def test_the_context_can_be_shortened_but_not_stretched(tmp_path):
    path = build_model(tmp_path)
    assert load_model(ModelSpec("m", path, device="cpu", max_seq_len=64)).max_model_len == 64
    assert load_model(ModelSpec("m", path, device="cpu", max_seq_len=9999)).max_model_len == 256


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what is mapped")
@pytest.mark.parametrize(("dtype", "weights"), [("float32", "native"), ("bfloat16", "native"), ("bfloat16", "int8")])
def test_a_loaded_model_lets_go_of_its_file(tmp_path, dtype, weights):
    loaded = load_model(ModelSpec("m", build_model(tmp_path), dtype=dtype, device="cpu", weights=weights))
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert loaded.memory_bytes


def test_activations_of_8_bits_need_dot_products_of_bytes(tmp_path, monkeypatch):
    without = native.ActiveKernels(is_native=True, reason="a test", lanes=8)
    monkeypatch.setattr(native, "activate", lambda: without)
    with pytest.raises(LoadError, match="AVX512_VNNI"):
        load_model(ModelSpec("m", build_model(tmp_path), device="cpu", weights="w8a8"))


def test_several_end_tokens(tmp_path):
    path = build_model(tmp_path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 7]}))
    assert load_model(ModelSpec("m", path, device="cpu")).eos_token_ids == {0, 2, 7}


def _truncate_weights(path):
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def _pickle_only(path):
    from safetensors.torch import load_file

    torch.save(load_file(path / "model.safetensors"), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()


def _break_config(path):
    (path / "config.json").write_text("{")


def _unknown_type(path):
    (path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))


def _remote_code(path):
    config = json.loads((path / "config.json").read_text())
    config["model_type"] = "custom"
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (path / "config.json").write_text(json.dumps(config))
    (path / "evil.py").write_text("raise SystemExit('remote code ran')")


def _no_tokenizer(path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).unlink()


@pytest.mark.parametrize(
    "damage", [_truncate_weights, _pickle_only, _break_config, _unknown_type, _remote_code, _no_tokenizer]
)
def test_a_damaged_directory_is_a_readable_error(tmp_path, damage):
    path = build_model(tmp_path)
    damage(path)
    with pytest.raises(LoadError) as error:
        load_model(ModelSpec("damaged", path, device="cpu"))
    assert "damaged" in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(("device", "message"), [("warp", "no device 'warp'"), ("cuda:99", "cuda:99")])
def test_a_device_that_is_not_there(tmp_path, device, message):
    with pytest.raises(LoadError, match=message):
        load_model(ModelSpec("m", tmp_path, device=device))


def test_an_unknown_dtype(tmp_path):
    with pytest.raises(LoadError, match="dtype must be one of"):
        load_model(ModelSpec("m", tmp_path, device="cpu", dtype="int3"))


def test_the_device_auto_reports_once_that_torch_for_cuda_finds_no_gpu(monkeypatch, caplog):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    loader._report_missing_gpu.cache_clear()
    with caplog.at_level("INFO", loader.__name__):
        assert [resolve_device("auto").type for _ in range(2)] == ["cpu", "cpu"]
    assert caplog.messages == ["torch is built for CUDA 13.0 but found no GPU. Models run on the CPU."]
    loader._report_missing_gpu.cache_clear()
