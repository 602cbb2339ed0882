"""Each format is recognised, previewed, and computes what its own project computes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from inference.interventions import Site
from steering.saes.formats.registry import FORMATS
from steering.saes.loader import load_sae
from steering.saes.preview import as_place, preview_sae, recognise, sae_checksum
from tests.steering.format_files import CASES, Case
from tests.steering.sae_files import D_IN, as_tensor, residuals


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_encode(case, tmp_path):
    written = case.write(tmp_path)
    h = residuals(200)
    expected = written.encode(h)
    active = (expected > 0).mean()
    assert 0 < active < 1
    np.testing.assert_allclose(load_sae(written.path).encode(as_tensor(h)).numpy(), expected, atol=1e-5)


def test_decode(case, tmp_path):
    written = case.write(tmp_path)
    h = residuals(200)
    a = written.encode(h)
    expected = written.decode(a, h)
    np.testing.assert_allclose(load_sae(written.path).decode(as_tensor(a), as_tensor(h)), expected, atol=1e-5)


def test_preview(case, tmp_path):
    written = case.write(tmp_path)
    config = preview_sae(written.path)
    assert (config.format, config.math.architecture, config.site) == (case.format, case.architecture, case.site)
    assert (config.model_name, config.math.d_in) == (case.model_name, D_IN)
    assert bool(config.input_hook) == ("transcoder" in case.architecture)


def test_only_one_format_recognises_the_files(case, tmp_path):
    place = as_place(case.write(tmp_path).path)
    assert [known.name for known in FORMATS if known.recognises(place)] == [case.format]


def test_key_is_the_checksum_of_the_preview(case, tmp_path):
    path = case.write(tmp_path).path
    assert load_sae(path).key == sae_checksum(path, preview_sae(path))


def test_listings_find_the_weights(case, tmp_path):
    """From the name alone, the sub-folder that has to be given."""
    path = case.write(tmp_path / "repository").path
    converter = recognise(as_place(path))
    weights = as_place(path).folder / converter.weights_file(as_place(path))
    name = weights.relative_to(tmp_path).as_posix()
    assert converter.place_of(name) == path.relative_to(tmp_path).as_posix()


def test_delta_is_the_difference_of_decodings(case, tmp_path):
    sae, h = load_sae(case.write(tmp_path).path), as_tensor(residuals())
    features = torch.tensor([3, 11])
    a = sae.encode(h)
    edited = a.clone()
    edited[:, features] = torch.tensor([2.5, 0.0])
    expected = sae.decode(edited, h) - sae.decode(a, h)
    np.testing.assert_allclose(sae.delta(edited[:, features] - a[:, features], features, h), expected, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "transcoder" in case.architecture])
def test_transcoders_read_before_the_mlp(name, tmp_path):
    sae = load_sae(CASES[name].write(tmp_path).path)
    assert not sae.reads_its_site
    assert sae.read_site(Site(3, "mlp_out")) == Site(3, sae.input_kind)
    assert sae.input_kind in {"mlp_in", "mlp_norm", "resid_mid"}
    h = as_tensor(residuals())
    np.testing.assert_allclose(sae.activations(h, torch.tensor([3, 0])), sae.encode(h)[:, [3, 0]], atol=1e-6)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "transcoder" not in case.architecture])
def test_activations_of_some_features_are_columns_of_encode(name, tmp_path):
    sae, h = load_sae(CASES[name].write(tmp_path).path), as_tensor(residuals())
    features = torch.tensor([7, 0, 39, 7])
    np.testing.assert_allclose(sae.activations(h, features), sae.encode(h)[:, features], atol=1e-6)


def test_a_dictionary_learning_autoencoder_has_decoder_rows_of_norm_1_as_its_library_loads_it(tmp_path):
    """Else a strength in raw units, and an activation on its dashboards, would mean something else here."""
    written = CASES["AutoEncoder"].write(tmp_path)
    sae, h = load_sae(written.path), residuals(50)
    np.testing.assert_allclose(sae.decoder_norms().numpy(), 1, atol=1e-6)
    stored = torch.load(written.path / "ae.pt", weights_only=True)
    norms = stored["decoder.weight"].double().norm(dim=0).numpy()
    assert not np.allclose(norms, 1, atol=0.1), "the file's rows are of other norms"
    np.testing.assert_allclose(sae.encode(as_tensor(h)).numpy(), written.encode(h), atol=1e-5)


@pytest.mark.parametrize("kind", ["AutoEncoder", "GatedAutoEncoder", "JumpReluAutoEncoder"])
def test_what_is_read_in_another_way_than_before_is_another_sae(kind, tmp_path):
    """A published profile names its SAE by checksum: it must not steer by another amount from one day to the next."""
    path = CASES[kind].write(tmp_path).path
    config = preview_sae(path)
    before = replace(config, math=replace(config.math, layout=f"dictionary-learning:{kind}"))
    assert sae_checksum(path, config) != sae_checksum(path, before)
