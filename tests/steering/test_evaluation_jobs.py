"""Sweeps, calibrations and comparisons of the demo's profiles, run as jobs in the real engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from django.contrib.auth.models import User
from transformers import AutoModelForCausalLM

from inference.engine.models.sites import decoder_layers
from inference.interventions import VectorEdit
from inference.models import LanguageModel
from inference.registry.registry import get_registry
from jobs.models import Job
from jobs.services import retry_job
from steering.compiler import compile_edits
from steering.demo.install import ARTIFACTS, install_demo
from steering.errors import EvaluationError
from steering.evaluation.arms import UNSTEERED_ARM, Arm, Bench
from steering.evaluation.calibration import TOLERANCE
from steering.evaluation.calibration import read_params as read_calibration
from steering.evaluation.comparison import read_params as read_comparison
from steering.evaluation.controls import control_arms
from steering.evaluation.headline import find_headlines, headline_key
from steering.evaluation.measures import from_columns
from steering.evaluation.params import (
    CalibrationParams,
    ComparisonParams,
    Controls,
    HeadlineParams,
    JudgeParams,
    SweepParams,
    Texts,
)
from steering.evaluation.runner import (
    UNSTEERED,
    EvaluatedVersion,
    EvaluationRunner,
    GeneratedAnswer,
    Sampling,
    Speaker,
)
from steering.evaluation.services import create_evaluation, draft_target, use_calibration
from steering.evaluation.sweep import read_params as read_sweep
from steering.models import Evaluation, HeadlineKL, ProfileVersion
from steering.profiles.compilation import get_compiler
from steering.spec.parsing import parse_edits
from tests.steering.evaluating import run, serving_demo, version

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
SHORT = Texts(prompts=("Tell me a story.", "Describe a day."), max_tokens=24, temperature=1.0, seed=3)


@pytest.fixture
def demo(transactional_db: None) -> Iterator[None]:
    """The demo with known headline KLs, which take seconds to measure."""
    with serving_demo():
        for row in ProfileVersion.objects.select_related("profile__model"):
            key = headline_key(row.profile.model, row.fingerprint)
            HeadlineKL.objects.create(**key, kl=0.5, result={})
        yield


def reference_kl(
    prompt_ids: tuple[int, ...], token_ids: tuple[int, ...], subject: EvaluatedVersion, *, from_base: bool = False
) -> list[float]:
    """KL(steered || base), or the other way ``from_base``, by transformers alone: additions as a hook of the test."""
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
    if from_base:
        steered, base = base, steered
    return (steered.exp() * (steered - base)).sum(-1).tolist()


def special_token_ids() -> frozenset[int]:
    return asyncio.run(get_registry().ready("demo")).text.special_token_ids


def test_kl_of_a_profile_is_that_of_transformers(demo: None) -> None:
    subject = EvaluatedVersion.find(version("gloomy").pk)
    runner = EvaluationRunner("demo")
    (written,) = runner.generate(["Tell me a story."], Speaker(subject.published), Sampling(24, 1.0, 5))
    (compared,) = runner.compare([("Tell me a story.", written)], Speaker(subject.published), UNSTEERED)

    expected = reference_kl(runner.ids["", "Tell me a story."], written.token_ids, subject)
    assert len(compared.kl) == len(written.token_ids) > 3
    np.testing.assert_allclose(compared.kl, expected, rtol=2e-3, atol=2e-5)


def test_the_other_kl_is_that_of_transformers_on_the_unsteered_text(demo: None) -> None:
    subject = EvaluatedVersion.find(version("gloomy").pk)
    runner, prompt = EvaluationRunner("demo"), "Tell me a story."
    (written,) = runner.generate([prompt], UNSTEERED, Sampling(24, 1.0, 5))
    (compared,) = runner.compare([(prompt, written)], UNSTEERED, Speaker(subject.published))

    expected = reference_kl(runner.ids["", prompt], written.token_ids, subject, from_base=True)
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
    for one in points:
        rows = from_columns(one["answers"])
        assert [(row.prompt, row.sample) for row in rows] == [(0, 0), (1, 0)]
        assert sum(row.tokens for row in rows) == one["num_tokens"]
        if one["factor"]:
            total = sum(row.kl_base or 0.0 for row in rows)
            assert one["kl_base"] == pytest.approx(total / sum(row.base_tokens for row in rows))
    assert unsteered["kl_base"] == zero["kl_base"] == 0.0 < half["kl_base"] < full["kl_base"]
    assert full["success"] == 1.0
    low, high = full["intervals"]["kl"]
    assert low <= full["kl"] <= high
    value, _, _ = full["differences"]["perplexity"]
    assert value == pytest.approx(full["perplexity"] - unsteered["perplexity"])
    assert evaluation.result["recommendation"]["effect"] == "words"


def test_the_headline_kl_is_measured_once_and_is_the_same_everywhere(demo: None) -> None:
    row, short = version("gloomy"), replace(SHORT, max_tokens=2)
    HeadlineKL.objects.all().delete()
    job = run(create_evaluation(params=ComparisonParams(row.pk, None, short)))
    first, none = Evaluation.objects.get(job=job).result["headlines"]
    kept = HeadlineKL.objects.get()
    assert none is None
    assert (first["kl"], first["low"], first["high"], first["text"]) == (kept.kl, kept.low, kept.high, str(kept))
    assert None not in (kept.kl, kept.low, kept.high)
    assert (kept.low or 0.0) < (kept.kl or 0.0) < (kept.high or 0.0)
    rows = from_columns(kept.result["answers"])
    assert [r.prompt for r in rows] == list(range(32))
    assert kept.kl == pytest.approx(sum(r.kl_base or 0.0 for r in rows) / sum(r.base_tokens for r in rows))

    params = SweepParams(row.pk, short, factors=(2.0,))
    again = Evaluation.objects.get(job=run(create_evaluation(params=params))).result["headline"]
    assert again == first, "stored, not measured again"
    assert HeadlineKL.objects.count() == 1
    for target in (row.pk, draft_target(profile=row.profile)):  # the draft has the version's effect
        job = run(create_evaluation(params=HeadlineParams(target)))
        assert (job.result["kl"], job.result["profile"]) == (kept.kl, row.profile_id)
    LanguageModel.objects.update(revision="another")
    assert not find_headlines(LanguageModel.objects.get(), [row.fingerprint])


def test_controls_run_beside_the_profile(demo: None) -> None:
    controls = Controls(random_directions=2, random_features=1, system_prompt="You are gloomy.", off_target=True)
    texts = replace(SHORT, samples_per_prompt=2, max_tokens=8)
    params = SweepParams(version("gloomy").pk, texts, (1.0,), (), controls)
    job = run(create_evaluation(params=params))
    assert job.state == "succeeded", job.error

    result = Evaluation.objects.get(job=job).result
    found = {point["name"]: point for point in result["controls"]}
    kinds = [point["kind"] for point in result["controls"]]
    assert kinds == ["random_direction", "random_direction", "random_feature", "system_prompt"]
    (steered,) = (point for point in result["points"] if point["kind"] == "profile")
    one, other = found["random direction 1"], found["random direction 2"]
    assert one["kl_base"] != other["kl_base"]
    for point in result["controls"]:
        assert (point["factor"] is None) == (point["kind"] == "system_prompt")
        assert point["kl"] > 0 < point["kl_base"]
        rows = from_columns(point["answers"])
        assert [(row.prompt, row.sample) for row in rows] == [(0, 0), (1, 0), (0, 1), (1, 1)]
        base = from_columns(result["points"][0]["answers"])
        assert [row.base_tokens for row in rows] == [row.base_tokens for row in base], "paired"
    assert one["push"] == pytest.approx(other["push"])
    assert one["push"] <= sum(steered["pushes"].values())

    off_target = result["off_target"]
    assert len(off_target["rows"]) == off_target["num_questions"] == 64
    for side in ("with", "without"):
        accuracy, low, high = off_target[side]
        assert low <= accuracy <= high
        assert accuracy == sum(row[side] == row["answer"] for row in off_target["rows"]) / 64
    assert off_target["difference"][0] == pytest.approx(off_target["with"][0] - off_target["without"][0])


def test_answers_are_judged_by_a_model_of_this_server(demo: None) -> None:
    texts = replace(SHORT, max_tokens=4)
    params = SweepParams(version("gloomy").pk, texts, (1.0,), judge=JudgeParams("demo", "gloomy mood"))
    job = run(create_evaluation(params=params))
    assert job.state == "succeeded", job.error
    result = Evaluation.objects.get(job=job).result
    assert result["judge"] == {"model": "demo", "concept": "gloomy mood"}
    assert result["recommendation"]["effect"] == "score"
    for point in result["points"]:
        rows = from_columns(point["answers"])
        assert all({row.concept, row.instruction, row.fluency} <= {0, 1, 2} for row in rows)
        assert not any(row.judge_error for row in rows)
    with pytest.raises(EvaluationError, match="no generation model"):
        create_evaluation(params=replace(params, judge=JudgeParams("nobody", "gloom")))


def test_random_controls_push_as_hard_as_the_profile(demo: None) -> None:
    subject = EvaluatedVersion.find(version("gloomy").pk)
    saes = {source.checksum: get_compiler().sae(source) for source in subject.published.saes}
    (edit,) = compile_edits(subject.edits, saes).edits
    assert isinstance(edit, VectorEdit)
    arms = list(control_arms(subject, Controls(random_directions=3, random_features=3), 0.5, seed=1))
    assert arms == list(control_arms(subject, Controls(random_directions=3, random_features=3), 0.5, seed=1)), "seeded"
    steps = []
    for arm in arms:
        assert arm.speaker.version is not None
        (control,) = compile_edits(parse_edits(arm.speaker.version.edits), saes).edits
        assert isinstance(control, VectorEdit)
        assert (control.site, control.phase, control.window) == (edit.site, edit.phase, edit.window)
        assert control.norm_limit == edit.norm_limit
        steps.append(control.vector)
        torch.testing.assert_close(control.vector.norm(), 0.5 * edit.vector.norm(), rtol=1e-4, atol=0)
    assert all(abs(torch.cosine_similarity(step, edit.vector, dim=0)) < 0.9 for step in steps)
    assert len({round(float(step[0]), 6) for step in steps}) == 6


def test_a_strength_out_of_range_is_counted_not_dropped(demo: None) -> None:
    subject = EvaluatedVersion.find(version("gloomy").pk)
    bench = Bench(FailingRunner("demo"), replace(SHORT, max_tokens=4), lambda: None)
    base = bench.generate(UNSTEERED)
    unsteered = bench.measure(UNSTEERED_ARM, base, [])
    point = bench.measure(Arm("profile", "1", Speaker(subject.published), 1.0), base, unsteered.rows)
    assert (point.failures, point.success) == (1, 0.5)
    first, second = point.rows
    assert (first.error, first.tokens, first.kl) == ("Out of range.", 0, None)
    assert second.error == ""
    assert point.differences["success"][0] == -0.5


class FailingRunner(EvaluationRunner):
    """Fails the first steered answer, as the engine does for steering that leaves the range of numbers."""

    def generate(self, prompts, speaker, sampling, *, first=0):
        found = super().generate(prompts, speaker, sampling, first=first)
        return [GeneratedAnswer(failure="Out of range."), *found[1:]] if speaker != UNSTEERED else found


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
        (SweepParams(1, SHORT, (0.5,), ("rain",), Controls(2, 1, "Be sad.", off_target=True)), read_sweep),
        (SweepParams(1, SHORT, (0.5,), judge=JudgeParams("demo", "gloom")), read_sweep),
        (CalibrationParams(1, SHORT, 0.2, 0.4), read_calibration),
        (ComparisonParams(1, 2, SHORT), read_comparison),
    ):
        assert read(json.loads(json.dumps(asdict(params)))) == params


def test_a_draft_is_evaluated_like_the_version_with_its_edits(demo: None) -> None:
    of = version("gloomy")
    target = draft_target(profile=of.profile)
    job = run(create_evaluation(params=ComparisonParams(target, of.pk, SHORT)))

    report = Evaluation.objects.get(pk=job.result["evaluation"])
    assert (report.subject, report.version, report.edits) == ("gloomy@draft", None, target.edits)
    assert report.result["version"] == "gloomy@draft"
    assert report.result["kl"] == pytest.approx([0.0, 0.0], abs=1e-6)
    texts = [
        ["".join(piece for piece, _ in answer["pieces"]) for answer in pair["answers"]]
        for pair in report.result["pairs"]
    ]
    assert all(one == other and one for one, other in texts)
