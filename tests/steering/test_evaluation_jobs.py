"""Sweeps, calibrations and comparisons of the demo's profiles, run as jobs in the real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest
import torch
from django.contrib.auth.models import User
from transformers import AutoModelForCausalLM

from inference.engine.models.sites import decoder_layers
from inference.registry.registry import get_registry
from jobs.models import Job
from jobs.services import retry_job
from steering.compiler import compile_edits
from steering.demo.install import ARTIFACTS, install_demo
from steering.errors import EvaluationError
from steering.evaluation.calibration import TOLERANCE
from steering.evaluation.calibration import read_params as read_calibration
from steering.evaluation.comparison import read_params as read_comparison
from steering.evaluation.params import CalibrationParams, ComparisonParams, SweepParams, Texts
from steering.evaluation.runner import EvaluatedVersion, EvaluationRunner, Sampling
from steering.evaluation.services import create_evaluation, use_calibration
from steering.evaluation.sweep import read_params as read_sweep
from steering.models import Evaluation
from steering.profiles.compilation import get_compiler
from steering.spec.parsing import parse_edits
from tests.steering.evaluating import run, serving_demo, version

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SHORT = Texts(prompts=("Tell me a story.", "Describe a day."), max_tokens=24, temperature=1.0, seed=3)


@pytest.fixture
def demo(transactional_db: None) -> Iterator[None]:
    with serving_demo():
        yield


def reference_kl(prompt_ids: tuple[int, ...], token_ids: tuple[int, ...], subject: EvaluatedVersion) -> list[float]:
    """By transformers alone: the demo's additions as a hook of the test."""
    module = AutoModelForCausalLM.from_pretrained(ARTIFACTS / "model", attn_implementation="eager").float().eval()
    saes = {source.checksum: get_compiler().sae(source) for source in subject.published.saes}
    (edit,) = compile_edits(subject.edits, saes).edits
    places = torch.zeros(len(prompt_ids) + len(token_ids), 1)
    first = 0 if edit.phase in ("both", "prompt") else len(prompt_ids)
    places[first : len(prompt_ids) if edit.phase == "prompt" else None] = 1
    skipped = special_token_ids()
    places[[token in skipped for token in (*prompt_ids, *token_ids)]] = 0
    ids = torch.tensor([[*prompt_ids, *token_ids]])

    def hook(module, inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        steered = hidden + places * edit.vector.float()
        return (steered, *output[1:]) if isinstance(output, tuple) else steered

    def distributions():
        with torch.no_grad():
            return module(ids).logits[0, len(prompt_ids) - 1 : -1].double().log_softmax(-1)

    base = distributions()
    handle = decoder_layers(module)[edit.site.layer].register_forward_hook(hook)
    steered = distributions()
    handle.remove()
    return (steered.exp() * (steered - base)).sum(-1).tolist()


def special_token_ids() -> frozenset[int]:
    return asyncio.run(get_registry().ready("demo")).text.special_token_ids


def test_kl_of_a_profile_is_that_of_transformers(demo: None) -> None:
    subject = EvaluatedVersion.find(version("gloomy").pk)
    runner = EvaluationRunner("demo")
    (written,) = runner.generate(["Tell me a story."], subject.published, Sampling(24, 1.0, 5))
    (compared,) = runner.compare([("Tell me a story.", written)], subject.published, None)

    expected = reference_kl(runner.ids["Tell me a story."], written.token_ids, subject)
    assert len(compared.kl) == len(written.token_ids) > 3
    np.testing.assert_allclose(compared.kl, expected, rtol=2e-3, atol=2e-5)


def test_sweep_measures_each_strength_and_keeps_a_report(demo: None) -> None:
    rita = User.objects.create_user("rita")
    params = SweepParams(version("gloomy").pk, SHORT, factors=(1.0, 0.5, 0.0), words=("rain", "sad", "cold", "grey"))
    job = run(create_evaluation(params=params, owner=rita))
    assert job.state == "succeeded", job.error

    evaluation = Evaluation.objects.get(job=job)
    points = evaluation.result["points"]
    assert (job.result, evaluation.kind, evaluation.created_by) == ({"evaluation": evaluation.pk}, "sweep", rita)
    assert [point["factor"] for point in points] == [None, 0.0, 0.5, 1.0]
    unsteered, zero, half, full = points
    assert unsteered["kl"] == zero["kl"] == 0.0
    assert [s["text"] for s in unsteered["samples"]] == [s["text"] for s in zero["samples"]], "the same seeds"
    assert 0 < half["kl"] < full["kl"]
    assert full["activation"] is not None
    assert 0 <= full["repeat"] <= 1
    assert 0 < full["distinct_1"] <= full["distinct_2"] <= 1
    assert full["perplexity"] > 1
    assert full["push"] > half["push"] > 0
    assert sum(full["pushes"].values()) > full["push"], "of three edits together"
    assert [sample["prompt"] for sample in full["samples"]] == list(SHORT.prompts)
    assert all(point["failures"] == 0 and point["num_tokens"] > 0 for point in points)
    assert evaluation.result["feature"]


def test_a_sweep_goes_on_where_a_crash_left_it(demo: None) -> None:
    params = SweepParams(version("gloomy").pk, SHORT, factors=(0.5, 1.0))
    job = run(create_evaluation(params=params))
    whole = Evaluation.objects.get(job=job).result
    again = create_evaluation(params=params)
    marked = {**whole["points"][0], "num_tokens": 12345}
    Job.objects.filter(pk=again.pk).update(checkpoint={"points": [marked]})
    again = run(again)
    points = Evaluation.objects.get(job=again).result["points"]
    assert points[0] == marked, "measured before the crash, not again"
    assert points[1:] == whole["points"][1:], "seeded, so the same"


def test_a_job_that_ends_twice_keeps_one_report(demo: None) -> None:
    job = run(create_evaluation(params=ComparisonParams(version("gloomy").pk, None, SHORT)))
    Job.objects.filter(pk=job.pk).update(state="failed")
    retry_job(job=job)
    assert run(job).state == "succeeded"
    assert Evaluation.objects.count() == 1


@pytest.mark.parametrize("target", [0.05, 0.2])
def test_calibration_finds_the_strength(demo: None, target: float) -> None:
    row = version("gloomy")
    job = run(create_evaluation(params=CalibrationParams(row.pk, SHORT, target=target, push_cap=10.0)))
    assert job.state == "succeeded", job.error
    evaluation = Evaluation.objects.get(job=job)
    proposal, curve = evaluation.result["proposal"], evaluation.result["curve"]
    assert proposal["is_met"]
    assert abs(proposal["kl"] - target) <= TOLERANCE * target * 1.001
    assert [point["factor"] for point in curve] == sorted(point["factor"] for point in curve)
    assert (proposal["factor"], proposal["kl"], proposal["push"]) in [(p["factor"], p["kl"], p["push"]) for p in curve]

    profile = use_calibration(evaluation=evaluation)
    before = [edit.strength for edit in parse_edits(row.edits)]
    after = [edit.strength for edit in profile.edits.all()]
    assert after == pytest.approx([proposal["factor"] * strength for strength in before])


def test_calibration_stops_at_the_cap_and_says_so(demo: None) -> None:
    job = run(create_evaluation(params=CalibrationParams(version("gloomy").pk, SHORT, target=15.0, push_cap=0.05)))
    assert job.state == "succeeded", job.error
    proposal = Evaluation.objects.get(job=job).result["proposal"]
    assert (proposal["is_met"], proposal["is_capped"]) == (False, True)
    assert proposal["push"] <= 0.05


def test_comparison_shows_both_sides_and_where_they_part(demo: None) -> None:
    one, other = version("gloomy"), version("joyful")
    job = run(create_evaluation(params=ComparisonParams(one.pk, other.pk, SHORT)))
    assert job.state == "succeeded", job.error
    evaluation = Evaluation.objects.get(job=job)
    assert (evaluation.version, evaluation.other) == (one, other)
    pairs = evaluation.result["pairs"]
    assert [pair["prompt"] for pair in pairs] == list(SHORT.prompts)
    for pair in pairs:
        for answer in pair["answers"]:
            assert sum(kl for _, kl in answer["pieces"]) == pytest.approx(answer["kl"] * answer["num_tokens"])
    assert all(kl > 0 for kl in evaluation.result["kl"])


def test_a_version_against_itself_differs_nowhere(demo: None) -> None:
    row = version("gloomy")
    job = run(create_evaluation(params=ComparisonParams(row.pk, row.pk, SHORT)))
    result = Evaluation.objects.get(job=job).result
    assert result["kl"] == [0.0, 0.0]
    assert all(pair["answers"][0] == pair["answers"][1] for pair in result["pairs"])


def test_a_job_without_an_engine_fails_readably() -> None:
    install_demo()
    job = run(create_evaluation(params=SweepParams(version("gloomy").pk, SHORT)))
    assert job.state == "failed"
    assert "engine" in job.error.lower() or "server" in job.error.lower()
    assert not Evaluation.objects.exists()


def test_versions_that_are_not_there_are_refused_at_once(demo: None) -> None:
    row = version("gloomy")
    with pytest.raises(EvaluationError, match=r"The profile version with the id \d+ does not exist"):
        create_evaluation(params=ComparisonParams(row.pk, 10**6, SHORT))
    with pytest.raises(EvaluationError, match=r"The profile version with the id \d+ does not exist"):
        create_evaluation(params=SweepParams(0, SHORT))


def test_params_survive_the_database() -> None:
    for params, read in (
        (SweepParams(1, SHORT, (0.5,), ("rain",)), read_sweep),
        (CalibrationParams(1, SHORT, 0.2, 0.4), read_calibration),
        (ComparisonParams(1, 2, SHORT), read_comparison),
    ):
        assert read(json.loads(json.dumps(asdict(params)))) == params
