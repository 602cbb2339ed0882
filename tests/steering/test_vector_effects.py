"""Measured effects of registered vectors: against transformers, as a job, on pages, in edits and over the APIs."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from django.core.management import CommandError, call_command
from django.urls import reverse
from django.utils import timezone
from transformers import AutoModelForCausalLM

from inference.client import get_client
from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.registry import get_registry
from jobs.kinds import find_kind
from jobs.models import Job
from steering.demo.install import ARTIFACTS
from steering.effects.job import run_vector_effects
from steering.effects.probe import EffectProbe
from steering.effects.recipe import EffectResult, Sample
from steering.effects.store import store_vector_effect
from steering.effects.strength_search import TOLERANCE
from steering.models import SAE, PlainVector, VectorEffect, VectorSet
from steering.profiles.compilation import get_compiler
from steering.profiles.inline_edits import read_inline, read_short_edits
from steering.profiles.snapshot import registered_saes, source_of
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import parse_edits
from steering.vectors.dashboard import vector_url
from steering.vectors.services import NewVector, save_vectors
from tests.console.test_pages import client_of
from tests.console.test_pages import staff as console_staff
from tests.console.test_studio import EDITOR, ask
from tests.steering.evaluating import serving_demo
from tests.steering.pages import page, staff
from tests.steering.sae_files import D_IN
from tests.steering.test_draft_form import outcomes, saved
from tests.steering.test_effects import QUICK, CheckpointedJob, steered_distributions

pytestmark = pytest.mark.django_db(transaction=True)  # a snapshot is reloaded inside a transaction that writes
SET = "admin:steering_vectorset_change"
RESULT = EffectResult(
    index=None,
    strength=2.0,
    kl=0.31,
    push=0.4,
    is_capped=False,
    fluency=1.25,
    curve=((1.0, 0.1), (2.0, 0.31)),
    samples=(Sample("Tell me a story.", "A cat sat.", "It rained on the cat."),),
)
STORED = {"recipe": "r", "output_tokens": [(" rain", 0.25), ("\0", 0.1)]}


@pytest.fixture
def vector(model: LanguageModel) -> PlainVector:
    rows = [NewVector(Site(layer), tuple(float(n + layer + 1) for n in range(D_IN)), 20.0) for layer in (0, 2)]
    return save_vectors(name="calm", model=model, vectors=rows, origin="calm.npz").vectors.get(layer=0)


@pytest.fixture
def measured(vector: PlainVector) -> PlainVector:
    store_vector_effect(vector=vector, result=RESULT, measured_at=timezone.now(), **STORED)  # type: ignore[arg-type]
    registered_saes.invalidate()
    return vector


class TestStoring:
    def test_a_new_measurement_replaces_the_old_one(self, measured):
        store_vector_effect(vector=measured, result=RESULT, recipe="s", output_tokens=(), measured_at=timezone.now())
        (row,) = VectorEffect.objects.all()
        assert (row.recipe, row.strength, row.output_tokens) == ("s", 2.0, [])

    def test_strengths_by_unit_and_levels_of_the_slider(self, measured):
        effect = measured.effect
        assert [effect.in_unit(unit) for unit in ("raw", "resid_norm", "max_act")] == [2.0, 0.4, None]
        felt, strong = effect.levels
        assert felt == pytest.approx(0.2)  # 0.1 nats at raw 1, whose relative size is half of that at 2
        assert strong > 0.4
        assert effect.output_tokens == [[" rain", 0.25]]  # what Postgres cannot store is left out


class TestPages:
    def test_the_vector_shows_its_effect(self, admin, measured):
        html = admin.get(vector_url(measured)).content.decode()
        assert "0.31 nats per token, relative size 0.40" in html
        assert "It rained on the cat." in html
        assert "> rain</code>" in html
        assert "Output score" not in html  # which only features have
        assert json.loads(admin.get(vector_url(measured)).context["try_json"])["edit"]["strength"] == 0.4
        other = measured.vector_set.vectors.get(layer=2)
        assert "Not measured." in admin.get(vector_url(other)).content.decode()

    def test_the_button_starts_the_job(self, admin, vector):
        url = reverse("admin:steering_vectorset_effects", args=[vector.vector_set_id])
        assert "Measure effects" in page(admin, SET, vector.vector_set_id)
        assert admin.get(url).status_code == 405
        response = admin.post(url)
        job = Job.objects.get(kind="steering.vector_effects")
        assert response.url == reverse("admin:jobs_job_change", args=[job.pk])
        assert (job.params["vector_set"], job.params["replaces"]) == (vector.vector_set_id, False)
        show = find_kind(job.kind).show
        assert f"/vectorset/{vector.vector_set_id}/change/" in show({**job.params, "measured": 2, "skipped": 0})
        assert admin.post(reverse("admin:steering_vectorset_effects", args=[10**6])).status_code == 404

    def test_readers_cannot_start_it(self, vector):
        VectorSet.objects.update(created_by=None)
        reader = staff("view_vectorset", "see_all_vectorsets")
        assert "Measure effects" not in page(reader, SET, vector.vector_set_id)
        url = reverse("admin:steering_vectorset_effects", args=[vector.vector_set_id])
        assert reader.post(url).status_code == 403
        assert not Job.objects.exists()

    def test_a_card_of_a_draft_shows_it(self, admin, measured, profile):
        form = {"plain_vector": measured.pk, "operation": "add", "strength": "1", "unit": "raw", "phase": "both"}
        form = {f"edits-2-0-{name}": value for name, value in form.items()}
        form |= {"name": profile.name, "description": "", "edits-2-TOTAL_FORMS": 1, "edits-2-INITIAL_FORMS": 0}
        card = outcomes(admin, profile, {**saved(profile), **form})[-1]
        assert card["calibrated"]["strength"] == 2.0
        assert "0.31 nats per token, perplexity × 1.2" in card["calibrated"]["words"]
        assert card["scale"]["levels"] == pytest.approx(measured.effect.levels)

    def test_the_studio_has_it_on_cards_and_sliders(self, measured):
        editor = client_of(console_staff(*EDITOR, "view_vectorset"))
        cards = ask(editor, "vectors").json()["features"]
        assert [(card["strength"], card["outputs"], card["sample"]) for card in cards] == [
            (0.4, [" rain"], "It rained on the cat."),
            (0.1, [], ""),
        ]
        edit = {"set": "calm", "layer": 0, "operation": "add", "strength": 0.1, "unit": "resid_norm"}
        rows = ask(editor, "edits", edits=[edit, {**edit, "layer": 2}, {**edit, "operation": "projection_cap"}]).json()
        first, unmeasured, capped = rows["edits"]
        assert (first["calibrated"]["strength"], first["curve"]) == (0.4, [[1.0, 0.1], [2.0, 0.31]])
        assert first["scale"]["levels"] == pytest.approx(measured.effect.levels)
        assert first["url"] == vector_url(measured)
        assert (unmeasured["calibrated"], unmeasured["curve"]) == (None, [])
        assert (capped["calibrated"], capped["curve"]) == (None, [])


class TestAutoStrength:
    def edits(self, *items: dict[str, Any]) -> dict[str, Any]:
        return {"vectors": [{"set": "calm", "layer": 0, "strength": "auto", **item} for item in items]}

    def test_is_the_calibrated_strength(self, measured):
        version = read_inline(measured.vector_set.model_id, "tiny", self.edits({}, {"unit": "raw", "phase": "prompt"}))
        assert [(one.strength, one.unit) for one in parse_edits(version.edits)] == [(0.4, "resid_norm"), (2.0, "raw")]

    def test_refusals(self, measured):
        for item, message in (
            ({"layer": 2}, 'calm at layer 2 was not measured. Start "Measure effects" on the page of the vector'),
            ({"operation": "projection_cap"}, "calibrated strength of `add`"),
        ):
            with pytest.raises(Exception, match=message) as refused:
                read_inline(measured.vector_set.model_id, "tiny", self.edits(item))
            assert refused.value.param == "steering.vectors[0].strength"
        other = {"name": "calm", "layer": 0, "values": [0.5] * D_IN}  # not the registered numbers
        with pytest.raises(InvalidSpecError, match="calm at layer 0 was not measured"):
            read_short_edits(measured.vector_set.model, [{"vector": other, "strength": "auto"}])
        for wrong in ({"layer": 0, "values": [0.5] * D_IN}, {"name": "calm", "layer": 0, "values": [[1.0]]}):
            with pytest.raises(InvalidSpecError, match="of a feature or of a registered vector"):
                read_short_edits(measured.vector_set.model, [{"vector": wrong, "strength": "auto"}])
        VectorEffect.objects.update(strength=0.0)
        with pytest.raises(Exception, match="steering with it was unstable"):
            read_inline(measured.vector_set.model_id, "tiny", self.edits({}))


class TestCommand:
    def test_queues_the_job(self, vector, capsys):
        call_command("measure_effects", "calm", "--vectors", "--no-wait", "--target", "0.2", "--replace")
        params = Job.objects.get(kind="steering.vector_effects").params
        assert (params["recipe"]["target"], params["replaces"]) == (0.2, True)

    def test_refusals(self, vector):
        with pytest.raises(CommandError, match="The vector set nobody does not exist"):
            call_command("measure_effects", "nobody", "--vectors")
        with pytest.raises(CommandError, match="--features is for"):
            call_command("measure_effects", "calm", "--vectors", "--features", "1")


@pytest.mark.slow
class TestInTheEngine:
    @pytest.fixture
    def demo(self, transactional_db: None) -> Iterator[SAE]:
        with serving_demo():
            yield SAE.objects.select_related("model").get(name="demo-sae")

    def saved(self, demo: SAE, layer: int) -> VectorSet:
        """Save the decoder row of a feature as a vector of another length, and one whose effect cannot be measured."""
        row = 3 * get_compiler().sae(source_of(demo)).decoder_row(710)
        rows = [NewVector(Site(layer), tuple(row.tolist())), NewVector(Site(layer, "resid_pre"), (0.0,) * len(row))]
        return save_vectors(name="rain", model=demo.model, vectors=rows, origin="a row")

    def probe(self, demo: SAE) -> EffectProbe:
        """Return a probe with the unsteered texts of the job, whose seeds are fixed."""
        with asyncio.Runner() as runner:
            model = runner.run(get_registry().ready(demo.model.name))
            return runner.run(EffectProbe.prepare(get_client(), model, QUICK))

    def run(self, vector_set: VectorSet, *, replaces: bool = False) -> dict[str, Any]:
        params = {"vector_set": vector_set.pk, "recipe": QUICK.to_json(), "replaces": replaces}
        return run_vector_effects(CheckpointedJob(params))  # type: ignore[arg-type]

    def test_figures_are_those_of_transformers(self, demo):
        """KL(unsteered || steered) on the unsteered answers, by hooks of the test."""
        vector_set = self.saved(demo, demo.layer)
        assert self.run(vector_set) == {"vector_set": vector_set.pk, "measured": 1, "skipped": 1}
        effect = VectorEffect.objects.select_related("vector").get()
        vector = torch.tensor(effect.vector.values)
        assert effect.push == pytest.approx(effect.strength * float(vector.norm()) / demo.reference_norm, rel=1e-4)
        assert effect.output_tokens
        module = AutoModelForCausalLM.from_pretrained(ARTIFACTS / "model", attn_implementation="eager").float().eval()
        probe, kls = self.probe(demo), []
        for text in probe.texts:
            base, steered = (
                steered_distributions(
                    module,
                    demo.layer,
                    probe.model.text.special_token_ids,
                    [*text.prompt, *text.answer],
                    strength * vector,
                )
                for strength in (0.0, effect.strength)
            )
            kls += (base.exp() * (base - steered)).sum(-1)[len(text.prompt) - 1 : -1].tolist()
        assert effect.kl == pytest.approx(sum(kls) / len(kls), rel=1e-2)
        assert effect.is_capped or abs(math.log(effect.kl / QUICK.target)) <= TOLERANCE

    def test_what_is_measured_is_skipped_unless_replaced(self, demo):
        vector_set = self.saved(demo, demo.layer)
        self.run(vector_set)
        first = VectorEffect.objects.get().measured_at
        assert self.run(vector_set)["measured"] == 0
        assert VectorEffect.objects.get().measured_at == first
        assert self.run(vector_set, replaces=True)["measured"] == 1
        assert VectorEffect.objects.get().measured_at > first

    def test_an_unknown_norm_of_the_residual_is_measured_first(self, demo):
        """The mean over the prompts' tokens, as transformers computes them."""
        vector_set = self.saved(demo, 0)
        assert demo.layer != 0
        self.run(vector_set)
        row = vector_set.vectors.get(site="resid_post")
        module = AutoModelForCausalLM.from_pretrained(ARTIFACTS / "model", attn_implementation="eager").float().eval()
        probe, norms = self.probe(demo), []
        for prompt in QUICK.prompts:
            ids, special = probe.encode(prompt), probe.model.text.special_token_ids
            with torch.no_grad():
                hidden = module(torch.tensor([ids]), output_hidden_states=True).hidden_states[1][0]
            first = 0 if ids[0] in special else 1  # which is an attention sink
            kept = [n for n, token in enumerate(ids) if token not in special and n >= first]
            norms += hidden[kept].norm(dim=-1).tolist()
        assert row.reference_norm == pytest.approx(sum(norms) / len(norms), rel=1e-2)
        assert row.effect.push == pytest.approx(row.effect.strength * row.norm / row.reference_norm, rel=1e-4)
