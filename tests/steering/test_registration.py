"""SAEs are registered when they fit the model, with all that profiles need to know."""

from __future__ import annotations

import json

import numpy as np
import pytest
from django.core.exceptions import ValidationError

from inference.files.sources import SourceError
from steering import services
from steering.errors import IncompatibleSAEError, InUseError
from steering.features.label_files import read_labels
from steering.models import SAE, Feature, FeatureEdit
from steering.sae_registry.registration import SAEHealth, SAELocation, inspect_sae, read_health
from steering.saes.errors import InvalidSAEError
from steering.spec.errors import InvalidSpecError
from tests.steering.conftest import write_model_config
from tests.steering.sae_files import random_weights, sae_config, write_sae


def test_row_describes_the_sae(sae, model, tmp_path):
    assert (sae.model, sae.source, sae.format, sae.architecture) == (
        model,
        str(tmp_path / "sae"),
        "saelens",
        "jumprelu",
    )
    assert (sae.layer, sae.site, sae.d_in, sae.d_sae) == (1, "resid_post", 12, 40)
    assert (sae.l0, sae.fvu, sae.mean_resid_norm) == (7.5, 0.2, 20.0)
    assert len(sae.checksum) == 64


def test_every_feature_has_a_row_with_its_norm(sae):
    features = list(sae.features.order_by("index"))
    assert [feature.index for feature in features] == list(range(40))
    norms = np.linalg.norm(random_weights()["W_dec"], axis=-1)
    np.testing.assert_allclose([feature.decoder_norm for feature in features], norms, rtol=1e-6)
    assert (features[0].label, features[0].max_activation, features[0].density) == ("sad rainy weather", 4.0, 0.02)
    assert features[0].top_tokens == [" rain", " storm"]
    assert (features[5].label, features[5].max_activation) == ("", None)


def test_layer_and_site_can_be_given(model, tmp_path):
    location = SAELocation(str(write_sae(tmp_path / "sae", sae_config(metadata={}))))
    with pytest.raises(IncompatibleSAEError, match="does not name a hook; give the layer and the site"):
        inspect_sae(location, model)
    assert str(inspect_sae(location, model, layer=2, site="mlp_out").site) == "layers.2.mlp_out"


@pytest.mark.parametrize("layer", [3, -1, 99])
def test_layer_that_the_model_has_not(layer, model, tmp_path):
    location = SAELocation(str(write_sae(tmp_path / "sae")))
    with pytest.raises(IncompatibleSAEError, match=f"layers 0 to 2, got layer {layer}"):
        services.register_sae(name="x", model=model, location=location, layer=layer)


def test_width_that_does_not_fit(model, tmp_path):
    location = SAELocation(str(write_sae(tmp_path / "sae", sae_config(d_in=16), random_weights(d_in=16))))
    with pytest.raises(IncompatibleSAEError, match=r"16 wide .* but the model is 12 wide"):
        services.register_sae(name="x", model=model, location=location)


def test_attention_sites_are_as_wide_as_the_heads(model, tmp_path):
    write_model_config(tmp_path / "model", head_dim=4)
    location = SAELocation(str(write_sae(tmp_path / "sae", sae_config(d_in=16), random_weights(d_in=16))))
    assert inspect_sae(location, model, site="attn_out").config.math.d_in == 16


def test_text_part_of_a_larger_configuration(model, tmp_path):
    text = {"hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 4}
    (tmp_path / "model" / "config.json").write_text(json.dumps({"text_config": text}))
    assert inspect_sae(SAELocation(str(write_sae(tmp_path / "sae"))), model).site.layer == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"hidden_size": 12}'])
def test_model_without_a_usable_configuration(text, model, tmp_path):
    (tmp_path / "model" / "config.json").write_text(text)
    with pytest.raises(IncompatibleSAEError):
        inspect_sae(SAELocation(str(write_sae(tmp_path / "sae"))), model)


def test_unknown_source(model, tmp_path):
    with pytest.raises(SourceError, match=r"The directory .* does not exist"):
        services.register_sae(name="x", model=model, location=SAELocation(str(tmp_path / "none")))


def test_damaged_weights_leave_no_row(model, tmp_path):
    folder = write_sae(tmp_path / "sae")
    (folder / "sae_weights.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidSAEError):
        services.register_sae(name="x", model=model, location=SAELocation(str(folder)))
    assert not SAE.objects.exists()


def test_subfolder(model, tmp_path):
    write_sae(tmp_path / "saes" / "layer_1")
    location = SAELocation(str(tmp_path / "saes"), subfolder="layer_1")
    assert services.register_sae(name="x", model=model, location=location).subfolder == "layer_1"


def test_same_sae_twice_at_one_place(sae, model, tmp_path):
    with pytest.raises(ValidationError, match="already registered"):
        services.register_sae(name="again", model=model, location=SAELocation(sae.source))
    assert services.register_sae(name="elsewhere", model=model, location=SAELocation(sae.source), layer=2)


def test_moved_files_are_found_again(sae, tmp_path):
    (tmp_path / "sae").rename(tmp_path / "moved")
    services.move_sae(sae=sae, location=SAELocation(str(tmp_path / "moved")))
    assert SAE.objects.get().source == str(tmp_path / "moved")


def test_other_files_are_not_taken_for_moved_ones(sae, tmp_path):
    other = write_sae(tmp_path / "b", weights=random_weights(4))
    with pytest.raises(InvalidSAEError, match="have changed since it was registered"):
        services.move_sae(sae=sae, location=SAELocation(str(other)))
    assert SAE.objects.get().source == str(tmp_path / "sae")


class TestDeletion:
    def test_unused(self, sae):
        services.delete_sae(sae=sae)
        assert not Feature.objects.exists()

    def test_used_by_a_draft(self, sae, profile):
        with pytest.raises(InUseError, match="used by the draft of gloomy; remove those edits first"):
            services.delete_sae(sae=sae)

    def test_needed_by_a_version(self, sae, profile):
        services.publish_profile(profile=profile)
        FeatureEdit.objects.all().delete()
        with pytest.raises(InUseError, match="used by the published profile gloomy@1"):
            services.delete_sae(sae=sae)


class TestLabels:
    def read(self, tmp_path, value):
        path = tmp_path / "features.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        return read_labels(path, 40)

    def test_read(self, tmp_path):
        (label,) = self.read(tmp_path, [{"index": 3, "label": "rain", "max_activation": 2, "top_tokens": ["a"]}])
        assert (label.index, label.label, label.max_activation, label.density) == (3, "rain", 2.0, None)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ("{", "is not valid JSON"),
            ({}, r"labels\[0\].index: Expected an integer, got nothing"),
            ([{"index": 40}], r"labels\[0\].index: Expected an integer from 0 to 39, got 40"),
            ([{"label": "x"}], r"labels\[0\].index: Expected an integer, got nothing"),
            ([{"index": 1}, {"index": 1}], r"labels\[1\].index: Feature 1 is listed twice"),
            ([{"index": 1, "label": 3}], r"labels\[0\].label: Expected a string"),
            ([{"index": 1, "max_activation": -1}], "at least 0"),
            ('[{"index": 1, "density": NaN}]', "Expected a finite number"),
            ([{"index": 1, "colour": "red"}], "Unknown field"),
            ([{"index": 1, "top_tokens": "abc"}], "Expected a list of at most"),
        ],
    )
    def test_wrong(self, value, message, tmp_path):
        with pytest.raises(InvalidSpecError, match=message):
            self.read(tmp_path, value)


class TestHealth:
    def test_read(self, tmp_path):
        (tmp_path / "h.json").write_text(json.dumps({"l0": 12, "fvu": 0.1, "mean_resid_norm": 9.5, "layer": 2}))
        assert read_health(tmp_path / "h.json") == SAEHealth(12.0, 0.1, 9.5)

    @pytest.mark.parametrize(
        "text", ["[]", '{"l0": "12"}', '{"fvu": NaN}', '{"mean_resid_norm": -1}', '{"l0": true}', "{"]
    )
    def test_wrong(self, text, tmp_path):
        (tmp_path / "h.json").write_text(text)
        with pytest.raises(InvalidSAEError):
            read_health(tmp_path / "h.json")
