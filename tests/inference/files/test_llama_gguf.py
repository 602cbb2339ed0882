"""GGUF Llamas become directories that transformers loads, with the same numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

from inference.files.gguf import GGUFError, read_gguf
from inference.files.llama_gguf import convert_llama, to_bfloat16
from tests.inference.gguf_files import F32, Q4_1, Q8_0, gguf_bytes, llama, tokens, write_llama


def converted(source: Path) -> Path:
    target = source.with_suffix("")
    target.mkdir()
    convert_llama(source, target, lambda _done, _total: None)
    return target


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_model_that_was_written(tmp_path, tied):
    model = llama(tied=tied)
    folder = converted(write_llama(tmp_path / "m.gguf", model))
    found = AutoModelForCausalLM.from_pretrained(folder)
    assert found.dtype is torch.bfloat16
    assert ("lm_head.weight" in read_names(folder)) == (not tied)
    for name in ("rms_norm_eps", "rope_parameters", "num_key_value_heads", "max_position_embeddings"):
        assert getattr(found.config, name) == getattr(model.config, name)
    ids = torch.arange(3, 30).unsqueeze(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.bfloat16())
        torch.testing.assert_close(found.float()(ids).logits, model(ids).logits, atol=1e-6, rtol=1e-5)


def read_names(folder: Path) -> set[str]:
    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


@pytest.mark.parametrize("kind", [Q4_1, Q8_0])
def test_quantised_values_are_those_of_the_formula(tmp_path, kind):
    values = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    data = gguf_bytes({"general.architecture": "llama"}, {"w": (values, kind)})
    (tmp_path / "w.gguf").write_bytes(data)
    found = read_gguf(tmp_path / "w.gguf", "w.gguf").tensors["w"].read()
    np.testing.assert_allclose(found, values, atol=0.25 if kind == Q4_1 else 0.02)
    size = 20 if kind == Q4_1 else 34
    block = data[-6 * size :][:size]  # the first of the six
    scale = float(np.frombuffer(block, "<f2", 1)[0])
    if kind == Q8_0:
        expected = [scale * value for value in np.frombuffer(block, "i1", offset=2).tolist()]
    else:
        low = float(np.frombuffer(block, "<f2", 1, 2)[0])
        expected = [scale * (byte & 15) + low for byte in block[4:]] + [scale * (byte >> 4) + low for byte in block[4:]]
    np.testing.assert_allclose(found[0, :32], expected, rtol=1e-6)


def test_bfloat16_is_rounded_as_torch_rounds():
    values = np.random.default_rng(2).normal(size=4096).astype(np.float32) * 10.0 ** np.arange(-8, 8).repeat(256)
    values = np.concatenate([values, [0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8]]).astype(np.float32)  # with ties
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(to_bfloat16(values), expected)


def test_tokenizer_splits_digits_and_keeps_special_tokens_whole(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(converted(write_llama(tmp_path / "m.gguf", llama())))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("hell hell 12")) == [
        *("hell", "Ġhell", "Ġ", "1", "2")
    ]  # as GPT-2's pattern alone would not: it takes " 12" together
    assert tokenizer.encode("<|im_start|>he<|im_end|>")[::2] == [1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.decode(tokenizer.encode("he\nll 0")) == "he\nll 0"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "he"}], tokenize=False) == "he"


def test_progress_counts_tensors(tmp_path):
    write_llama(tmp_path / "m.gguf", llama())
    seen = []
    convert_llama(tmp_path / "m.gguf", tmp_path, lambda done, total: seen.append((done, total)))
    assert seen == [(number, 20) for number in range(1, 21)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"general.architecture": "qwen2"}, "has the architecture qwen2, not llama"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "the pre-tokeniser llama-bpe is not supported"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer llama with"),
        ({"llama.block_count": None}, "field llama.block_count is missing or invalid, got 'None'"),
        ({"tokenizer.ggml.tokens": "x"}, "field tokenizer.ggml.tokens is missing or invalid, got 'x'"),
    ],
)
def test_other_models_are_refused_by_name(tmp_path, fields, message):
    with pytest.raises(GGUFError, match=message):
        converted(write_llama(tmp_path / "m.gguf", llama(), **fields))


@pytest.mark.parametrize(("name", "value"), [("blk.0.attn_q.bias", 1.0), ("output_norm.weight", math.nan)])
def test_tensors_that_cannot_be_converted_are_named(tmp_path, name, value):
    fields = {
        "general.architecture": "llama", "llama.attention.head_count": 1, "llama.attention.head_count_kv": 1,
        "llama.embedding_length": 32, "llama.feed_forward_length": 1, "llama.context_length": 1, "llama.block_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1.0, "llama.rope.freq_base": 1.0, "tokenizer.chat_template": "",
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens(),
        "tokenizer.ggml.token_type": [1] * len(tokens()), "tokenizer.ggml.merges": ["h e"],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
    }  # fmt: skip
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(fields, {name: (np.full(32, value, np.float32), F32)}))
    with pytest.raises(GGUFError, match=name):
        converted(tmp_path / "m.gguf")


def test_quantised_rows_must_be_whole_blocks(tmp_path):
    data = gguf_bytes({"general.architecture": "llama"}, {"w": (np.ones((2, 32), np.float32), Q8_0)})
    wrong = data.replace(b"\x02\0\0\0\x20\0\0\0\0\0\0\0", b"\x02\0\0\0\x1f\0\0\0\0\0\0\0")
    (tmp_path / "w.gguf").write_bytes(wrong)
    with pytest.raises(GGUFError, match="is not a multiple of 32 wide"):
        read_gguf(tmp_path / "w.gguf", "w.gguf")
