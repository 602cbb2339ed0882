"""Vectors from pairs of prompts: the formulas against numpy, the reading against plain hooks, and the job."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from inference.client import LocalEngineClient
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.models.facts import ModelSpec
from inference.engine.models.loader import load_model
from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.model_card import ModelCard
from inference.text.model_text import ModelText
from jobs.errors import JobCancelled
from jobs.kinds import find_kind
from jobs.models import Job
from jobs.running_job import RunningJob
from steering.errors import IncompatibleSAEError
from steering.models import VectorSet
from steering.residuals import EnginePromptReader, PromptResiduals
from steering.spec.errors import InvalidSpecError
from steering.vectors.directions import METHODS, NoDirectionError, direction
from steering.vectors.extraction import (
    KIND,
    ExtractionParams,
    PromptPair,
    parse_pairs,
    read_pairs,
    request_extraction,
    run_extraction,
)
from tests.builders import build_model
from tests.engine.readers import plain_residuals
from tests.steering.pages import said, staff
from tests.steering.sae_files import D_IN

PAIRS = tuple(PromptPair(f"I am happy, number {n}.", f"I am sad, number {n}.") for n in range(9))
EXTRACT = "admin:steering_vectorset_extract"


class TestFormulas:
    @pytest.fixture(params=range(3))
    def sides(self, request) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(request.param)
        axis = rng.normal(size=6)
        negative = rng.normal(size=(8, 6))
        return negative + np.outer(rng.uniform(2, 4, 8), axis) + 0.1 * rng.normal(size=(8, 6)), negative

    def test_mean_difference(self, sides):
        positive, negative = sides
        expected = np.mean(positive, axis=0) - np.mean(negative, axis=0)
        np.testing.assert_allclose(direction(positive, negative, "mean_difference"), expected)

    def test_pca_is_the_first_eigenvector_of_the_second_moment(self, sides):
        positive, negative = sides
        differences = positive - negative
        _, vectors = np.linalg.eigh(differences.T @ differences)
        found = direction(positive, negative, "pca")
        unit = found / np.linalg.norm(found)
        assert abs(unit @ vectors[:, -1]) == pytest.approx(1)
        assert np.linalg.norm(found) == pytest.approx((differences @ unit).mean())

    @pytest.mark.parametrize("method", METHODS)
    def test_other_sides_give_the_opposite(self, method, sides):
        positive, negative = sides
        np.testing.assert_allclose(direction(positive, negative, method), -direction(negative, positive, method))

    @pytest.mark.parametrize("method", METHODS)
    @given(seed=st.integers(0, 1000))
    def test_order_of_the_pairs_does_not_matter(self, method, seed):
        rng = np.random.default_rng(seed)
        positive, negative = rng.normal(size=(5, 4)) + 1, rng.normal(size=(5, 4))
        order = rng.permutation(5)
        same = direction(positive[order], negative[order], method)
        np.testing.assert_allclose(same, direction(positive, negative, method), atol=1e-9)

    @pytest.mark.parametrize("method", METHODS)
    def test_no_difference_is_no_direction(self, method):
        same = np.ones((3, 4))
        with pytest.raises(NoDirectionError, match=r"opposite directions|are identical"):
            direction(same, same, method)
        with pytest.raises((NoDirectionError, np.linalg.LinAlgError)):
            direction(same * np.inf, same, method)

    def test_pairs_that_point_both_ways(self):
        positive = np.array([[1.0, 0.0], [-1.0, 0.0]])
        with pytest.raises(NoDirectionError, match="opposite directions"):
            direction(positive, np.zeros((2, 2)), "pca")


class TestPairs:
    def test_are_read(self):
        data = json.dumps([{"positive": "a", "negative": "b"}]).encode()
        assert read_pairs(data, "p.json") == (PromptPair("a", "b"),)

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            ([], "pairs"),
            ({}, "pairs"),
            ([{"positive": "a"}], "pairs[0].negative"),
            ([{"positive": "a", "negative": " "}], "pairs[0].negative"),
            ([{"positive": 1, "negative": "b"}], "pairs[0].positive"),
            ([{"positive": "a", "negative": "b", "label": "c"}], "pairs[0].label"),
            ([{"positive": "a" * 20_001, "negative": "b"}], "pairs[0].positive"),
            ([{"positive": "a", "negative": "b"}] * 1001, "pairs"),
            (["a"], "pairs[0]"),
        ],
    )
    def test_problems_are_named(self, value, path):
        with pytest.raises(InvalidSpecError) as caught:
            parse_pairs(value)
        assert path in {problem.path for problem in caught.value.problems}


class FakeReader:
    """Residuals that depend on the prompt's text alone; ``asked`` is what was read."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, model: str, prompts: Sequence[str], sites: Sequence[Site], *, chat: bool) -> list[PromptResiduals]:
        self.asked += prompts
        return [PromptResiduals(tuple(self.rows(prompt, site) for site in sites)) for prompt in prompts]

    def rows(self, prompt: str, site: Site) -> np.ndarray:
        rng = np.random.default_rng([site.layer, *prompt.encode()])
        return rng.normal(size=(len(prompt.split()), D_IN)).astype(np.float32)


@pytest.fixture
def params(model: LanguageModel) -> ExtractionParams:
    return ExtractionParams("happy", model, PAIRS, (Site(0), Site(2)))


def running(job: Job) -> RunningJob:
    claim = uuid.uuid4()
    Job.objects.filter(pk=job.pk).update(state=Job.State.RUNNING, claim=claim)
    return RunningJob(job.pk, claim, job.params, job.owner_id)


class TestJob:
    def test_finds_and_saves_vectors(self, params, researcher):
        job, reader = request_extraction(params=params, user=researcher), FakeReader()
        result = run_extraction(running(job), reader)
        saved = VectorSet.objects.get()
        assert (saved.name, saved.created_by) == ("happy", researcher)
        assert saved.origin == f"job {job.pk}: mean_difference of 9 pairs, last token"
        for vector in saved.vectors.all():
            one = [reader.rows(pair.positive, vector.place)[-1] for pair in PAIRS]
            other = [reader.rows(pair.negative, vector.place)[-1] for pair in PAIRS]
            expected = np.mean(one, axis=0, dtype=np.float64) - np.mean(other, axis=0, dtype=np.float64)
            np.testing.assert_allclose(vector.values, expected, rtol=1e-5, atol=1e-6)
            everything = [reader.rows(text, vector.place) for pair in PAIRS for text in (pair.positive, pair.negative)]
            norms = np.linalg.norm(np.concatenate(everything), axis=1)
            assert vector.reference_norm == pytest.approx(norms.mean(), rel=1e-5)
        assert set(result["norms"]) == {"layers.0.resid_post", "layers.2.resid_post"}
        assert Job.objects.get().done == len(PAIRS)

    def test_mean_over_tokens(self, params):
        job, reader = request_extraction(params=replace(params, position="mean", method="pca")), FakeReader()
        run_extraction(running(job), reader)
        vector = VectorSet.objects.get().vectors.get(layer=2)
        sides = [
            np.stack([reader.rows(getattr(pair, side), Site(2)).mean(axis=0) for pair in PAIRS])
            for side in ("positive", "negative")
        ]
        np.testing.assert_allclose(vector.values, direction(sides[0], sides[1], "pca"), rtol=1e-3, atol=1e-5)

    def test_second_run_after_a_crash_saves_nothing_twice(self, params):
        job = request_extraction(params=params)
        run_extraction(running(job), FakeReader())
        reader = FakeReader()
        assert run_extraction(running(job), reader)["vector_set"] == "happy"
        assert (VectorSet.objects.count(), reader.asked) == (1, [])

    def test_stops_where_it_is_cancelled(self, params):
        job = request_extraction(params=params)
        run = running(job)
        Job.objects.update(cancel_requested=True)
        with pytest.raises(JobCancelled):
            run_extraction(run, FakeReader())
        assert not VectorSet.objects.exists()

    def test_a_name_that_was_taken_meanwhile_fails_with_a_sentence(self, params):
        first, second = request_extraction(params=params), request_extraction(params=params)
        run_extraction(running(first), FakeReader())
        with pytest.raises(ValidationError, match="already exists"):
            run_extraction(running(second), FakeReader())

    @pytest.mark.parametrize("position", ["mean", "last"])
    def test_attention_sinks_are_no_part_of_means(self, params, position):
        """One residual of each prompt is 100 times longer than the others."""
        rng = np.random.default_rng(1)
        rows = {pair.positive: rng.normal(size=(6, D_IN)) + 1 for pair in PAIRS}
        rows |= {pair.negative: rng.normal(size=(6, D_IN)) for pair in PAIRS}
        sinks = {prompt: np.insert(values, 2, 100 * values[0], axis=0) for prompt, values in rows.items()}
        found = []
        for each in (rows, sinks):
            reader = FakeReader()
            reader.rows = lambda prompt, site, each=each: each[prompt].astype(np.float32)
            name = f"sinks-{len(found)}"
            asked = replace(params, name=name, position=position, sites=(Site(0),))
            run_extraction(running(request_extraction(params=asked)), reader)
            (vector,) = VectorSet.objects.get(name=name).vectors.all()
            found.append((vector.values, vector.reference_norm))
        np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
        assert found[0][1] == pytest.approx(found[1][1])

    def test_prompts_of_special_tokens_alone(self, params):
        reader = FakeReader()
        reader.rows = lambda prompt, site: np.zeros((0, 0), np.float32)
        with pytest.raises(ValueError, match="nothing can be captured from it"):
            run_extraction(running(request_extraction(params=params)), reader)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"name": "a b"}, "slug"),
            ({"sites": ()}, "1 to 64 different sites"),
            ({"sites": (Site(0), Site(0))}, "1 to 64 different sites"),
            ({"sites": (Site(3),)}, "layers 0 to 2"),
            ({"method": "magic"}, "`method` must be one of"),
            ({"position": "first"}, "`position` one of"),
            ({"method": "pca", "pairs": PAIRS[:1]}, "at least two pairs"),
        ],
    )
    def test_what_would_fail_is_refused_at_once(self, fields, message, params):
        with pytest.raises((ValidationError, IncompatibleSAEError), match=message):
            request_extraction(params=replace(params, **fields))
        assert not Job.objects.exists()

    def test_kind_is_registered(self):
        assert find_kind(KIND).title == "Extract vectors from prompt pairs"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = build_model(tmp_path_factory.mktemp("model") / "tiny")
    return load_model(ModelSpec("tiny", folder, dtype="float32", device="cpu"))


class TestReading:
    """In a running engine, against hooks on transformers' own forward pass."""

    @pytest.mark.parametrize("chat", [True, False])
    def test_equals_plain_hooks(self, chat, loaded):
        client = LocalEngineClient(lambda publish: EngineLoop(EngineConfig(max_batch_size=4), publish))
        client.start()
        try:
            client.engine.attach(loaded).result(30)
            text = ModelText(loaded.tokenizer, max_model_len=256)

            async def ready(name: str) -> ModelCard:
                record: Any = type("Record", (), {"name": name})
                return ModelCard(record, 256, 400, text)

            prompts, sites = ["The cat sat.", "A sad owl flew home."], (Site(1), Site(3, "mlp_out"))
            found = EnginePromptReader(ready, client).read("tiny", prompts, sites, chat=chat)
        finally:
            client.stop(0)
        for prompt, one in zip(prompts, found, strict=True):
            ids = text.render_chat([{"role": "user", "content": prompt}]) if chat else text.encode(prompt)
            kept = [place for place, token in enumerate(ids) if place and token not in text.special_token_ids]
            for site, values in zip(sites, one.sites, strict=True):
                expected = plain_residuals(loaded, ids, site)[kept]
                np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-4)


class TestDoors:
    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        path = tmp_path / "pairs.json"
        path.write_text(json.dumps([{"positive": pair.positive, "negative": pair.negative} for pair in PAIRS]))
        return path

    def test_command(self, file, model, capsys):
        call_command("extract_vectors", "happy", file, "--layer=0", "--layer=2", model="tiny", method="pca", raw=True)
        job = Job.objects.get()
        assert str(job.pk) in capsys.readouterr().out
        assert (job.kind, job.params["sites"], job.params["chat"]) == (
            KIND,
            [[0, "resid_post"], [2, "resid_post"]],
            False,
        )

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--model=none", "--layer=0"], "The model none does not exist"),
            (["--model=tiny", "--layer=7"], "layers 0 to 2"),
            (["--model=tiny", "--layer=0", "--layer=0"], "different sites"),
        ],
    )
    def test_command_refuses(self, options, message, file, model):
        with pytest.raises(CommandError, match=message):
            call_command("extract_vectors", "happy", file, *options)
        with pytest.raises(CommandError, match="is not a file"):
            call_command("extract_vectors", "happy", Path("/dev/zero"), "--layer=0", model="tiny")

    def form(self, file: Path, model: LanguageModel, **fields: object) -> dict[str, object]:
        upload = SimpleUploadedFile("pairs.json", file.read_bytes())
        form = {"name": "happy", "model": model.pk, "pairs": upload, "layers": "0, 2", "site": "resid_post"}
        return form | {"method": "mean_difference", "position": "last", "chat": "on", "description": ""} | fields

    def test_page(self, admin, file, model):
        url = reverse(EXTRACT)
        assert url in admin.get(reverse("admin:steering_vectorset_changelist")).content.decode()
        assert admin.get(url).status_code == 200
        assert "Queued" in said(admin.post(url, self.form(file, model)))
        job = Job.objects.get()
        assert (job.params["sites"], job.owner.username) == ([[0, "resid_post"], [2, "resid_post"]], "admin")

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"layers": "0; 2"}, "separated by commas"),
            ({"layers": "99"}, "layers 0 to 2"),
            ({"layers": "-1"}, "separated by commas"),
            ({"pairs": SimpleUploadedFile("x.json", b"[1]")}, "pairs[0]: Expected an object"),
        ],
    )
    def test_page_says_what_is_wrong(self, fields, message, admin, file, model):
        assert message in admin.post(reverse(EXTRACT), self.form(file, model, **fields)).content.decode()
        assert not Job.objects.exists()

    def test_permission(self, file, model):
        client = staff("view_vectorset", "change_vectorset")
        assert client.post(reverse(EXTRACT), self.form(file, model)).status_code == 403
