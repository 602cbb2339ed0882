"""SAELens itself as the judge. It is too heavy to be a dependency: install sae-lens to run these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from steering.saes.loader import load_sae
from tests.steering.sae_files import as_tensor, residuals, sae_config, write_sae

sae_lens = pytest.importorskip("sae_lens", reason="sae-lens is not installed")


@pytest.mark.parametrize("architecture", ["standard", "jumprelu", "topk"])
@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("normalization", ["none", "constant_norm_rescale", "layer_norm"])
def test_reads_our_fixture_like_saelens(architecture, applied, normalization, tmp_path):
    config = sae_config(architecture, apply_b_dec_to_input=applied, normalize_activations=normalization)
    assert_same(write_sae(tmp_path, config))


def test_topk_ranked_by_decoder_norms(tmp_path):
    assert_same(write_sae(tmp_path, sae_config("topk", rescale_acts_by_decoder_norm=True)))


def test_flat_configuration(tmp_path):
    old = {
        "d_in": 12, "d_sae": 40, "hook_name": "blocks.1.hook_resid_post", "activation_fn_str": "topk",
        "activation_fn_kwargs": {"k": 5}, "dtype": "float32", "device": "cpu", "normalize_activations": "none",
    }  # fmt: skip
    assert_same(write_sae(tmp_path, old))


@pytest.mark.parametrize("kind", ["BatchTopK", "MatryoshkaBatchTopK", "TopK", "JumpReLU", "Standard"])
def test_reads_what_saelens_saves_for_inference(kind, tmp_path):
    config_class = getattr(sae_lens, f"{kind}TrainingSAEConfig")
    extra: dict[str, Any] = {"matryoshka_widths": [10, 40]} if kind.startswith("Matryoshka") else {}
    extra |= {"k": 5} if "TopK" in kind else {}
    torch.manual_seed(0)
    sae = getattr(sae_lens, f"{kind}TrainingSAE")(config_class(d_in=12, d_sae=40, **extra))
    with torch.no_grad():
        for parameter in sae.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter).abs())
        if hasattr(sae, "topk_threshold"):
            sae.topk_threshold.fill_(0.4)
    sae.cfg.metadata.hook_name = "blocks.1.hook_resid_post"
    sae.save_inference_model(tmp_path)
    assert_same(tmp_path)


def assert_same(folder: Path) -> None:
    theirs, ours, h = sae_lens.SAE.load_from_disk(folder), load_sae(folder), as_tensor(residuals())
    with torch.no_grad():
        expected = theirs.encode(h)
        reconstruction = theirs.decode(expected)
    assert (expected > 0).any()
    torch.testing.assert_close(ours.encode(h), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(ours.decode(expected, h), reconstruction, atol=1e-5, rtol=0)
