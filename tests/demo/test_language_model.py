"""The language model's training: packed rows, the learning rate, a loss that falls, equal runs for equal seeds."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tools.demo_model.corpus import write_documents
from tools.demo_model.language_model import build_model, computes_bfloat16, learning_rate_share, pack_rows, train_model
from tools.demo_model.recipe import DemoRecipe, quick_recipe
from tools.demo_model.residual import collect_residuals, read_residuals
from tools.demo_model.stages import round_to_bfloat16, stream_seed


def test_rows_start_with_bos_and_are_full(tiny_tokenizer):
    rows = pack_rows(write_documents(0), tiny_tokenizer.backend_tokenizer, 64, 5)
    assert rows.shape == (5, 64)
    assert (rows[:, 0] == tiny_tokenizer.bos_token_id).all()


def test_the_learning_rate_warms_up_and_falls():
    shares = [learning_rate_share(step, 100, 10) for step in range(100)]
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == pytest.approx(1)
    assert set(shares[10:60]) == {1}
    assert shares[10:] == sorted(shares[10:], reverse=True)
    assert shares[-1] < 0.06


def train_quick(tokenizer, tokens=6_000):
    recipe = replace(quick_recipe().model, tokens=tokens, tokens_per_step=1024, learning_rate=1e-2)
    model = build_model(recipe, bos=1, eos=[3, 0], pad=0, seed=1)
    lines: list[str] = []
    loss = train_model(model, recipe, write_documents(0), tokenizer.backend_tokenizer, lines.append)
    return model, loss, lines


def test_training_lowers_the_loss_and_is_repeatable(tiny_tokenizer):
    first, loss, lines = train_quick(tiny_tokenizer)
    second, again, _ = train_quick(tiny_tokenizer)
    assert loss < 6.3
    assert loss == again
    assert torch.equal(first.model.embed_tokens.weight, second.model.embed_tokens.weight)
    assert lines[-1].startswith("model: step 5/5")


def test_bfloat16_is_asked_for_only_where_the_processor_has_it():
    flags = Path("/proc/cpuinfo").read_text("utf-8") if Path("/proc/cpuinfo").is_file() else ""
    if "avx2" not in flags:
        pytest.skip("only x86 says in /proc/cpuinfo what it has")
    assert not computes_bfloat16() or "avx512" in flags or "avx_ne_convert" in flags


def test_rounded_weights_survive_bfloat16():
    model = build_model(quick_recipe().model, bos=1, eos=[3], pad=0, seed=0)
    frequencies = model.model.rotary_emb.inv_freq.clone()
    round_to_bfloat16(model)
    assert all(torch.equal(weight, weight.bfloat16().float()) for weight in model.parameters())
    assert torch.equal(model.model.rotary_emb.inv_freq, frequencies)


def test_residuals_are_the_layers_output(tiny_model):
    rows = torch.arange(4, 24).reshape(2, 10)
    with torch.no_grad():
        states = tiny_model.model(input_ids=rows, output_hidden_states=True).hidden_states
    assert torch.allclose(read_residuals(tiny_model, 1, rows), states[2], atol=1e-6)


def test_reading_residuals_leaves_no_hook(tiny_model):
    before = len(tiny_model.model.layers[1]._forward_hooks)
    read_residuals(tiny_model, 1, torch.arange(4, 14)[None])
    assert len(tiny_model.model.layers[1]._forward_hooks) == before


def test_collected_residuals_leave_special_tokens_out(tiny_model, tiny_tokenizer):
    special = tiny_tokenizer.all_special_ids
    x, ids = collect_residuals(tiny_model, 1, write_documents(0), tiny_tokenizer.backend_tokenizer, 100, special)
    assert len(x) == len(ids) >= 100
    assert not torch.isin(ids, torch.tensor(special)).any()


def test_streams_have_seeds_of_their_own():
    recipe = DemoRecipe()
    assert len({stream_seed(recipe, stream) for stream in range(6)}) == 6
    assert stream_seed(recipe, 0) != stream_seed(replace(recipe, seed=8), 0)
