"""Encoding and decoding equal the published formulas."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from steering.saes.loader import load_sae
from tests.steering.sae_files import D_SAE, NumpySAE, as_tensor, random_weights, residuals, sae_config, write_sae

NORMALIZATIONS = ("none", "constant_norm_rescale", "layer_norm")
CONFIGS: list[dict[str, Any]] = [
    sae_config(architecture, normalize_activations=normalization, apply_b_dec_to_input=applied)
    for architecture in ("standard", "jumprelu", "topk")
    for normalization in NORMALIZATIONS
    for applied in (True, False)
] + [sae_config("topk", rescale_acts_by_decoder_norm=True)]


def label(config: dict[str, Any]) -> str:
    b_dec = "b_dec" if config["apply_b_dec_to_input"] else "no_b_dec"
    rescaled = "-rescaled" if config.get("rescale_acts_by_decoder_norm") else ""
    return f"{config['architecture']}-{config['normalize_activations']}-{b_dec}{rescaled}"


@pytest.mark.parametrize("config", CONFIGS, ids=label)
class TestFormulas:
    def test_encode(self, config, tmp_path):
        sae, oracle, h = load_sae(write_sae(tmp_path, config)), NumpySAE(config, random_weights()), residuals()
        expected = oracle.encode(h)
        assert (expected > 0).any()
        np.testing.assert_allclose(sae.encode(as_tensor(h)).numpy(), expected, atol=1e-5)

    def test_decode(self, config, tmp_path):
        sae, oracle, h = load_sae(write_sae(tmp_path, config)), NumpySAE(config, random_weights()), residuals()
        a = oracle.encode(h)
        np.testing.assert_allclose(sae.decode(as_tensor(a), as_tensor(h)).numpy(), oracle.decode(a, h), atol=1e-5)

    def test_activations_of_some_features_are_columns_of_encode(self, config, tmp_path):
        sae, h = load_sae(write_sae(tmp_path, config)), as_tensor(residuals())
        features = torch.tensor([7, 0, D_SAE - 1, 7])
        np.testing.assert_allclose(sae.activations(h, features), sae.encode(h)[:, features], atol=1e-6)

    def test_delta_is_the_difference_of_decodings(self, config, tmp_path):
        """``decode(a') + error == h + delta(a' - a)``, which is what makes editing in delta form exact."""
        sae, h = load_sae(write_sae(tmp_path, config)), as_tensor(residuals())
        features = torch.tensor([3, 11])
        a = sae.encode(h)
        edited = a.clone()
        edited[:, features] = torch.tensor([2.5, 0.0])
        error = h - sae.decode(a, h)
        through_decoder = sae.decode(edited, h) + error
        through_delta = h + sae.delta(edited[:, features] - a[:, features], features, h)
        np.testing.assert_allclose(through_delta, through_decoder, atol=1e-5)

    def test_reads_half_precision_residuals_in_float32(self, config, tmp_path):
        sae, h = load_sae(write_sae(tmp_path, config)), as_tensor(residuals()).to(torch.bfloat16)
        assert sae.encode(h).dtype == torch.float32
        torch.testing.assert_close(sae.encode(h), sae.encode(h.float()))


def test_topk_keeps_exactly_the_k_largest(tmp_path):
    """A top-k among the edited features only would find many more hits."""
    sae, h = load_sae(write_sae(tmp_path, sae_config("topk"))), as_tensor(residuals(400))
    few = torch.arange(4)
    hits = (sae.activations(h, few) > 0).sum()
    among_themselves = 400 * 4  # k is 5: every positive one of four features would survive
    assert 0 < hits < among_themselves / 4
    assert ((sae.encode(h) > 0).sum(dim=-1) <= 5).all()


def test_jumprelu_threshold_is_strict(tmp_path):
    weights = random_weights()
    weights["W_enc"][:] = 0
    weights["b_enc"][:] = weights["threshold"]
    weights["b_enc"][3] = np.nextafter(np.float32(weights["threshold"][3]), np.float32(9))
    sae = load_sae(write_sae(tmp_path, weights=weights))
    fires = sae.encode(as_tensor(residuals(2)))[0] > 0
    assert fires.nonzero().flatten().tolist() == [3]


def test_negative_threshold_adds_no_negative_activation(tmp_path):
    weights = random_weights()
    weights["threshold"][:] = -1
    sae = load_sae(write_sae(tmp_path, weights=weights))
    assert (sae.encode(as_tensor(residuals())) >= 0).all()


@pytest.mark.parametrize("architecture", ["standard", "topk"])
def test_average_scaling_is_folded(architecture, tmp_path):
    config = sae_config(architecture, normalize_activations="expected_average_only_in")
    (tmp_path / "activation_scaler.json").write_text(json.dumps({"scaling_factor": 2.5}))
    sae, h = load_sae(write_sae(tmp_path, config)), residuals()
    # Scaling the input by hand and un-scaling the output gives the same.
    plain = NumpySAE(sae_config(architecture), random_weights())
    a = plain.encode(h * 2.5)
    np.testing.assert_allclose(sae.encode(as_tensor(h)).numpy(), a, atol=1e-5)
    np.testing.assert_allclose(
        sae.decode(as_tensor(a), as_tensor(h)).numpy(), plain.decode(a, h * 2.5) / 2.5, atol=1e-5
    )
    assert not sae.is_normalized


@pytest.mark.parametrize("normalization", NORMALIZATIONS[1:])
def test_zero_residual_gives_no_nan(normalization, tmp_path):
    sae = load_sae(write_sae(tmp_path, sae_config(normalize_activations=normalization)))
    h = torch.zeros(1, sae.d_in)
    assert torch.isfinite(sae.decode(sae.encode(h), h)).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_any_float_type_are_computed_in_float32(dtype, tmp_path):
    sae = load_sae(write_sae(tmp_path, dtype=dtype))
    assert sae.encode(as_tensor(residuals())).dtype == torch.float32
    assert sae.decoder_row(0).dtype == torch.float32


def test_old_flat_configuration_means_the_same(tmp_path):
    old = {
        "d_in": 12, "d_sae": 40, "hook_point": "blocks.1.hook_resid_post", "activation_fn_str": "relu",
        "normalize_activations": None, "dtype": "torch.float32", "architecture": "standard", "prepend_bos": True,
    }  # fmt: skip
    sae, h = load_sae(write_sae(tmp_path, old)), residuals()
    expected = NumpySAE(sae_config("standard"), random_weights()).encode(h)
    np.testing.assert_allclose(sae.encode(as_tensor(h)).numpy(), expected, atol=1e-5)


def test_old_topk_takes_k_from_the_activation_function(tmp_path):
    old = {
        "d_in": 12, "d_sae": 40, "hook_name": "blocks.1.hook_resid_post", "activation_fn": "topk",
        "activation_fn_kwargs": {"k": 5}, "dtype": "float32",
    }  # fmt: skip
    sae, h = load_sae(write_sae(tmp_path, old)), residuals()
    expected = NumpySAE(sae_config("topk"), random_weights()).encode(h)
    np.testing.assert_allclose(sae.encode(as_tensor(h)).numpy(), expected, atol=1e-5)


def test_memory_is_what_the_weights_take(tmp_path):
    sae = load_sae(write_sae(tmp_path))
    assert sae.num_bytes == 4 * sum(value.size for value in random_weights().values())


@pytest.mark.parametrize("architecture", ["standard", "jumprelu", "topk"])
def test_weights_loaded_in_inference_mode_can_be_differentiated_through(architecture: str, tmp_path):
    """The first use of an SAE may be a search of similar features, the next one an attribution."""
    with torch.inference_mode():
        sae = load_sae(write_sae(tmp_path, sae_config(architecture)))
        copied = sae._on(torch.device("meta"))
    assert not any(tensor.is_inference() for part in (sae.weights, copied) for tensor in part.tensors().values())
    h = as_tensor(residuals())
    activations = sae.encode(h).requires_grad_()
    (slope,) = torch.autograd.grad(sae.decode(activations, h).sum(), activations)
    np.testing.assert_allclose(slope[0], sae.weights.W_dec.sum(1), rtol=1e-4, atol=1e-5)
