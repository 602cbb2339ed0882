"""The SAE of the real demo model: its files, and that it fits the model that it is shipped with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from inference.models import LanguageModel
from inference.registry.standalone_model import load_standalone
from steering.corpora.corpus import read_corpus, tokenise
from steering.demo.install import SMOLLM2
from steering.features.label_files import read_labels
from steering.measuring.measurement import measure_sae
from steering.sae_registry.registration import read_health
from steering.saes.loader import load_sae
from steering.saes.place import sae_place
from steering.saes.preview import preview_sae

FOLDER = SMOLLM2.folder / "sae"
HEALTH = json.loads((SMOLLM2.folder / "health.json").read_text("utf-8"))


def test_files():
    config = preview_sae(sae_place(FOLDER))
    assert config.site is not None
    assert str(config.site) == "layers.15.resid_post"
    assert (config.math.architecture, config.math.d_in, config.math.d_sae) == ("jumprelu", 576, 8192)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 40e6
    sae = load_sae(sae_place(FOLDER))
    torch.testing.assert_close(sae.decoder_norms(), torch.ones(8192), atol=2e-3, rtol=0)


def test_figures_are_published():
    health = read_health(SMOLLM2.folder / "health.json")
    assert health.fvu == HEALTH["fvu"] < 0.25
    assert health.dead_share == HEALTH["dead_share"] < 0.05
    losses = [HEALTH[name] for name in ("zero_loss", "spliced_loss", "model_loss")]
    assert HEALTH["loss_recovered"] == pytest.approx((losses[0] - losses[1]) / (losses[0] - losses[2]))
    assert HEALTH["loss_recovered"] > 0.9


def test_saelens_computes_the_same():
    sae_lens = pytest.importorskip("sae_lens", reason="sae-lens is not installed")
    theirs, ours = sae_lens.SAE.load_from_disk(FOLDER), load_sae(sae_place(FOLDER))
    direction = torch.randn(40, 576, generator=torch.Generator().manual_seed(0))
    h = ours.decoder_bias() + 120 * direction / direction.norm(dim=1, keepdim=True)
    with torch.no_grad():
        expected = theirs.encode(h)
        assert (expected > 0).any()
        scale = float(expected.max())
        torch.testing.assert_close(ours.encode(h) / scale, expected / scale, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.decode(expected, h) / scale, theirs.decode(expected) / scale, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_it_fits_the_model(smollm2_directory: Path):
    reader = load_standalone(LanguageModel(name="smollm2", source=str(smollm2_directory), dtype="bfloat16"))
    documents = tokenise(read_corpus(), reader.text, 1500)
    site = preview_sae(sae_place(FOLDER)).site
    assert site is not None
    measurement = measure_sae(load_sae(sae_place(FOLDER)), site, documents, reader)
    assert measurement.reconstruction.fvu is not None
    assert measurement.reconstruction.fvu < 0.35
    assert measurement.l0 is not None
    assert HEALTH["l0"] / 2 < measurement.l0 < 2 * HEALTH["l0"]


def test_features_have_the_units_of_strength():
    (file,) = SMOLLM2.folder.glob("features.json*")
    labels = read_labels(file, 8192)
    known = [label.max_activation for label in labels if label.max_activation]
    assert len(known) > 0.9 * 8192
    assert max(known) < 1000


def test_features_are_labelled():
    (file,) = SMOLLM2.folder.glob("features.json*")
    labels = [one.label for one in read_labels(file, 8192) if one.label]
    assert len(labels) > 0.85 * 8192
    for word in ("sea", "cook", "Python", "French", "war", "Christian", "marriage"):
        assert any(re.search(rf"\b{word}", label, re.IGNORECASE) for label in labels), word
