"""The admin's pages: what they show, what they do, and what they refuse."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from core.snapshots import forget_snapshots
from steering import services
from steering.models import SAE, Feature, FeatureEdit, ProfileVersion, SteeringProfile
from steering.profiles.drafts import draft_edits
from steering.spec.wording import describe_edit
from tests.steering.edits import vector_edit
from tests.steering.pages import GATE_DEFAULTS, login, page, said, staff
from tests.steering.sae_files import sae_config, write_sae

CHANGE = "admin:steering_steeringprofile_change"
PUBLISH = "admin:steering_steeringprofile_publish"
DUPLICATE = "admin:steering_steeringprofile_duplicate"
RESTORE = "admin:steering_steeringprofile_restore"
PROFILES = "admin:steering_steeringprofile_changelist"


def rows(edits: list[dict[str, object]], initial: int = 0) -> dict[str, object]:
    """The form data of the two inlines, feature edits first."""
    data: dict[str, object] = {}
    for prefix, forms, existing in (("edits", edits, initial), ("edits-2", [], 0)):
        data |= {f"{prefix}-TOTAL_FORMS": len(forms), f"{prefix}-INITIAL_FORMS": existing}
        for number, form in enumerate(forms):
            data |= {f"{prefix}-{number}-{name}": value for name, value in form.items()}
    return data


def row(feature: Feature, **fields: object) -> dict[str, object]:
    return {
        "feature": feature.pk, "operation": "add", "strength": "0.5", "unit": "max_act", "phase": "both", **fields,
    }  # fmt: skip


class TestDraft:
    def test_profile_is_made_in_two_steps(self, admin, model, feature):
        data = {"name": "calm", "model": model.pk, "description": ""}
        response = admin.post(reverse("admin:steering_steeringprofile_add"), data)
        profile = SteeringProfile.objects.get()
        assert response.url == reverse(CHANGE, args=[profile.pk])
        assert str(profile.owner) == "admin"
        data = {"name": "calm", "description": "", **rows([row(feature)])}
        assert admin.post(response.url, data).status_code == 302
        assert profile.edits.get().feature == feature

    def test_a_draft_of_many_edits_is_saved(self, admin, profile, sae):
        """Its form has more fields than Django takes unasked."""
        empty = dict.fromkeys(("id", "after", "first", "gate_feature", "gate_above"), "")
        rest = {**empty, "profile": profile.pk, "scope": "everything", **GATE_DEFAULTS}
        subjects = [(phase, each) for phase in ("prompt", "generation") for each in sae.features.all()[:40]]
        profile.edits.all().delete()
        data = {"name": "gloomy", "description": "", **rows([row(f, phase=p, **rest) for p, f in subjects])}
        assert len(data) > 1_000
        assert admin.post(reverse(CHANGE, args=[profile.pk]), data).status_code == 302
        assert profile.edits.count() == len(subjects)

    def test_shows_what_strengths_come_to(self, admin, profile):
        html = page(admin, CHANGE, profile.pk)
        assert "+2" in html  # 0.5 of the maximal activation, which is 4
        assert "Not published yet. Requests can&#x27;t use it." in html

    def test_a_draft_whose_labels_or_norms_are_newer_is_not_said_to_differ(self, admin, profile, sae):
        SAE.objects.filter(pk=sae.pk).update(median_resid_norm=20.0)
        services.publish_profile(profile=profile)
        assert "Live: v1. No unpublished changes." in page(admin, CHANGE, profile.pk)
        SAE.objects.filter(pk=sae.pk).update(mean_resid_norm=21.5)  # as measuring it finds
        assert "Live: v1. The draft has the same effect." in page(admin, CHANGE, profile.pk)
        profile.edits.update(strength=0.25)
        assert "Live: v1. The draft has unpublished changes." in page(admin, CHANGE, profile.pk)

    def test_a_draft_whose_attention_sinks_are_others_differs(self, admin, profile, sae):
        SAE.objects.filter(pk=sae.pk).update(median_resid_norm=20.0)
        services.publish_profile(profile=profile)
        SAE.objects.filter(pk=sae.pk).update(median_resid_norm=30.0)
        assert "Live: v1. The draft has unpublished changes." in page(admin, CHANGE, profile.pk)
        profile.edits.update(sink_tokens=True)
        assert "attention sinks too" in page(admin, CHANGE, profile.pk)

    def test_warns_above_a_push_that_text_survives(self, admin, profile):
        profile.edits.update(strength=4.0)
        assert 'class="steering-warning"' in page(admin, CHANGE, profile.pk)
        profile.edits.update(strength=0.5)
        assert 'class="steering-warning"' not in page(admin, CHANGE, profile.pk)

    def test_says_when_the_units_number_is_unknown(self, admin, profile, sae):
        profile.edits.update(feature=sae.features.get(index=9))
        assert "needs the feature&#x27;s max activation" in page(admin, CHANGE, profile.pk)

    def test_odd_values_in_the_database_break_no_page(self, admin, profile):
        profile.edits.update(strength=float("nan"))
        page(admin, CHANGE, profile.pk)
        page(admin, PUBLISH, profile.pk)

    @pytest.mark.parametrize("strength", ["nan", "inf", "-inf", "1e30", "x", ""])
    def test_strengths_without_meaning_are_refused(self, strength, admin, profile, feature):
        edit = profile.edits.get()
        data = {"name": "gloomy", "description": "", **rows([row(feature, strength=strength, id=edit.pk)], 1)}
        assert admin.post(reverse(CHANGE, args=[profile.pk]), data).status_code == 200
        assert profile.edits.get().strength == 0.5

    def test_features_of_other_models_are_refused(self, admin, profile, other_sae):
        data = {"name": "gloomy", "description": "", **rows([row(other_sae.features.get(index=0))])}
        response = admin.post(reverse(CHANGE, args=[profile.pk]), data)
        assert "Select a valid choice" in response.content.decode()

    def test_vectors(self, admin, profile):
        vector = {"layer": 1, "site": "resid_post", "values": [1.0] * 12}
        form = {"vector": json.dumps(vector), "strength": "2", "unit": "raw", "phase": "both"}
        data = {"name": "gloomy", "description": "", **rows([])}
        data |= {"edits-2-TOTAL_FORMS": 1, **{f"edits-2-0-{name}": value for name, value in form.items()}}
        assert admin.post(reverse(CHANGE, args=[profile.pk]), data).status_code == 302
        assert FeatureEdit.objects.get(feature=None).vector == vector
        data["edits-2-0-vector"] = '{"layer": 1, "values": ["x"]}'
        response = admin.post(reverse(CHANGE, args=[profile.pk]), data)
        assert "vector.values[0]: Expected a number" in response.content.decode()

    def test_every_condition_can_be_set(self, admin, profile, sae):
        mine, other = sae.features.get(index=0), sae.features.get(index=1)
        form = row(
            mine, operation="projection_cap", strength="2", lower="-1", unit="raw", after="2", first="9",
            only_if_active="on", gate_feature=other.pk, gate_above="0.5", gate_unit="raw", special_tokens="on",
            scope="outside_calls", id=profile.edits.get().pk,
        )  # fmt: skip
        site = {"vector": '{"layer": 1, "site": "mlp_out"}', "operation": "norm_preserving", "strength": "1"}
        data = {"name": "gloomy", "description": "", **rows([form], 1)}
        data |= {"edits-2-TOTAL_FORMS": 1, **{f"edits-2-0-{name}": value for name, value in site.items()}}
        data |= {"edits-2-0-unit": "raw", "edits-2-0-phase": "generation", "edits-2-0-scope": "answer"}
        assert admin.post(reverse(CHANGE, args=[profile.pk]), data).status_code == 302
        assert [describe_edit(edit) for edit in draft_edits(profile)] == [
            f"tiny-sae #0 {mine.label}: cap the projection at -1 to 2 raw, outside tool calls, after 2 tokens, first 9"
            f" tokens, only where active, only where tiny-sae #1 {other.label} is above 0.5 raw, special tokens too",
            "residual at layer 1 (mlp_out): keep the norm, generation only, in the answer",
        ]
        html = page(admin, CHANGE, profile.pk)
        assert "-1 to 2" in html

    def test_a_gate_on_a_vector_decides_once(self, admin, profile, sae):
        mine = sae.features.get(index=0)
        gate = {"gate_vector": '{"layer": 0, "site": "resid_post", "values": [3, 4]}', **GATE_DEFAULTS}
        gate |= {"gate_measure": "cosine", "gate_side": "below", "gate_above": "0.2", "gate_scope": "prompt_last"}
        form = row(mine, unit="raw", phase="from_last_prompt_token", id=profile.edits.get().pk, **gate)
        assert admin.post(reverse(CHANGE, args=[profile.pk]), {"name": "gloomy", **rows([form], 1)}).status_code == 302
        (words,) = [describe_edit(edit) for edit in draft_edits(profile)]
        assert words.endswith(
            ", from the last prompt token on, only if at the prompt's last token the cosine with vector at layer 0 "
            "(resid_post) is below 0.2"
        )

    def test_a_scope_that_the_phase_has_not_is_told(self, admin, profile, feature):
        data = {"name": "gloomy", "description": ""}
        data |= rows([row(feature, scope="thinking", id=profile.edits.get().pk, profile=profile.pk)], 1)
        assert admin.post(reverse(CHANGE, args=[profile.pk]), data).status_code == 302
        html = page(admin, CHANGE, profile.pk)
        assert "The scope `thinking` requires the phase `generation`, got `both`." in html
        assert "can't be published" in page(admin, PUBLISH, profile.pk)

    def test_a_gate_of_another_model_is_refused(self, admin, profile, feature, other_sae):
        data = {"name": "gloomy", "description": ""}
        data |= rows([row(feature, gate_feature=other_sae.features.get(index=0).pk, id=profile.edits.get().pk)], 1)
        response = admin.post(reverse(CHANGE, args=[profile.pk]), data)
        assert "Select a valid choice" in response.content.decode()

    def test_published_name_and_model_stay(self, admin, profile, other_model):
        services.publish_profile(profile=profile)
        data = {"name": "renamed", "model": other_model.pk, "description": "New.", **rows([])}
        assert admin.post(reverse(CHANGE, args=[profile.pk]), data).status_code == 302
        profile.refresh_from_db()
        assert (profile.name, profile.model.name, profile.description) == ("gloomy", "tiny", "New.")

    def test_published_profile_cannot_be_deleted(self, admin, profile):
        services.publish_profile(profile=profile)
        admin.post(reverse("admin:steering_steeringprofile_delete", args=[profile.pk]), {"post": "yes"})
        assert SteeringProfile.objects.filter(pk=profile.pk).exists()


class TestAutocomplete:
    def search(self, client: Client, term: str, model: int) -> Any:
        params: dict[str, str | int] = {
            "app_label": "steering",
            "model_name": "featureedit",
            "field_name": "feature",
            "term": term,
        }
        return client.get("/admin/autocomplete/", {**params, "language_model": model})

    def test_finds_features_of_the_model_by_label(self, admin, sae, other_sae):
        other_sae.features.filter(index=3).update(label="rainy")
        found = self.search(admin, "rain", sae.model_id).json()["results"]
        assert [result["text"] for result in found] == ["tiny-sae #0 sad rainy weather"]

    def test_page_asks_for_the_profiles_model(self, admin, profile):
        assert f"/admin/autocomplete/?language_model={profile.model_id}" in page(admin, CHANGE, profile.pk)

    def test_needs_permission(self, sae):
        assert self.search(staff("change_steeringprofile"), "rain", sae.model_id).status_code == 403


class TestPublishing:
    def test_page_shows_what_changes_and_asks_for_a_note(self, admin, profile):
        services.publish_profile(profile=profile)
        profile.edits.update(strength=1.5)
        html = page(admin, PUBLISH, profile.pk)
        assert "add 0.5 × max activation → add 1.5 × max activation" in html
        assert 'name="note"' in html

    def test_publishes(self, admin, profile, django_capture_on_commit_callbacks):
        with django_capture_on_commit_callbacks(execute=True):
            response = admin.post(reverse(PUBLISH, args=[profile.pk]), {"note": "More rain."})
        version = ProfileVersion.objects.get()
        assert (version.note, str(version.published_by)) == ("More rain.", "admin")
        assert "Published gloomy@1." in said(response)

    def test_looking_publishes_nothing(self, admin, profile):
        admin.get(reverse(PUBLISH, args=[profile.pk]), {"note": "x"})
        assert not ProfileVersion.objects.exists()

    def test_note_is_needed(self, admin, profile):
        response = admin.post(reverse(PUBLISH, args=[profile.pk]), {"note": "  "})
        assert "This field is required" in response.content.decode()
        assert not ProfileVersion.objects.exists()

    def test_problems_are_shown_in_place_of_the_form(self, admin, profile):
        profile.edits.update(strength=1e5)
        html = page(admin, PUBLISH, profile.pk)
        assert "The draft can't be published." in html
        assert 'name="note"' not in html

    def test_nothing_new(self, admin, profile):
        services.publish_profile(profile=profile)
        assert "there is nothing to publish" in page(admin, PUBLISH, profile.pk)

    def test_missing_sae_is_a_message(self, admin, profile, sae):
        SAE.objects.update(source="/gone")
        response = admin.post(reverse(PUBLISH, args=[profile.pk]), {"note": "x"})
        assert response.status_code == 200
        assert "The SAE tiny-sae cannot be used" in said(response)

    def test_button_saves_first(self, admin, profile, feature):
        edit = profile.edits.get()
        data: dict[str, object] = {"name": "gloomy", "description": "", "_publish": "1"}
        data |= rows([row(feature, strength="0.75", id=edit.pk, profile=profile.pk)], 1)
        response = admin.post(reverse(CHANGE, args=[profile.pk]), data)
        assert response.url == reverse(PUBLISH, args=[profile.pk])
        assert profile.edits.get().strength == 0.75

    def test_action_asks_once_and_goes_on_after_a_failure(self, admin, profile, model):
        empty = services.create_profile(name="empty", model=model)
        data = {"action": "publish_selected", "_selected_action": [empty.pk, profile.pk]}
        asked = admin.post(reverse(PROFILES), data)
        assert 'name="note"' in asked.content.decode()
        response = admin.post(reverse(PROFILES), data | {"note": "Both."})
        assert "empty was not published. The draft of empty has no edits" in said(response)
        assert [str(version) for version in ProfileVersion.objects.all()] == ["gloomy@1"]


class TestVersions:
    @pytest.fixture
    def versions(self, profile) -> list[ProfileVersion]:
        first = services.publish_profile(profile=profile, note="First.")
        profile.edits.update(strength=1.5)
        return [first, services.publish_profile(profile=profile, note="<b>Second.</b>")]

    def test_are_listed_with_their_differences(self, admin, profile, versions):
        html = page(admin, CHANGE, profile.pk)
        assert "gloomy@1" in html
        assert "add 0.5 × max activation → add 1.5 × max activation" in html
        assert "&lt;b&gt;Second.&lt;/b&gt;" in html
        assert "requestlog/?profile=gloomy%402&amp;model=tiny" in html

    def test_link_to_the_requests_works(self, admin, versions):
        url = reverse("admin:openai_api_requestlog_changelist")
        assert admin.get(f"{url}?profile=gloomy%402&model=tiny").status_code == 200

    def test_pages(self, admin, versions):
        html = page(admin, "admin:steering_profileversion_change", versions[1].pk)
        assert versions[1].fingerprint in html
        page(admin, "admin:steering_profileversion_changelist")

    @pytest.mark.parametrize("action", ["change", "delete"])
    def test_cannot_be_changed(self, action, admin, versions):
        url = reverse(f"admin:steering_profileversion_{action}", args=[versions[0].pk])
        assert admin.post(url, {"post": "yes", "note": "x"}).status_code == 403
        assert ProfileVersion.objects.get(number=1).note == "First."

    def test_version_becomes_the_draft(self, admin, profile, versions):
        response = admin.post(reverse(RESTORE, args=[profile.pk, 1]))
        assert profile.edits.get().strength == 0.5
        assert "Restored gloomy@1 as the draft of gloomy." in said(response)

    def test_restoring_is_a_post(self, admin, profile, versions):
        assert admin.get(reverse(RESTORE, args=[profile.pk, 1])).status_code == 405
        assert profile.edits.get().strength == 1.5

    @pytest.mark.parametrize("number", [3, 0, 10**12])
    def test_version_that_does_not_exist(self, number, admin, profile, versions):
        assert admin.post(reverse(RESTORE, args=[profile.pk, number])).status_code == 404

    def test_action_restores_one_per_profile(self, admin, profile, versions):
        url = reverse("admin:steering_profileversion_changelist")
        both = {"action": "make_draft", "_selected_action": [version.pk for version in versions]}
        assert "Select one version per profile" in said(admin.post(url, both))
        admin.post(url, both | {"_selected_action": [versions[0].pk]})
        assert profile.edits.get().strength == 0.5

    def test_restoring_a_version_with_vectors(self, admin, model):
        profile = services.create_profile(name="v", model=model, edits=[vector_edit([1.0] * 12)])
        services.publish_profile(profile=profile)
        profile.edits.all().delete()
        admin.post(reverse(RESTORE, args=[profile.pk, 1]))
        assert FeatureEdit.objects.filter(vector__values=[1.0] * 12).count() == 1
        page(admin, CHANGE, profile.pk)


class TestDuplicating:
    def test_page(self, admin, profile):
        assert 'value="gloomy-copy"' in page(admin, DUPLICATE, profile.pk)
        admin.post(reverse(DUPLICATE, args=[profile.pk]), {"name": "gloomier"})
        assert SteeringProfile.objects.get(name="gloomier").edits.count() == 1

    def test_taken_name(self, admin, profile):
        response = admin.post(reverse(DUPLICATE, args=[profile.pk]), {"name": "gloomy"})
        assert "The model tiny already has a profile gloomy." in response.content.decode()

    def test_action_finds_free_names(self, admin, profile):
        for _ in range(2):
            admin.post(reverse(PROFILES), {"action": "duplicate_selected", "_selected_action": [profile.pk]})
        names = set(SteeringProfile.objects.values_list("name", flat=True))
        assert names == {"gloomy", "gloomy-copy", "gloomy-copy-2"}


class TestPermissions:
    def test_editing_is_not_publishing(self, profile):
        client = staff("view_steeringprofile", "change_steeringprofile", "view_feature")
        assert "Save and publish" not in page(client, CHANGE, profile.pk)
        for method in (client.get, client.post):
            assert method(reverse(PUBLISH, args=[profile.pk]), {"note": "x"}).status_code == 403
        client.post(reverse(PROFILES), {"action": "publish_selected", "_selected_action": [profile.pk], "note": "x"})
        assert not ProfileVersion.objects.exists()

    def test_publisher(self, profile):
        client = staff("view_steeringprofile", "change_steeringprofile", "publish_steeringprofile")
        assert client.post(reverse(PUBLISH, args=[profile.pk]), {"note": "x"}).status_code == 302
        assert ProfileVersion.objects.exists()

    def test_researchers_edit_and_publish(self, profile):
        user = User.objects.create_user("rose", is_staff=True)
        user.groups.add(Group.objects.get(name="Researchers"))
        assert login(user).post(reverse(PUBLISH, args=[profile.pk]), {"note": "x"}).status_code == 302
        assert ProfileVersion.objects.exists()

    def test_onlookers_change_nothing(self, profile):
        services.publish_profile(profile=profile)
        client = staff("view_steeringprofile", "publish_steeringprofile")
        html = page(client, CHANGE, profile.pk)
        assert "Restore as draft" not in html
        for url, data in (
            (reverse(PUBLISH, args=[profile.pk]), {"note": "x"}),
            (reverse(RESTORE, args=[profile.pk, 1]), {}),
            (reverse(DUPLICATE, args=[profile.pk]), {"name": "copy"}),
            (reverse(CHANGE, args=[profile.pk]), {"name": "x"}),
        ):
            assert client.post(url, data).status_code == 403
        assert SteeringProfile.objects.count() == 1

    @pytest.mark.parametrize("view", [PUBLISH, DUPLICATE])
    def test_strangers_are_sent_to_the_login(self, view, profile):
        response = Client().post(reverse(view, args=[profile.pk]), {"note": "x"})
        assert response["Location"].startswith("/admin/login/")

    def test_forged_forms_are_refused(self, admin, profile):
        admin.handler.enforce_csrf_checks = True
        for url in (reverse(PUBLISH, args=[profile.pk]), reverse(RESTORE, args=[profile.pk, 1])):
            assert admin.post(url, {"note": "x"}).status_code == 403

    @pytest.mark.parametrize("view", [PUBLISH, DUPLICATE])
    def test_unknown_profile(self, view, admin):
        assert admin.get(reverse(view, args=[999])).status_code == 404
        assert admin.get(reverse(view, args=["x"])).status_code == 404


class TestSAE:
    def test_is_added_from_the_form(self, admin, model, tmp_path):
        data = {"name": "new", "model": model.pk, "source": str(write_sae(tmp_path / "new"))}
        assert admin.post(reverse("admin:steering_sae_add"), data).status_code == 302
        assert SAE.objects.get().features.count() == 40

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            (sae_config("temporal"), "architecture &#x27;temporal&#x27; is not supported"),
            (
                sae_config(metadata={"hook_name": "blocks.9.hook_resid_post"}),
                "The model has layers 0 to 2, got layer 9",
            ),
            (sae_config(d_sae=41), "must have the shape"),
        ],
    )
    def test_problems_are_said_beside_the_form(self, config, message, admin, model, tmp_path):
        data = {"name": "new", "model": model.pk, "source": str(write_sae(tmp_path / "new", config))}
        response = admin.post(reverse("admin:steering_sae_add"), data)
        assert message in response.content.decode()
        assert not SAE.objects.exists()

    def test_name_that_is_taken(self, admin, sae, tmp_path):
        folder = write_sae(tmp_path / "b", sae_config(apply_b_dec_to_input=False))
        data = {"name": "tiny-sae", "model": sae.model_id, "source": str(folder)}
        assert "already exists" in admin.post(reverse("admin:steering_sae_add"), data).content.decode()

    def test_numbers_cannot_be_edited(self, admin, sae):
        url = reverse("admin:steering_sae_change", args=[sae.pk])
        admin.post(url, {"name": "renamed", "d_in": 99, "source": "/etc", "fvu": 0})
        sae.refresh_from_db()
        assert (sae.name, sae.d_in, sae.fvu) == ("renamed", 12, 0.2)

    @pytest.mark.parametrize(
        ("figures", "words"),
        [
            ({"fvu": 0.1, "l0": 8}, "10% of the residual&#x27;s variance unexplained, which is good"),
            ({"fvu": 1.2}, "Something does not match: wrong layer or site"),
            ({"l0": 0.01}, "almost none"),
            ({"l0": 39}, "too many to be sparse"),
            ({"fvu": None}, "was not measured"),
            ({"mean_resid_norm": None}, "the relative size of its edits is unknown"),
        ],
    )
    def test_health_in_words(self, figures, words, admin, sae):
        SAE.objects.update(**figures)
        assert words in page(admin, "admin:steering_sae_change", sae.pk)

    def test_deletion_counts_features_instead_of_listing_them(self, admin, sae):
        html = page(admin, "admin:steering_sae_delete", sae.pk)
        assert "SAE tiny-sae with 40 features" in html
        admin.post(reverse("admin:steering_sae_delete", args=[sae.pk]), {"post": "yes"})
        assert not Feature.objects.exists()

    def test_needed_ones_are_kept(self, admin, sae, profile):
        services.publish_profile(profile=profile)
        assert "used by the published profile gloomy@1" in page(admin, "admin:steering_sae_delete", sae.pk)
        data = {"action": "delete_selected", "_selected_action": [sae.pk], "post": "yes"}
        admin.post(reverse("admin:steering_sae_changelist"), data)
        assert SAE.objects.exists()


class TestFeature:
    def test_list_is_searched_and_filtered(self, admin, sae):
        url = reverse("admin:steering_feature_changelist")
        for query, count in (
            ("q=rain", 1),
            ("fires=usual", 2),
            ("fires=dense", 1),
            ("labelled=yes", 3),
            ("fires=x", 40),
        ):
            assert admin.get(f"{url}?{query}").context["cl"].result_count == count

    def test_only_the_label_can_be_edited(self, admin, feature):
        url = reverse("admin:steering_feature_change", args=[feature.pk])
        admin.post(url, {"label": "<script>drizzle</script>", "index": 7, "max_activation": 1})
        feature.refresh_from_db()
        assert (feature.label, feature.index, feature.max_activation) == ("<script>drizzle</script>", 0, 4.0)
        assert "<script>drizzle" not in page(admin, "admin:steering_feature_changelist")

    def test_none_is_added_or_deleted(self, admin, feature):
        assert admin.get(reverse("admin:steering_feature_add")).status_code == 403
        assert admin.post(reverse("admin:steering_feature_delete", args=[feature.pk])).status_code == 403


def test_all_lists_open(admin, profile):
    forget_snapshots()
    services.publish_profile(profile=profile)
    for name in ("sae", "feature", "steeringprofile", "profileversion"):
        page(admin, f"admin:steering_{name}_changelist")
    page(admin, "admin:steering_sae_change", SAE.objects.get().pk)
    page(admin, "admin:steering_sae_add")
