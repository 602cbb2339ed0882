"""A whole training: resumed after a kill it gives the same SAE, as a command, and as a job on the engine."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from django.core.management import CommandError, call_command

from inference import services as inference_services
from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.standalone_model import StandaloneModel, load_standalone
from jobs.errors import JobCancelled
from steering.corpora.corpus import Corpus, CorpusError, Document, tokenise
from steering.measuring.document import TokenisedDocument
from steering.measuring.loss import loss_recovered
from steering.models import SAE
from steering.residuals import open_engine_reader
from steering.saes.loader import load_sae
from steering.saes.place import sae_place
from steering.training.errors import TrainingError
from steering.training.recipe import TrainingRecipe
from steering.training.run import TrainingPace, TrainingPlan, run_training, split_documents
from steering.training.services import TrainingOrder, request_training, run_train_sae
from tests.builders import build_model
from tests.steering.test_engine_jobs import engine  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow
OFTEN = TrainingPace(checkpoint_s=0, report_s=0, documents=16)
SITE = Site(2)
RECIPE = TrainingRecipe(features=48, k=4, tokens=64 * 30, batch=64, dead_after=500, aux_k=4)
WORDS = ("the", "cat", "sat", "by", "a", "sad", "grey", "sea", "and", "rain", "fell", "on", "every", "ship", "while")


def texts(num: int = 40) -> list[str]:
    return [" ".join(WORDS[(one * step) % len(WORDS)] for step in range(1, 40)) for one in range(1, num)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return build_model(tmp_path_factory.mktemp("trained-on") / "model")


@pytest.fixture
def model(db, folder):
    return inference_services.register_model(name="tiny", source=str(folder), dtype="float32")


@pytest.fixture
def corpus_file(tmp_path, settings) -> Path:
    settings.MILLM_HOME = tmp_path / "home"
    path = tmp_path / "home" / "corpora" / "words.txt"
    path.parent.mkdir(parents=True)
    path.write_text("\n\n".join(texts()))
    return path


@dataclass
class Monitor:
    """Ends the training at the given call of :meth:`progress`."""

    ends_at: int = -1
    lines: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    owner_id: int | None = None
    id: uuid.UUID = field(default_factory=uuid.uuid4)

    def progress(self, done: int, total: int, message: str = "") -> None:
        self.messages.append(message)
        if len(self.messages) == self.ends_at:
            raise JobCancelled

    def log(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def reader(folder) -> StandaloneModel:
    return load_standalone(LanguageModel(name="tiny", source=str(folder), dtype="float32"))


class TestResume:
    def run(self, reader, tmp_path: Path, name: str, monitor: Monitor, recipe: TrainingRecipe = RECIPE):
        corpus = Corpus("words", "1", tuple(Document(text=text) for text in texts()))
        plan = TrainingPlan("tiny", SITE, recipe, corpus.label, 10_000)
        documents = tokenise(corpus, reader.text, 10_000)
        target = tmp_path / name
        return target, run_training(
            plan, documents, reader, folder=tmp_path / f"{name}-work", target=target, monitor=monitor, pace=OFTEN
        )

    @pytest.mark.parametrize("activation", ["topk", "batchtopk", "jumprelu"])
    def test_same_result_after_a_stop(self, reader, tmp_path, activation):
        recipe = TrainingRecipe(**{**RECIPE.as_json(), "activation": activation})
        whole, figures = self.run(reader, tmp_path, "whole", Monitor(), recipe)
        for ends_at in (2, 9):  # while it reads activations, and after some steps
            with pytest.raises(JobCancelled):
                self.run(reader, tmp_path, "stopped", Monitor(ends_at), recipe)
        monitor = Monitor()
        stopped, again = self.run(reader, tmp_path, "stopped", monitor, recipe)
        assert monitor.messages[0].startswith("Training: step")
        assert int(monitor.messages[0].split()[2]) > 1
        one, other = (load_sae(sae_place(target)).weights for target in (whole, stopped))
        for name, tensor in one.tensors().items():
            assert torch.equal(tensor, other.tensors()[name])
        assert figures == again
        assert not (tmp_path / "stopped-work").exists()

    def test_figures_and_files(self, reader, tmp_path):
        target, figures = self.run(reader, tmp_path, "sae", monitor := Monitor())
        assert json.loads((target / "health.json").read_text()) == figures
        assert figures["l0"] <= 4
        assert 0 < figures["fvu"] < 1
        assert figures["training_tokens"] == 64 * 30
        losses = [figures[name] for name in ("model_loss", "spliced_loss", "zero_loss")]
        assert figures["loss_recovered"] == loss_recovered(*losses)
        assert any("FVU" in line and "dead" in line for line in monitor.lines)
        config = json.loads((target / "cfg.json").read_text())
        assert (config["architecture"], config["k"], config["d_in"], config["d_sae"]) == ("topk", 4, 32, 48)
        assert config["metadata"]["hook_name"] == "blocks.2.hook_resid_post"

    def test_another_recipe_in_the_folder_is_refused(self, reader, tmp_path):
        with pytest.raises(JobCancelled):
            self.run(reader, tmp_path, "sae", Monitor(ends_at=6))
        other = TrainingRecipe(**{**RECIPE.as_json(), "learning_rate": 0.5})
        with pytest.raises(TrainingError, match="other options") as found:
            self.run(reader, tmp_path, "sae", Monitor(), other)
        assert found.value.param == "folder"

    def test_a_small_corpus_is_refused_before_the_model_runs(self, reader, tmp_path):
        with pytest.raises(TrainingError, match="two batches") as found:
            self.run(reader, tmp_path, "sae", Monitor(), TrainingRecipe(features=48, batch=4096, tokens=10_000))
        assert found.value.param == "corpus"


def test_several_texts_at_once_are_read_like_one(reader):
    prompts = [reader.text.encode(text) for text in ("The cat sat by the sea.", "A sad owl", "It rained " * 30)]
    for site in (SITE, Site(1, "resid_pre"), Site(3, "attn_out"), Site(0, "mlp_out")):
        for prompt, found in zip(prompts, reader.read_many(prompts, site), strict=True):
            torch.testing.assert_close(found, reader.read(prompt, (site,))[site], atol=1e-4, rtol=1e-4)


@pytest.mark.django_db
def test_command_trains_and_registers(model, corpus_file, capsys):
    options: dict[str, Any] = {"layer": 2, "features": 48, "k": 4, "tokens": 640, "batch": 64}
    call_command("train_sae", "tiny", "words-sae", corpus=[str(corpus_file)], **options)
    sae = SAE.objects.get(name="words-sae")
    assert (sae.architecture, sae.layer, sae.site, sae.d_sae) == ("topk", 2, "resid_post", 48)
    assert None not in (sae.fvu, sae.l0, sae.dead_share, sae.model_loss, sae.spliced_loss, sae.zero_loss, sae.mean_loss)
    assert Path(sae.source) == corpus_file.parents[1] / "saes" / "words-sae"
    assert "Registered words-sae" in capsys.readouterr().out
    with pytest.raises(CommandError, match="already exists"):
        call_command("train_sae", "tiny", "words-sae", corpus=[str(corpus_file)], **options)


@pytest.mark.django_db(transaction=True)
class TestJob:
    def order(self, model, **changes: Any) -> TrainingOrder:
        values = {"name": "job-sae", "model": model, "site": SITE, "recipe": RECIPE, "max_activations": 10_000}
        return TrainingOrder(**{**values, **changes})

    def test_job_on_the_engine(self, engine, model, corpus_file):  # noqa: F811 - the fixture
        job = request_training(order=self.order(model), corpora=["words.txt"])
        run = Monitor(params=job.params, id=job.pk)
        result = run_train_sae(run)
        sae = SAE.objects.get(name="job-sae")
        assert result["sae"] == sae.pk
        assert sae.fvu == pytest.approx(result["fvu"])
        assert not (corpus_file.parents[1] / "training" / str(job.pk)).exists()
        again = run_train_sae(run)  # finished by a previous run
        assert (again["sae"], again["fvu"], again["tokens"]) == (sae.pk, sae.fvu, sae.measured_tokens)

    def test_cancelled(self, engine, model, corpus_file):  # noqa: F811
        job = request_training(order=self.order(model), corpora=["words.txt"])
        with pytest.raises(JobCancelled):
            run_train_sae(Monitor(1, params=job.params, id=job.pk))
        assert not SAE.objects.exists()
        assert not list((corpus_file.parents[1] / "training").iterdir())

    def test_engine_reads_like_the_command(self, engine, model, reader):  # noqa: F811
        with open_engine_reader(model) as online:
            prompts = [online.text.encode(text) for text in ("The cat sat by the sea.", "A sad owl")]
            for one, other in zip(online.read_many(prompts, SITE), reader.read_many(prompts, SITE), strict=True):
                torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize(
        ("changes", "param"),
        [
            ({"name": "../x"}, "name"),
            ({"name": ""}, "name"),
            ({"site": Site(2, "mlp_raw")}, "site"),
            ({"max_activations": 5}, "max_activations"),
        ],
    )
    def test_bad_orders(self, model, corpus_file, changes, param):
        with pytest.raises(TrainingError) as found:
            request_training(order=self.order(model, **changes), corpora=["words.txt"])
        assert found.value.param == param

    def test_a_layer_out_of_range(self, model, corpus_file):
        with pytest.raises(TrainingError, match="layers 0 to 3"):
            request_training(order=self.order(model, site=Site(4)), corpora=["words.txt"])

    def test_an_unknown_corpus(self, model, corpus_file):
        with pytest.raises(CorpusError, match="no corpus"):
            request_training(order=self.order(model), corpora=["other.txt"])


def test_held_out_texts_are_not_trained_on():
    documents: Sequence[TokenisedDocument] = [TokenisedDocument((number, 1), (True, True)) for number in range(100)]
    split = split_documents(documents, 0)
    assert len(split.held_out) == 3
    assert sorted({*split.training, *split.held_out}, key=lambda one: one.token_ids) == documents
