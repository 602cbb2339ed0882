"""A profile's form read as it stands: what its edits come to, what is wrong with them, and nothing written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from steering import services
from steering.effects.recipe import EffectResult
from steering.effects.store import store_effects
from steering.errors import SAEUnavailableError
from steering.models import SAE, Evaluation, Feature, FeatureEdit, FeatureEffect, SteeringProfile
from steering.profiles.draft_form import FieldProblem, InvalidDraftError, UnsavedDraft
from steering.profiles.drafts import draft_edits
from steering.spec.rendering import edits_to_json, fingerprint
from steering.spec.units import MAX_STRENGTH
from tests.steering.pages import GATE_DEFAULTS, staff
from tests.steering.test_admin import row, rows

EDITOR = (
    "view_steeringprofile", "change_steeringprofile",
    "view_featureedit", "add_featureedit", "change_featureedit", "delete_featureedit",
)  # fmt: skip
Form = dict[str, Any]


def saved(profile: SteeringProfile, **fields: object) -> Form:
    """The form of the profile's one edit, with other values."""
    edit = profile.edits.get()
    assert edit.feature is not None
    return rows([{**row(edit.feature), "id": edit.pk, "profile": profile.pk, **fields}], 1)


def read(profile: SteeringProfile, form: Form, user: User | None = None) -> UnsavedDraft:
    """As the page's own code reads what it posts."""
    request = RequestFactory().post("/", form)
    request.user = user or User.objects.create_superuser("root")
    pages: Any = django_admin.site.get_model_admin(SteeringProfile)
    draft: UnsavedDraft = pages.unsaved_draft(request, str(profile.pk))
    return draft


def outcomes(client: Client, profile: SteeringProfile, form: Form) -> list[dict[str, Any]]:
    response = client.post(reverse("admin:steering_steeringprofile_outcomes", args=[profile.pk]), form)
    assert response.status_code == 200
    found: list[dict[str, Any]] = response.json()["cards"]
    return found


def test_it_is_what_saving_and_publishing_would_make(admin: Client, profile: SteeringProfile, sae: SAE):
    before = edits_to_json(draft_edits(profile))
    new = row(sae.features.get(index=1), strength="0.25", phase="generation")
    form = saved(profile, strength="1.5") | {"edits-TOTAL_FORMS": 2}
    form |= {f"edits-1-{name}": value for name, value in new.items()}
    vector = {"layer": 1, "site": "resid_post", "values": [1.0] * 12}
    form |= {"edits-2-TOTAL_FORMS": 1, "edits-2-0-vector": json.dumps(vector), "edits-2-0-strength": "2"}
    form |= {"edits-2-0-unit": "raw", "edits-2-0-phase": "both", "name": "gloomy", "description": ""}
    draft = read(profile, form)
    assert edits_to_json(draft_edits(profile)) == before
    assert draft.words[:2] == (
        "tiny-sae #0 sad rainy weather: add 1.5 × max activation",
        "tiny-sae #1 cats and kittens: add 0.25 × max activation, generation only",
    )
    assert admin.post(reverse("admin:steering_steeringprofile_change", args=[profile.pk]), form).status_code == 302
    version = services.publish_profile(profile=profile)
    assert (draft.version.edits, draft.version.fingerprint) == (version.edits, version.fingerprint)
    assert (draft.version.label, draft.model) == ("gloomy@draft", "tiny")
    assert [source.name for source in draft.version.saes] == [version.saes.get().name]


def test_edits_that_are_ticked_away_and_empty_cards_do_not_act(profile: SteeringProfile, sae: SAE):
    form = saved(profile, DELETE="on") | {"edits-TOTAL_FORMS": 3}
    form |= {f"edits-1-{name}": value for name, value in row(sae.features.get(index=2)).items()}
    empty = {"feature": "", "operation": "add", "strength": "0.5", "unit": "max_act", "phase": "both"}
    form |= {f"edits-2-{name}": value for name, value in empty.items()}
    form |= {"edits-2-scope": "everything", **{f"edits-2-{name}": value for name, value in GATE_DEFAULTS.items()}}
    draft = read(profile, form)
    assert draft.words == ("tiny-sae #2 the sea: add 0.5 × max activation",)
    assert profile.edits.get().strength == 0.5


BAD: list[tuple[Form, str, str]] = [
    ({"strength": "no"}, "edits-0-strength", "Enter a number"),
    ({"strength": ""}, "edits-0-strength", "required"),
    ({"strength": "nan"}, "edits-0-strength", "Enter a number"),
    ({"strength": "1e999"}, "edits-0-strength", "Enter a number"),
    ({"strength": str(2 * MAX_STRENGTH)}, "edits-0-strength", "less than or equal"),
    ({"strength": "1000"}, "edits-0-strength", "the limit is 10"),
    ({"operation": "explode"}, "edits-0-operation", "explode is not one of"),
    ({"phase": "never"}, "edits-0-phase", "never is not one of"),
    ({"feature": "999999999"}, "edits-0-feature", "valid choice"),
    ({"feature": "<script>"}, "edits-0-feature", "valid choice"),
    ({"scope": "thinking"}, "edits-0-phase", "requires the phase `generation`"),
    ({"id": "999999999"}, "edits-0-id", "valid choice"),
    ({"first": "2", "after": "2"}, "edits-0-", ""),
    ({"operation": "projection_cap", "unit": "max_act"}, "edits-0-unit", ""),
    ({"gate_above": "x"}, "edits-0-gate_above", "Enter a number"),
]


@pytest.mark.parametrize(("fields", "name", "words"), BAD)
def test_what_is_wrong_is_told_by_field(profile: SteeringProfile, fields: Form, name: str, words: str):
    with pytest.raises(InvalidDraftError) as caught:
        read(profile, saved(profile, **fields))
    problem = caught.value.problems[0]
    assert problem.field.startswith(name)
    assert words in problem.message
    assert problem.place.startswith("feature edit 1, ")
    assert profile.edits.get().strength == 0.5


def test_the_same_edit_twice_contradicts_itself(profile: SteeringProfile, feature: Feature):
    form = saved(profile) | {"edits-TOTAL_FORMS": 2}
    form |= {f"edits-1-{name}": value for name, value in row(feature).items()}
    with pytest.raises(InvalidDraftError) as caught:
        read(profile, form)
    assert caught.value.problems[0].field.startswith("edits-1-")


@pytest.mark.parametrize("form", [{}, {"edits-TOTAL_FORMS": "x", "edits-INITIAL_FORMS": "-1"}])
def test_a_form_that_is_none_is_refused(profile: SteeringProfile, form: Form):
    with pytest.raises(InvalidDraftError, match="ManagementForm"):
        read(profile, form)


def test_a_draft_without_edits_is_nothing_to_try(profile: SteeringProfile):
    with pytest.raises(InvalidDraftError) as caught:
        read(profile, saved(profile, DELETE="on"))
    assert caught.value.problems == (FieldProblem("", "", "The draft of gloomy has no edits; add at least one."),)


def test_a_feature_of_another_model_is_refused(profile: SteeringProfile, other_sae: SAE):
    with pytest.raises(InvalidDraftError) as caught:
        read(profile, saved(profile, feature=other_sae.features.get(index=0).pk))
    assert caught.value.problems[0].field == "edits-0-feature"


def test_an_sae_whose_files_are_gone_is_named(profile: SteeringProfile, sae: SAE, tmp_path: Any):
    for file in (tmp_path / "sae").iterdir():
        file.unlink()
    with pytest.raises(SAEUnavailableError, match="tiny-sae"):
        read(profile, saved(profile))


def test_others_profiles_are_hidden_and_readers_may_not_try(profile: SteeringProfile):
    profile.owner = User.objects.create_user("olga")
    profile.save()
    staff(*EDITOR)
    with pytest.raises(Http404):
        read(profile, saved(profile), User.objects.get(username="staff"))
    profile.owner = None
    profile.save()
    assert read(profile, saved(profile), User.objects.get(username="staff")).words
    User.objects.get(username="staff").user_permissions.clear()
    with pytest.raises(PermissionDenied):
        read(profile, saved(profile), User.objects.get(username="staff"))


class TestOutcomes:
    def test_each_card_says_what_it_comes_to(self, admin: Client, profile: SteeringProfile):
        (card,) = outcomes(admin, profile, saved(profile, strength="1.5"))
        assert card["prefix"] == "edits-0"
        assert card["words"] == "tiny-sae #0 sad rainy weather: add 1.5 × max activation"
        assert card["coefficient"] == "+6"
        edit = draft_edits(profile)[0]
        assert edit.push is not None
        assert card["push"] == pytest.approx(3 * edit.push)
        assert card["scale"]["raw_per_one"] == 4.0
        assert profile.edits.get().strength == 0.5

    def test_a_bad_card_does_not_hide_the_others(self, admin: Client, profile: SteeringProfile, sae: SAE):
        form = saved(profile, strength="x") | {"edits-TOTAL_FORMS": 2}
        form |= {f"edits-1-{name}": value for name, value in row(sae.features.get(index=1)).items()}
        bad, good = outcomes(admin, profile, form)
        assert (bad["problem"], bad["scale"]) == ("strength: Enter a number.", None)
        assert (good["problem"], good["coefficient"]) == ("", "+4")

    def test_an_sae_that_looks_wrong_is_told(self, admin: Client, profile: SteeringProfile, sae: SAE):
        assert outcomes(admin, profile, saved(profile))[0]["warning"] == ""
        sae.fvu = 0.95
        sae.save()
        assert "looks wrong" in outcomes(admin, profile, saved(profile))[0]["warning"]

    def test_a_calibration_marks_its_strength(self, admin: Client, profile: SteeringProfile):
        version = services.publish_profile(profile=profile)
        proposal = {"factor": 1.5, "kl": 0.31}
        Evaluation.objects.create(kind="calibration", version=version, result={"proposal": proposal})
        (card,) = outcomes(admin, profile, saved(profile))
        assert card["calibrated"]["strength"] == 0.75
        assert "gloomy@1" in card["calibrated"]["words"]
        assert outcomes(admin, profile, saved(profile, operation="clamp"))[0]["calibrated"] is None

    def test_measured_effects_mark_the_slider(self, admin, profile, feature):
        curve = ((1.0, 0.1), (2.0, 0.4))  # grows with the square
        found = EffectResult(0, 2.0, 0.4, 0.2, is_capped=False, fluency=1.5, curve=curve)
        store_effects(sae=feature.sae, results=[found], recipe="r", measured_at=timezone.now())
        (card,) = outcomes(admin, profile, saved(profile))
        assert card["calibrated"]["strength"] == 0.5, "of a max activation of 4"
        assert "0.4 nats per token, perplexity × 1.5" in card["calibrated"]["words"]
        assert "try less" not in card["calibrated"]["words"]
        assert card["scale"]["levels"] == [pytest.approx(0.1), pytest.approx(0.2 * 2.5**0.5)]
        assert outcomes(admin, profile, saved(profile, unit="raw"))[0]["calibrated"]["strength"] == 2.0
        (clamped,) = outcomes(admin, profile, saved(profile, operation="clamp"))
        assert clamped["calibrated"] is clamped["scale"]["levels"] is None
        FeatureEffect.objects.update(fluency=3.0)
        (card,) = outcomes(admin, profile, saved(profile))
        assert card["scale"]["levels"][1] == pytest.approx(0.2), "its text breaks at the calibrated strength"

    def test_it_takes_a_post_by_who_may_change_the_profile(self, admin: Client, profile: SteeringProfile):
        url = reverse("admin:steering_steeringprofile_outcomes", args=[profile.pk])
        assert admin.get(url).status_code == 405
        assert staff("view_steeringprofile").post(url, saved(profile)).status_code == 403
        assert admin.post(reverse("admin:steering_steeringprofile_outcomes", args=[0])).status_code == 404
        assert Client().post(url, saved(profile)).status_code == 302

    def test_the_page_has_its_slider_and_preview_for_who_may_use_them(self, admin: Client, profile: SteeringProfile):
        url = reverse("admin:steering_steeringprofile_change", args=[profile.pk])
        html = admin.get(url).content.decode()
        assert 'id="strength-slider"' in html
        assert 'data-felt="0.2"' in html
        assert 'data-sae="tiny-sae"' in html
        html = staff(*EDITOR).get(url).content.decode()
        assert 'id="strength-slider"' in html
        assert 'id="draft-preview"' not in html

    def test_readers_have_neither(self, profile: SteeringProfile):
        url = reverse("admin:steering_steeringprofile_change", args=[profile.pk])
        html = staff("view_steeringprofile", "view_featureedit").get(url).content.decode()
        assert 'id="strength-slider"' not in html
        assert 'id="draft-preview"' not in html


def test_a_tried_draft_and_its_version_are_the_same_to_the_engine(profile: SteeringProfile):
    draft = read(profile, saved(profile))
    assert draft.version.fingerprint == fingerprint(draft_edits(profile))
    assert FeatureEdit.objects.count() == 1
