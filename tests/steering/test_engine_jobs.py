"""Jobs that need the engine, on the engine: an SAE is measured, labels are embedded."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from django.core.management import call_command
from transformers import AutoTokenizer

from core.runtime import runtime
from inference import services as inference_services
from inference.client import ENGINE_CLIENT, EngineDownError, LocalEngineClient, Request
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.event_stream import LocalEventStream
from inference.interventions import Site
from inference.registry.registry import MODEL_REGISTRY, ModelRegistry
from inference.registry.standalone_model import load_standalone
from jobs.errors import JobCancelled
from steering import services
from steering.errors import SteeringError
from steering.features.labels import FeatureLabel
from steering.features.semantic_search import run_embed_labels
from steering.models import Feature, LabelEmbedding
from steering.residuals import open_engine_reader
from steering.sae_registry.jobs import run_health
from steering.sae_registry.registration import SAELocation
from tests.builders import build_model
from tests.embedding_builders import build_embedder, reference_vector
from tests.steering.sae_files import random_weights, sae_config, write_sae
from tests.steering.test_jobs import RecordedJob

pytestmark = pytest.mark.django_db(transaction=True)
LOSSES = ("model_loss", "spliced_loss", "zero_loss", "mean_loss")
LABELS = (FeatureLabel(0, "rain"), FeatureLabel(1, "the cat sat"), FeatureLabel(7, "the sea", description="and waves"))


class PicklingClient(LocalEngineClient):
    """Takes only what an engine in another process could get."""

    async def submit(self, requests: Sequence[Request]) -> LocalEventStream:
        return await super().submit(pickle.loads(pickle.dumps(requests)))  # noqa: S301 - our own


@pytest.fixture
def engine():
    """The process' engine and registry."""
    client = PicklingClient(lambda publish: EngineLoop(EngineConfig(max_prefill_tokens=64), publish))
    client.start()
    registry = ModelRegistry(
        client.engine, is_busy=client.is_busy, kv_unwritten=lambda name: client.stats().kv_unwritten(name)
    )
    runtime.install(ENGINE_CLIENT, client)
    runtime.install(MODEL_REGISTRY, registry)
    yield registry
    client.stop(0)
    registry.stop()
    runtime.remove(ENGINE_CLIENT)
    runtime.remove(MODEL_REGISTRY)


@pytest.fixture
def model(db, tmp_path):
    return inference_services.register_model(name="tiny", source=str(build_model(tmp_path / "model")), dtype="float32")


@pytest.fixture
def sae(model, tmp_path):
    folder = write_sae(tmp_path / "sae", sae_config(d_in=32), random_weights(d_in=32))
    return services.register_sae(name="tiny-sae", model=model, location=SAELocation(str(folder)), labels=LABELS)


def health_job(sae, **params) -> RecordedJob:
    return RecordedJob({"sae": sae.pk, "corpus": "default", "tokens": 600, "replaces_imports": False, **params})


def test_engine_reads_what_transformers_computes(engine, model):
    offline = load_standalone(model)
    sites = (Site(1), Site(2, "resid_pre"), Site(0, "mlp_out"), Site(3, "attn_out"))
    texts = ("The cat sat by the sea. " * 30, "A sad owl.", "A sad owl.")  # several chunks; and a prefix that is known
    with open_engine_reader(model) as online:
        assert online.num_layers == offline.num_layers == 4
        for text in texts:
            ids = online.text.encode(text)[:200]
            wanted, got = offline.read(ids, sites), online.read(ids, sites)
            for site in sites:
                torch.testing.assert_close(got[site], wanted[site], atol=1e-4, rtol=1e-4)


def test_health_job_finds_what_the_command_finds(engine, sae):
    job = health_job(sae)
    result = run_health(job)
    online = list(sae.features.order_by("index").values_list("max_activation", "density"))
    assert (job.told[0][0], job.told[-1][0]) == (0, job.told[-1][1])
    assert any(line.startswith("Measured on") for line in job.lines)
    sae.refresh_from_db()
    online_losses = [getattr(sae, name) for name in LOSSES]
    call_command("check_sae", "tiny-sae", tokens=600)
    sae.refresh_from_db()
    assert online_losses == pytest.approx([getattr(sae, name) for name in LOSSES], rel=1e-3)
    assert result["l0"] == pytest.approx(sae.l0, rel=1e-2)
    assert result["fvu"] == pytest.approx(sae.fvu, rel=1e-3)
    for (one, share), (two, other) in zip(
        online, sae.features.order_by("index").values_list("max_activation", "density"), strict=True
    ):
        assert one == pytest.approx(two, rel=1e-3) if two else one == two
        assert share == pytest.approx(other, abs=1e-2)


def test_cancelled_job_writes_nothing(engine, sae):
    class CancelledJob(RecordedJob):
        def progress(self, done: int, total: int, message: str = "") -> None:
            if done == 1:
                raise JobCancelled

    with pytest.raises(JobCancelled):
        run_health(CancelledJob(health_job(sae).params))
    sae.refresh_from_db()
    assert sae.measured_at is None
    assert not Feature.objects.exclude(histogram=None).exists()


def test_without_an_engine(sae):
    with pytest.raises(EngineDownError):
        run_health(health_job(sae))


class TestEmbedding:
    @pytest.fixture
    def embedder(self, db, tmp_path):
        path = build_embedder(tmp_path / "vectors")
        return inference_services.register_model(name="vectors", source=str(path), dtype="float32")

    def job(self, sae, model) -> RecordedJob:
        return RecordedJob({"sae": sae.pk, "embedding_model": model.pk})

    def test_vectors_are_the_models_own(self, engine, sae, embedder):
        assert run_embed_labels(self.job(sae, embedder)) == {"embedded": 3, "removed": 0}
        rows = {row.feature.index: row for row in LabelEmbedding.objects.select_related("feature")}
        assert sorted(rows) == [0, 1, 7]
        assert rows[7].text == "the sea. and waves"
        tokenizer = AutoTokenizer.from_pretrained(embedder.source)
        for row in rows.values():
            wanted = reference_vector(Path(embedder.source), tokenizer(row.text).input_ids, "mean")
            np.testing.assert_allclose(row.vector, wanted, rtol=1e-3, atol=1e-5)

    def test_again_only_what_changed(self, engine, sae, embedder):
        run_embed_labels(self.job(sae, embedder))
        sae.features.filter(index=0).update(label="sunshine")
        assert run_embed_labels(self.job(sae, embedder)) == {"embedded": 1, "removed": 1}
        assert LabelEmbedding.objects.get(feature__index=0).text == "sunshine"

    def test_model_that_generates(self, engine, sae, model):
        with pytest.raises(SteeringError, match="is for generation, not for embedding"):
            run_embed_labels(self.job(sae, model))
