"""A registered SAE is measured on a model of transformers, and what was found is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from django.core.management import CommandError, call_command
from transformers import AutoModelForCausalLM

from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.standalone_model import load_standalone
from steering import services
from steering.corpora.corpus import Corpus, CorpusError, Document, read_corpus
from steering.demo.install import install_demo
from steering.features.labels import FeatureLabel
from steering.models import SAE, Feature
from steering.sae_registry.health import judge, summary
from steering.sae_registry.health_check import MeasureParams, check_sae
from steering.sae_registry.registration import SAELocation
from tests.builders import build_model
from tests.steering.sae_files import NumpySAE, random_weights, sae_config, write_sae

pytestmark = pytest.mark.slow

CORPUS = Corpus("tales", "abc", tuple(Document(text=t) for t in ("The cat sat by the sea.", "A sad owl flew home.")))


@pytest.fixture
def model(db, tmp_path):
    return LanguageModel.objects.create(name="tiny", source=str(build_model(tmp_path / "model")), dtype="float32")


@pytest.fixture
def sae(model, tmp_path):
    config = sae_config(d_in=32)
    folder = write_sae(tmp_path / "sae", config, random_weights(d_in=32))
    labels = (FeatureLabel(0, "rain", 4.0, 0.02, (" rain",)),)
    return services.register_sae(name="tiny-sae", model=model, location=SAELocation(str(folder)), labels=labels)


def test_offline_model_reads_what_transformers_computes(model):
    offline = load_standalone(model)
    ids = offline.text.encode("The cat sat by the sea.")
    sites = (Site(1), Site(2, "resid_pre"), Site(0, "mlp_out"), Site(3, "attn_out"))
    found = offline.read(ids, sites)
    plain = AutoModelForCausalLM.from_pretrained(model.source, dtype=torch.float32)
    with torch.no_grad():
        states = plain.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    torch.testing.assert_close(found[Site(1)], states[2][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[Site(2, "resid_pre")], states[2][0], atol=1e-5, rtol=1e-5)
    assert [found[site].shape for site in sites] == [(len(ids), 32)] * 4


def test_figures_are_kept(model, sae):
    offline = load_standalone(model)
    done: list[int] = []
    checked = check_sae(sae=sae, reader=offline, params=MeasureParams(CORPUS), progress=lambda n, total: done.append(n))
    assert done == [0, 1, 2, 2, 2]  # the loss is measured at the end
    read = [offline.read(offline.text.encode(d.text), (Site(1),))[Site(1)] for d in CORPUS.documents]
    h = torch.cat([residuals[1:] for residuals in read])  # texts begin with no special token here
    a = NumpySAE(sae_config(d_in=32), random_weights(d_in=32)).encode(h.numpy().astype(np.float64))
    assert checked.l0 == pytest.approx((a > 0).sum() / len(h))
    assert (checked.measured_tokens, checked.corpus) == (len(h), "tales abc")
    assert checked.measured_sinks == len(read)
    norms = h.norm(dim=1)
    assert checked.mean_resid_norm == pytest.approx(float(norms.mean()), rel=1e-4)
    assert checked.median_resid_norm == pytest.approx(float(norms.median()), rel=1e-4)
    assert checked.typical_norm == checked.median_resid_norm
    assert f"{len(read)} attention sinks excluded" in judge(checked)[-1].text
    assert checked.measured_at is not None
    strongest = int(a.max(0)[1:].argmax()) + 1
    feature = sae.features.get(index=strongest)
    assert feature.max_activation == pytest.approx(a[:, strongest].max(), rel=1e-4)
    assert feature.max_activation_source == Feature.Source.MEASURED
    assert feature.density == pytest.approx((a[:, strongest] > 0).mean())
    assert "".join(feature.examples[0]["tokens"]) in {d.text for d in CORPUS.documents}
    assert max(feature.examples[0]["values"]) == pytest.approx(feature.max_activation, abs=1e-3)
    assert feature.examples_source == "tales abc"
    assert sum(feature.histogram["counts"]) == (a[:, strongest] > 0).sum()
    assert feature.cofiring["num_tokens"] == len(h)
    phi = np.corrcoef(a > 0, rowvar=False)
    for index, value, tokens in feature.cofiring["features"]:
        assert tokens == (a[:, [strongest, index]] > 0).all(1).sum()
        assert value == pytest.approx(phi[strongest, index], abs=1e-3)
    assert any(row.cofiring["features"] for row in sae.features.all())
    assert sum(band["num_texts"] for band in feature.example_bands) == len(feature.examples)


def test_imported_numbers_stay_unless_they_are_to_be_replaced(model, sae):
    offline = load_standalone(model)
    check_sae(sae=sae, reader=offline, params=MeasureParams(CORPUS))
    feature = sae.features.get(index=0)
    assert (feature.max_activation, feature.density, feature.top_tokens) == (4.0, 0.02, [" rain"])
    assert feature.max_activation_source == Feature.Source.IMPORT
    assert feature.histogram is not None
    check_sae(sae=sae, reader=offline, params=MeasureParams(CORPUS, replaces_imports=True))
    feature.refresh_from_db()
    assert (feature.max_activation_source, feature.label) == (Feature.Source.MEASURED, "rain")
    assert feature.max_activation != 4.0


def test_import_of_another_scale_is_told(model, sae):
    offline = load_standalone(model)
    check_sae(sae=sae, reader=offline, params=MeasureParams(CORPUS))
    for row in sae.features.filter(max_activation__isnull=False):
        row.max_activation, row.max_activation_source = row.max_activation * 50, Feature.Source.IMPORT
        row.save()
    checked = check_sae(sae=sae, reader=offline, params=MeasureParams(CORPUS))
    assert any("typically 50 times the measured ones" in cause for cause in checked.causes)


def test_dead_features_have_no_maximum(model, sae):
    checked = check_sae(sae=sae, reader=load_standalone(model), params=MeasureParams(CORPUS))
    dead = sae.features.filter(density=0)
    assert dead.count() == round(checked.dead_share * 40)
    assert not dead.exclude(max_activation=None).exists()


class TestDemo:
    """The shipped SAE is good on the shipped corpus, and a wrong registration is found out."""

    @pytest.fixture
    def demo(self, db):
        return install_demo()

    def test_good(self, demo):
        checked = check_sae(
            sae=demo.sae, reader=load_standalone(demo.model), params=MeasureParams(read_corpus(), 6_000)
        )
        assert checked.fvu is not None
        assert checked.fvu < 0.25
        assert checked.l0 == pytest.approx(16, abs=0.5)
        assert checked.causes == []
        assert summary(checked).text == "good"

    def test_wrong_layer(self, demo):
        SAE.objects.filter(pk=demo.sae.pk).update(layer=4)
        demo.sae.refresh_from_db()
        checked = check_sae(
            sae=demo.sae, reader=load_standalone(demo.model), params=MeasureParams(read_corpus(), 3_000)
        )
        assert summary(checked).text == "looks wrong"
        assert "at layer 2 (resid_post): check the layer" in checked.causes[0]
        assert any("layer 2 (resid_post)" in verdict.text for verdict in judge(checked))


class TestCommand:
    def test_measures(self, sae, tmp_path, capsys):
        (tmp_path / "c.txt").write_text("The cat sat by the sea.\n\nA happy fox ran over the hill.")
        call_command("check_sae", "tiny-sae", corpus=str(tmp_path / "c.txt"))
        out = capsys.readouterr().out
        assert "2 of 2 texts" in out
        assert "Measured on 20" in out

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": "none"}, "The SAE none does not exist"),
            ({"corpus": "/no/such.txt"}, "The file /no/such.txt does not exist"),
            ({"tokens": 0}, "--tokens must be between 1"),
        ],
    )
    def test_refusals(self, options, message, sae):
        with pytest.raises(CommandError, match=message):
            call_command("check_sae", options.pop("name", "tiny-sae"), **options)

    def test_model_that_is_gone(self, sae):
        LanguageModel.objects.update(source="/no/such/model")
        with pytest.raises(CommandError, match=r"The directory .* does not exist"):
            call_command("check_sae", "tiny-sae")


def test_private_corpus_gives_examples_alone(model, sae):
    """Nothing else of it is kept, and what everybody sees stays."""
    offline = load_standalone(model)
    check_sae(sae=sae, reader=offline, params=MeasureParams(CORPUS))
    before = list(sae.features.order_by("index").values("max_activation", "density", "examples", "top_tokens"))
    private = Corpus("requests", "x", (Document(text="Nobody shall know of the sun."),), still_allowed=lambda: True)
    checked = check_sae(sae=sae, reader=offline, params=MeasureParams(private, replaces_imports=True))
    assert checked.corpus == "tales abc"
    assert list(sae.features.order_by("index").values(*before[0])) == before
    texts = {"".join(one["tokens"]) for row in sae.features.all() for one in row.traffic_examples}
    assert texts == {"Nobody shall know of the sun."}


def test_private_corpus_that_may_not_be_kept_any_more(model, sae):
    """Whoever shared its texts has thought better of it while they were measured."""
    asked: list[bool] = []
    private = Corpus("requests", "x", (Document(text="The sun."),), still_allowed=lambda: bool(asked.append(True)))
    with pytest.raises(CorpusError, match="nothing was stored"):
        check_sae(sae=sae, reader=load_standalone(model), params=MeasureParams(private))
    assert asked == [True]
    assert not sae.features.exclude(traffic_examples=[]).exists()
