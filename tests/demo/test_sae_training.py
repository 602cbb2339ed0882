"""The SAE: TopK by its formula, a training that finds planted directions, files that read back."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tools.demo_model.recipe import SaeRecipe
from tools.demo_model.sae import TopKSae, chunks, keep_top, load_sae, save_sae
from tools.demo_model.sae_training import SaeTrainer, measure_health

TINY = replace(SaeRecipe(), d_sae=48, k=3, tokens=60_000, batch=256, dead_after_batches=20)


def planted(count=6000, d_in=16, sources=24, active=3, seed=0):
    """Vectors [count, d_in] that are sparse sums of `sources` unit directions, and the directions [sources, d_in]."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.nn.functional.normalize(torch.randn(sources, d_in, generator=generator), dim=1)
    weights = torch.zeros(count, sources)
    picked = torch.rand(count, sources, generator=generator).topk(active, dim=1).indices
    weights.scatter_(1, picked, 2 + torch.rand(count, active, generator=generator))
    return weights @ directions + 0.5, directions


@pytest.fixture(scope="module")
def trained():
    x, _ = planted()
    trainer = SaeTrainer(x, TINY, seed=0)
    before = measure_health(trainer.finish(), x)
    trainer.train(lambda _line: None)
    return trainer.finish(), before, x


def test_keep_top_keeps_k_and_drops_negatives():
    pre = torch.tensor([[3.0, -1.0, 2.0, 1.0], [-1.0, -2.0, -3.0, 0.5]])
    assert keep_top(pre, 2).tolist() == [[3, 0, 2, 0], [0, 0, 0, 0.5]]


def test_encode_and_decode_follow_the_formula():
    torch.manual_seed(0)
    sae = TopKSae(torch.randn(4, 9), torch.randn(9), torch.randn(9, 4), torch.randn(4), k=2)
    x = torch.randn(4)
    pre = [float((x - sae.b_dec) @ sae.W_enc[:, i] + sae.b_enc[i]) for i in range(9)]
    top = sorted(range(9), key=pre.__getitem__)[-2:]
    expected = [max(0.0, pre[i]) if i in top else 0.0 for i in range(9)]
    a = sae.encode(x[None])
    assert a[0].tolist() == pytest.approx(expected, abs=1e-5)
    by_hand = sum(expected[i] * sae.W_dec[i] for i in range(9)) + sae.b_dec
    assert torch.allclose(sae.decode(a)[0], by_hand, atol=1e-5)


def test_training_explains_the_variance(trained):
    sae, before, x = trained
    health = measure_health(sae, x)
    assert health.fvu < 0.5 * before.fvu
    assert health.fvu < 0.25
    assert health.l0 <= TINY.k


def test_training_finds_planted_directions(trained):
    sae, _, _ = trained
    _, directions = planted()
    best = (directions @ sae.W_dec.T).max(1).values  # [sources]
    assert best.median() > 0.8


def test_decoder_rows_have_length_one(trained):
    assert torch.allclose(trained[0].W_dec.norm(dim=1), torch.ones(TINY.d_sae), atol=1e-5)


def test_equal_seeds_train_equal_saes():
    x, _ = planted(count=500)
    quick = replace(TINY, tokens=2048)
    saes = []
    for _ in range(2):
        trainer = SaeTrainer(x, quick, seed=5)
        trainer.train(lambda _line: None)
        saes.append(trainer.finish())
    assert torch.equal(saes[0].W_dec, saes[1].W_dec)
    assert torch.equal(saes[0].b_enc, saes[1].b_enc)


def test_the_scale_of_the_pool_is_folded_back():
    x, _ = planted(count=500)
    fresh = SaeTrainer(x, TINY, seed=0)
    large = SaeTrainer(x * 100, TINY, seed=0)
    assert torch.allclose(large.finish().encode(x * 100), fresh.finish().encode(x) * 100, rtol=1e-3, atol=1e-2)


def test_health_of_a_perfect_and_of_a_blind_sae():
    x = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    both_signs = torch.cat([torch.eye(4), -torch.eye(4)], dim=1)  # [4, 8]
    perfect = TopKSae(both_signs, torch.zeros(8), both_signs.T.contiguous(), torch.zeros(4), k=4)
    assert measure_health(perfect, x).fvu == pytest.approx(0, abs=1e-6)
    blind = TopKSae(torch.zeros(4, 8), torch.zeros(8), torch.zeros(8, 4), x.mean(0), k=4)
    health = measure_health(blind, x)
    assert health.fvu == pytest.approx(1, abs=1e-5)
    assert health.dead_share == 1
    assert health.l0 == 0


def test_health_reports_the_mean_norm():
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
    sae = TopKSae(torch.zeros(2, 4), torch.zeros(4), torch.zeros(4, 2), torch.zeros(2), k=1)
    assert measure_health(sae, x).mean_resid_norm == pytest.approx(3)
    assert measure_health(sae, x).tokens == 2


def test_chunks_cover_everything_in_order():
    x = torch.arange(10)
    assert torch.equal(torch.cat(list(chunks(x, 3))), x)


def test_a_saved_sae_is_read_back(trained, tmp_path):
    sae, _, x = trained
    save_sae(sae, tmp_path, layer=2, model_name="tiny", context_size=64)
    again = load_sae(tmp_path)
    assert torch.equal(again.encode(x[:50]), sae.encode(x[:50]))


def test_the_files_are_in_the_saelens_layout(trained, tmp_path):
    save_sae(trained[0], tmp_path, layer=2, model_name="tiny", context_size=64)
    config = json.loads((tmp_path / "cfg.json").read_text())
    assert config["architecture"] == "topk"
    assert (config["d_in"], config["d_sae"], config["k"]) == (16, 48, 3)
    assert config["apply_b_dec_to_input"] is True
    assert config["normalize_activations"] == "none"
    assert config["metadata"]["hook_name"] == "blocks.2.hook_resid_post"
    assert config["metadata"]["hf_hook_name"] == "model.layers.2.output"
    weights = load_file(tmp_path / "sae_weights.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in weights.items()} == {
        "W_enc": (16, 48), "b_enc": (48,), "W_dec": (48, 16), "b_dec": (16,),
    }  # fmt: skip


def test_another_architecture_is_refused(tmp_path):
    (tmp_path / "cfg.json").write_text('{"architecture": "gated"}')
    with pytest.raises(ValueError, match="gated"):
        load_sae(tmp_path)
