"""Measured effects of features: strength at a fixed divergence, output score, fluency, samples; as rows and files."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from inference.client import get_client
from inference.engine.models.sites import decoder_layers
from inference.registry.registry import get_registry
from jobs.errors import JobCancelled
from jobs.kinds import find_kind
from jobs.models import Job
from steering.demo.install import ARTIFACTS
from steering.effects import job as effects_job
from steering.effects import probe as effects_probe
from steering.effects.job import live_features, open_lens, request_effects, run_effects
from steering.effects.output_tokens import NUM_TOKENS, PUSH, output_tokens
from steering.effects.probe import EffectProbe, MeasuredDirection
from steering.effects.recipe import OPENINGS, EffectRecipe, EffectResult, Sample, output_score
from steering.effects.store import (
    export_effects,
    import_effects,
    import_effects_file,
    recipe_text,
    store_effects,
    store_output_tokens,
)
from steering.effects.strength_search import MAX_EVALUATIONS, TOLERANCE, StrengthSearch
from steering.errors import EvaluationError, SAENotMeasuredError
from steering.models import SAE, Feature, FeatureEffect
from steering.profiles.compilation import get_compiler
from steering.profiles.drafts import feature_target, sae_identity
from steering.profiles.snapshot import source_of
from steering.spec.errors import InvalidSpecError
from tests.steering.evaluating import serving_demo
from tests.steering.pages import page, said
from tests.steering.test_jobs import RecordedJob

QUICK = EffectRecipe(prompts=("Tell me a story.", "Describe a day."), max_tokens=6, sample_tokens=8, num_samples=1)
RESULT = EffectResult(
    index=0,
    strength=2.0,
    kl=0.31,
    push=0.4,
    is_capped=False,
    output_score=0.25,
    base_output_score=0.05,
    steered_activation=0.03,
    base_activation=0.02,
    fluency=1.25,
    curve=((1.0, 0.1), (2.0, 0.31)),
    samples=(Sample("Tell me a story.", "A cat sat.", "It rained on the cat."),),
)


class TestSearch:
    @given(
        power=st.floats(1.0, 4.0),
        strength=st.floats(0.05, 40.0),
        limit=st.floats(0.01, 100.0),
        unstable=st.floats(0.5, 1e3),
    )
    def test_ends_at_the_target_or_at_the_cap(self, power, strength, limit, unstable):
        """For any divergence that grows like a power, unless the model becomes unstable in between."""
        search = StrengthSearch(0.3, limit, 1.0)
        guesses = []
        while not search.is_finished:
            guesses.append(search.guess)
            assert 0 < search.guess <= limit
            kl = 0.3 * (search.guess / strength) ** power
            search.note(None if search.guess >= unstable else kl)
        assert len(guesses) <= MAX_EVALUATIONS
        if search.is_capped:
            assert max(guesses) == limit
            assert search.best == (limit, pytest.approx(0.3 * (limit / strength) ** power, rel=1e-6, abs=2e-9))
        elif power <= 2.5 and unstable > 50 and limit > strength and 0.3 < strength < 3:
            assert abs(math.log(search.best[1] / 0.3)) <= TOLERANCE

    def test_nothing_was_stable(self):
        search = StrengthSearch(0.3, 10.0, 1.0)
        while not search.is_finished:
            search.note(None)
        assert search.best is None


class TestRecipe:
    def test_output_score_is_that_of_the_paper(self):
        probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
        tokens = [3, 1]
        rank = min(int((probabilities > probabilities[token]).sum()) for token in tokens)
        expected = (1 - rank / 4) * float(probabilities[tokens].max())
        assert output_score(math.log(0.3), 2, 4) == pytest.approx(expected)

    def test_steers_well(self):
        assert RESULT.steers_well == pytest.approx(0.2 / 1.25)
        assert replace(RESULT, fluency=0.5).steers_well == pytest.approx(0.2)
        assert replace(RESULT, output_score=0.01).steers_well == pytest.approx(0.01 / 0.1 / 1.25)
        assert replace(RESULT, steered_activation=0.5).steers_well == pytest.approx(1 / 1.25)
        assert replace(RESULT, output_score=0.01, steered_activation=0.01).steers_well == 0
        assert replace(RESULT, output_score=None, base_activation=None).steers_well == 0
        assert replace(RESULT, fluency=None).steers_well == 0

    @pytest.mark.parametrize(
        "wrong",
        [
            {"target": 0.0},
            {"target": math.nan},
            {"push_cap": 0.0},
            {"push_cap": math.inf},
            {"prompts": ()},
            {"prompts": (" ",)},
            {"max_tokens": 0},
            {"sample_tokens": 10_000},
        ],
    )
    def test_refuses(self, wrong):
        with pytest.raises(EvaluationError) as refused:
            EffectRecipe(**wrong)
        assert refused.value.param == next(iter(wrong))

    def test_text_identifies_it(self):
        assert recipe_text(EffectRecipe()) == recipe_text(EffectRecipe.from_json(EffectRecipe().to_json()))
        assert recipe_text(EffectRecipe()) != recipe_text(EffectRecipe(seed=8))


class TestOutputTokens:
    def test_parts_are_those_of_the_divergence(self):
        base, steered = (torch.randn(5, 40, generator=torch.manual_seed(n)).double().log_softmax(-1) for n in (1, 2))
        parts = (steered.exp() * (steered - base)).mean(0)
        everything = [dict(enumerate(row.tolist())) for row in base]
        found = output_tokens(everything, [list(enumerate(row.tolist())) for row in steered])
        assert len(found) == NUM_TOKENS
        best = parts.topk(NUM_TOKENS)
        assert [token_id for token_id, _ in found] == best.indices.tolist()
        assert [part for _, part in found] == pytest.approx(best.values.tolist())

    def test_a_token_that_was_unlikely_counts_as_the_last_that_is_known(self):
        assert output_tokens([{1: -1.0, 2: -3.0}], [[(7, -1.0)]]) == [(7, pytest.approx(math.exp(-1) * 2))]

    def test_tokens_that_become_less_likely_are_no_output(self):
        assert output_tokens([{1: -0.5, 2: -3.0}], [[(1, -1.0), (2, -3.0)]]) == []


@pytest.fixture
def stored(sae) -> SAE:
    store_effects(sae=sae, results=[RESULT, replace(RESULT, index=2)], recipe="r", measured_at=timezone.now())
    return sae


class TestFiles:
    def lines(self, sae, tmp_path) -> list[str]:
        path = tmp_path / "effects.jsonl"
        export_effects(sae, path)
        return path.read_text().splitlines()

    def load(self, sae, lines) -> int:
        return import_effects_file(sae, io.BytesIO("\n".join(lines).encode()), "effects.jsonl")

    @pytest.mark.parametrize("name", ["effects.jsonl", "effects.jsonl.gz"])
    def test_round_trip(self, stored, tmp_path, name):
        call_command("feature_effects", "export", stored.name, tmp_path / name)
        first = (tmp_path / name).read_bytes()
        before = list(FeatureEffect.objects.order_by("feature__index").values_list("strength", "curve", "samples"))
        FeatureEffect.objects.all().delete()
        call_command("feature_effects", "import", stored.name, tmp_path / name)
        after = FeatureEffect.objects.order_by("feature__index")
        assert list(after.values_list("strength", "curve", "samples")) == before
        assert [row.is_imported for row in after] == [True, True]
        assert after[0].steers_well == pytest.approx(RESULT.steers_well)
        assert after[0].in_max_act == 0.5
        export_effects(stored, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
        assert import_effects(stored, tmp_path / name) == 2, "again: a no-op"

    def test_output_tokens_travel_too(self, stored, tmp_path):
        tokens = {2: [(" rain", 0.25), ("\n", 0.125)], 5: [(" sea", 0.5), ("\0", 0.1)]}
        assert store_output_tokens(sae=stored, found=tokens) == 2
        lines = self.lines(stored, tmp_path)
        assert json.loads(lines[3]) == {"index": 5, "output_tokens": [[" sea", 0.5]]}
        stored.features.update(output_tokens=[])
        FeatureEffect.objects.all().delete()
        assert self.load(stored, lines) == 3
        assert FeatureEffect.objects.count() == 2
        assert stored.features.get(index=2).output_tokens == [[" rain", 0.25], ["\n", 0.125]]
        assert stored.features.get(index=5).output_tokens == [[" sea", 0.5]]
        assert self.lines(stored, tmp_path) == lines

    def test_of_another_sae(self, stored, other_sae, tmp_path):
        with pytest.raises(InvalidSpecError, match="other weights than those of other-sae") as refused:
            self.load(other_sae, self.lines(stored, tmp_path))
        assert refused.value.code == "sae_mismatch"

    @pytest.mark.parametrize(
        ("field", "value", "message"),
        [
            ("index", 40, "integer from 0 to 39"),
            ("index", 2, "Feature 2 is listed twice"),
            ("strength", math.inf, "finite number"),
            ("fluency", -1, "at least 0"),
            ("base_activation", -0.1, "at least 0"),
            ("curve", [[1, "x"]], "pairs"),
            ("curve", [[1, 2]] * 40, "at most 32"),
            ("after", ["a", "b"], "at most 1 texts"),
            ("other", 1, "Unknown field"),
            ("output_tokens", "abc", "pairs"),
            ("output_tokens", [["a", -1]], "pairs"),
            ("output_tokens", [["a", True]], "pairs"),
            ("output_tokens", [["\0", 1]], "pairs"),
            ("output_tokens", [[1, 1]], "pairs"),
            ("output_tokens", [["a", 1]] * 65, "at most 64"),
        ],
    )
    def test_wrong_fields(self, stored, tmp_path, field, value, message):
        header, first, second = self.lines(stored, tmp_path)
        wrong = json.dumps(json.loads(first) | {field: value})
        FeatureEffect.objects.all().delete()
        with pytest.raises(InvalidSpecError, match=message):
            self.load(stored, [header, wrong, second])
        assert not FeatureEffect.objects.exists()

    @pytest.mark.parametrize("lines", [[], ["[]"], ['{"format": "x"}'], ["{"]])
    def test_other_files(self, sae, lines):
        with pytest.raises(InvalidSpecError):
            self.load(sae, lines)

    def test_damaged_archive(self, sae):
        with pytest.raises(InvalidSpecError, match="damaged"):
            import_effects_file(sae, io.BytesIO(gzip.compress(b"{}\n")[:-9]), "effects.jsonl.gz")

    def test_commands_on_what_is_not_there(self, sae, tmp_path):
        with pytest.raises(CommandError, match="No such file"):
            call_command("feature_effects", "import", sae.name, tmp_path / "none.jsonl")
        for command in (("feature_effects", "export", "none", tmp_path / "x"), ("measure_effects", "none")):
            with pytest.raises(CommandError, match="does not exist"):
                call_command(*command)


class TestRequest:
    def test_without_a_measured_norm(self, other_sae):
        with pytest.raises(SAENotMeasuredError, match="Measure the SAE first") as refused:
            request_effects(sae=other_sae)
        assert (refused.value.status, refused.value.code, refused.value.param) == (409, "sae_not_measured", "sae")

    def test_queues_a_job(self, sae):
        job = request_effects(sae=sae, recipe=QUICK)
        assert (job.kind, job.params["recipe"]["max_tokens"]) == ("steering.effects", 6)
        assert EffectRecipe.from_json(job.params["recipe"]) == QUICK

    def test_selected_features(self, sae):
        sae.features.filter(index=3).update(density=0)
        assert request_effects(sae=sae, features=[7, 5, 7]).params["features"] == [5, 7]
        for wrong, index in (([5, 40], 40), ([3, 5], 3), ([-1], -1)):
            with pytest.raises(EvaluationError, match=f"Feature {index} of `{sae.name}` does not exist") as refused:
                request_effects(sae=sae, features=wrong)
            assert refused.value.param == "features"

    def test_dead_features_are_left_out(self, sae):
        sae.features.filter(index=3).update(density=0)
        sae.features.filter(index=4).update(decoder_norm=0)
        assert set(range(40)) - set(live_features(sae).values_list("index", flat=True)) == {3, 4}


class TestPage:
    def test_button_starts_the_job(self, admin, stored):
        html = page(admin, "admin:steering_sae_change", stored.pk)
        assert "2 of 40 live features measured" in html
        response = admin.post(reverse("admin:steering_sae_effects", args=[stored.pk]), {"replaces": "on"})
        job = Job.objects.get(kind="steering.effects")
        assert response.url == reverse("admin:jobs_job_change", args=[job.pk])
        assert job.params["replaces"]

    def test_without_a_measured_norm(self, admin, other_sae):
        response = admin.post(reverse("admin:steering_sae_effects", args=[other_sae.pk]))
        assert "Measure the SAE first" in said(response)

    def test_result_is_shown(self, sae):
        show = find_kind("steering.effects").load_show()
        assert show is not None
        assert "12 features measured, 28 skipped" in show({"sae": 7, "measured": 12, "skipped": 28})


def steered_distributions(module, layer, skipped, ids, vector):
    """Return log-probabilities at each place; ``vector`` is added to the layer's output, except on skipped tokens."""
    places = torch.tensor([[0.0 if token in skipped else 1.0] for token in ids])

    def hook(module, inputs, output):
        hidden = output[0] if isinstance(output, tuple) else output
        steered = hidden + places * vector
        return (steered, *output[1:]) if isinstance(output, tuple) else steered

    handle = decoder_layers(module)[layer].register_forward_hook(hook)
    try:
        with torch.no_grad():
            return module(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    finally:
        handle.remove()


class CheckpointedJob(RecordedJob):
    checkpoint: dict = {}

    def save_checkpoint(self, checkpoint):
        self.checkpoint = checkpoint


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
class TestInTheEngine:
    @pytest.fixture
    def demo(self, transactional_db) -> Iterator[SAE]:
        with serving_demo():
            yield SAE.objects.select_related("model").get(name="demo-sae")

    def probe(self, sae, runner, recipe=QUICK) -> EffectProbe:
        ready = runner.run(get_registry().ready(sae.model.name))
        return runner.run(EffectProbe.prepare(get_client(), ready, recipe, source_of(sae), sae_identity(sae).site))

    def features(self, sae, probe, *indices) -> list[MeasuredDirection]:
        rows = list(Feature.objects.filter(sae=sae, index__in=indices).select_related("sae").order_by("index"))
        lens = open_lens(sae, probe.model.vocab_size, pytest.fail)([row.index for row in rows])
        return [MeasuredDirection(feature_target(row), ids) for row, ids in zip(rows, lens, strict=True)]

    def test_figures_are_those_of_transformers(self, demo, monkeypatch):
        """KL(unsteered || steered) on the unsteered answers, output score and activations, by hooks of the test."""
        monkeypatch.setattr(effects_probe, "NUM_UNSTEERED", 1)
        with asyncio.Runner() as runner:
            probe = self.probe(demo, runner)
            active = max(range(demo.d_sae), key=probe.activations.__getitem__)  # whatever the model answers here
            features = self.features(demo, probe, 5, 710, active)
            results = runner.run(probe.measure(features))
        module = AutoModelForCausalLM.from_pretrained(ARTIFACTS / "model", attn_implementation="eager").float().eval()
        weights, skipped = get_compiler().sae(source_of(demo)), probe.model.text.special_token_ids

        def distributions(ids, vector):
            return steered_distributions(module, demo.layer, skipped, ids, vector)

        def mean_activation(feature, text):
            """Return the mean over the tokens of an answer."""
            prompt, answer = probe.texts[0].prompt, probe.model.text.encode_plain(text)
            with torch.no_grad():
                hidden = module(torch.tensor([[*prompt, *answer]]), output_hidden_states=True).hidden_states
                seen = weights.encode(hidden[demo.layer + 1][0, len(prompt) :])[:, feature.index]
            return float(seen.mean()) / feature.scales.max_activation

        assert max(result.base_activation for result in results) > 0
        for feature, result in zip(features, results, strict=True):
            (sample,) = result.samples
            for text, got in ((sample.before, result.base_activation), (sample.after, result.steered_activation)):
                assert got == pytest.approx(mean_activation(feature.target, text), rel=1e-2, abs=1e-5)
            step = result.strength * weights.decoder_row(result.index)
            kls = []
            for text in probe.texts:
                ids = [*text.prompt, *text.answer]
                base, steered = distributions(ids, 0.0 * step), distributions(ids, step)
                kls += (base.exp() * (base - steered)).sum(-1)[len(text.prompt) - 1 : -1].tolist()
            assert result.kl == pytest.approx(sum(kls) / len(kls), rel=1e-2)
            assert result.is_capped or abs(math.log(result.kl / QUICK.target)) <= TOLERANCE
            for vector, got in ((step, result.output_score), (0 * step, result.base_output_score)):
                scores = []
                for opening in OPENINGS:
                    last = distributions(list(probe.model.text.encode(opening)), vector)[-1]
                    best = max(feature.lens, key=lambda token: last[token])
                    scores.append(float(last[best].exp()) * (1 - int((last > last[best]).sum()) / len(last)))
                assert got == pytest.approx(sum(scores) / len(scores), rel=1e-2, abs=1e-5)
            assert result.fluency > 0
            assert sample.before
            assert sample.after

    def test_output_tokens_are_those_of_transformers(self, demo):
        with asyncio.Runner() as runner:
            probe = self.probe(demo, runner)
            targets = [feature.target for feature in self.features(demo, probe, 5, 710)]
            found = runner.run(probe.output_tokens(targets))
        module = AutoModelForCausalLM.from_pretrained(ARTIFACTS / "model", attn_implementation="eager").float().eval()
        weights, skipped = get_compiler().sae(source_of(demo)), probe.model.text.special_token_ids
        for target, tokens in zip(targets, found, strict=True):
            row, parts = weights.decoder_row(target.index), []
            step = PUSH * target.scales.reference_norm / row.norm() * row
            for text in probe.texts:
                ids, places = [*text.prompt, *text.answer], slice(len(text.prompt) - 1, -1)
                base, steered = (
                    steered_distributions(module, demo.layer, skipped, ids, vector)[places]
                    for vector in (0 * step, step)
                )
                parts.append(steered.exp() * (steered - base))
            best = torch.cat(parts).mean(0).topk(3)
            assert [text for text, _ in tokens[:3]] == [probe.model.text.decode([i]) for i in best.indices.tolist()]
            assert [part for _, part in tokens[:3]] == pytest.approx(best.values.tolist(), rel=2e-2)

    def test_job_measures_resumes_and_stops(self, demo, monkeypatch):
        demo.features.exclude(index__in=range(700, 720)).update(density=0)
        recipe = replace(QUICK, target=0.1)
        params = {"sae": demo.pk, "recipe": recipe.to_json(), "replaces": False}
        monkeypatch.setattr(effects_job, "AT_ONCE", 8)

        class StoppedJob(CheckpointedJob):
            def progress(self, done: int, total: int, message: str = "") -> None:
                super().progress(done, total, message)
                if done == 8 and message == "Measuring features":
                    raise JobCancelled

        with pytest.raises(JobCancelled):
            run_effects(StoppedJob(params))
        assert FeatureEffect.objects.count() == 8
        first = FeatureEffect.objects.order_by("pk").first()
        job = CheckpointedJob(params)
        assert run_effects(job) == {"sae": demo.pk, "measured": 12, "skipped": demo.d_sae - 12}
        assert FeatureEffect.objects.count() == 20
        written = demo.features.exclude(output_tokens=[])
        assert set(written.values_list("index", flat=True)) == set(range(700, 720))
        assert FeatureEffect.objects.get(pk=first.pk).measured_at == first.measured_at
        assert job.told[-1][:2] == (20, 20)
        assert not job.lines
        assert run_effects(CheckpointedJob(params))["measured"] == 0
        selected = {**params, "features": [700, 719], "replaces": True}
        assert run_effects(CheckpointedJob(selected)) == {"sae": demo.pk, "measured": 2, "skipped": 0}
        assert all(row.samples[0]["before"] for row in FeatureEffect.objects.all())
