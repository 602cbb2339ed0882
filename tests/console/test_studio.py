"""The steering studio: what its page reads and saves, and requests that are steered by its edits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from console.studio.edits import current_edits, read_edits, short_form
from inference.models import LanguageModel
from steering import services
from steering.models import SAE, Feature, FeatureEdit, FeatureEffect, SteeringProfile, VectorSet
from steering.profiles.drafts import draft_edits
from steering.spec.parsing import MAX_EDITS, parse_edits
from steering.spec.rendering import edits_to_json, fingerprint
from tests.console.test_pages import client_of, staff
from tests.console.test_playground import scoring, signed_in
from tests.openai_api.conftest import Api, api, chunks_of  # noqa: F401 - a fixture
from tests.steering.conftest import (  # noqa: F401 - fixtures
    cold_snapshots,
    feature,
    model,
    other_model,
    other_sae,
    profile,
    sae,
)
from tests.steering.test_inline_vectors import calm  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)
EDITOR = ("use_playground", "view_steeringprofile", "change_steeringprofile", "add_steeringprofile", "view_feature")
EDIT = {"sae": "tiny-sae", "index": 0, "operation": "add", "strength": 0.5, "unit": "max_act", "phase": "both"}
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"model": "tiny", "messages": [{"role": "user", "content": "hi <script>"}], "max_tokens": 5},
    "completion": {"model": "tiny", "prompt": "hi", "max_tokens": 5},
    "inspect": {"model": "tiny", "kind": "chat", "prompt_ids": [256, 104], "completion_ids": [72, 101, 108]},
}


@pytest.fixture
def editor(db: None) -> Client:
    return client_of(staff(*EDITOR))


def ask(client: Client, endpoint: str, **fields: Any) -> Any:
    url = reverse(f"admin:console_studio_{endpoint}")
    return client.post(url, json.dumps({"model": "tiny", **fields}), content_type="application/json")


def refusal(response: Any) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    assert error["message"]
    return response.status_code, error["code"], error["param"]


def save(client: Client, **fields: Any) -> Any:
    return ask(client, "save", **fields)


class TestPage:
    def test_it_offers_models_profiles_and_saes(self, editor: Client, profile: SteeringProfile):  # noqa: F811
        page = editor.get(reverse("admin:console_studio"))
        (found,) = page.context["models"]
        assert (found["name"], found["saes"], found["profiles"]) == ("tiny", ["tiny-sae"], ["gloomy"])

    def test_it_needs_the_permission_of_the_playground(self, model: LanguageModel):  # noqa: F811
        client = client_of(staff("view_steeringprofile", "view_feature"))
        assert client.get(reverse("admin:console_studio")).status_code == 403
        for name in ("profile", "features", "text", "edits", "save"):
            assert ask(client, name).status_code == 403

    def test_without_models_it_says_what_to_do(self, editor: Client):
        assert "No text generation models yet" in editor.get(reverse("admin:console_studio")).content.decode()

    def test_pages_of_profiles_and_features_lead_to_it(self, profile: SteeringProfile, feature: Feature):  # noqa: F811
        client = client_of(User.objects.create_superuser("root"))
        page = client.get(reverse("admin:steering_steeringprofile_change", args=[profile.pk])).content.decode()
        assert "/admin/studio/?model=tiny&amp;profile=gloomy" in page
        page = client.get(reverse("admin:steering_feature_change", args=[feature.reference])).content.decode()
        assert "/admin/studio/?model=tiny&amp;sae=tiny-sae&amp;index=0" in page


class TestProfiles:
    def test_the_draft_is_read_in_the_short_form(self, editor: Client, profile: SteeringProfile):  # noqa: F811
        found = ask(editor, "profile", profile="gloomy").json()
        assert found["edits"] == [EDIT]
        assert (found["name"], found["mayChange"], found["versions"], found["publish"]) == ("gloomy", True, [], "")

    def test_a_version_is_read_with_the_figures_of_today(self, profile: SteeringProfile, feature: Feature):  # noqa: F811
        services.publish_profile(profile=profile, note="rainier")
        feature.max_activation = 100.0
        feature.save()
        client = client_of(staff(*EDITOR, "publish_steeringprofile"))
        found = ask(client, "profile", profile="gloomy@1").json()
        ((edit,), (version,)) = (found["edits"], found["versions"])
        assert (edit["strength"], edit["unit"]) == (2.0, "raw")  # half of the old maximum of 4
        assert (version["label"], version["note"], version["rollBack"]) == ("gloomy@1", "rainier", "")
        assert found["publish"] == reverse("admin:steering_steeringprofile_publish", args=[profile.pk])

    @pytest.mark.parametrize(
        "name", ["", "none", "gloomy@2", "gloomy@", "gloomy@\u0662", "gloomy@1@1", "x\0", 5, None, {}]
    )
    def test_what_is_not_there_is_refused(self, editor: Client, profile: SteeringProfile, name: object):  # noqa: F811
        response = ask(editor, "profile", profile=name)
        if name == "gloomy@":
            assert response.json()["name"] == "gloomy"
        else:
            assert refusal(response)[0] in {400, 404}

    def test_profiles_of_others_are_not_there(self, editor: Client, profile: SteeringProfile):  # noqa: F811
        profile.owner = User.objects.create_user("olga")
        profile.save()
        assert refusal(ask(editor, "profile", profile="gloomy")) == (404, "profile_not_found", "profile")
        assert refusal(save(editor, profile="gloomy", edits=[EDIT])) == (404, "profile_not_found", "profile")
        assert refusal(ask(editor, "edits", profile="gloomy", edits=[EDIT]))[0] == 404
        (found,) = editor.get(reverse("admin:console_studio")).context["models"]
        assert found["profiles"] == []


class TestShortForm:
    def test_edits_of_all_kinds_keep_their_effect(self, model: LanguageModel, sae: SAE, calm: VectorSet):  # noqa: F811
        user = User.objects.create_superuser("root")
        items = [
            {"index": 1, "strength": 2.0, "unit": "raw", "gate": {"index": 2, "above": 0.25}, "special_tokens": True},
            {"index": 2, "operation": "at_most", "strength": 0.5, "window": {"after": 3}, "phase": "generation"},
            {"set": "calm", "layer": calm.vectors.all()[0].layer, "strength": 0.1, "unit": "raw"},
            {"vector": {"layer": 2, "site": "resid_post", "values": [0.5] * sae.d_in}, "strength": 1.5, "unit": "raw"},
            {"site": {"layer": 0, "site": "resid_post"}, "operation": "norm_preserving"},
        ]
        edits = read_edits(model, items, user)
        short = short_form(model, edits)
        assert json.loads(json.dumps(short)) == short
        assert edits_to_json(read_edits(model, short, user)) == edits_to_json(edits)
        assert "values" not in json.dumps(short[2])
        assert short[0]["gate"] == {"sae": "tiny-sae", "index": 2, "above": 0.25, "unit": "max_act"}

    def test_a_set_that_one_may_not_see_is_not_there(self, model: LanguageModel, calm: VectorSet):  # noqa: F811
        calm.created_by = User.objects.create_user("olga")
        calm.save()
        client = client_of(staff(*EDITOR))
        (row,) = ask(client, "edits", edits=[{"set": "calm", "strength": 1.0}]).json()["edits"]
        assert "no vector set" in row["problem"]

    def test_sink_tokens_of_old_versions_stay(self, profile: SteeringProfile):  # noqa: F811
        edits = draft_edits(profile)
        user = User.objects.create_superuser("root")
        again = read_edits(profile.model, short_form(profile.model, edits), user)
        assert (again[0].sink_tokens, fingerprint(again)) == (edits[0].sink_tokens, fingerprint(edits))
        assert fingerprint(current_edits(profile, edits)) == fingerprint(edits)


class TestEdits:
    def test_each_edit_is_described_or_its_problem_named(self, editor: Client, sae: SAE):  # noqa: F811
        edits = [EDIT, {**EDIT, "index": 10**9}, 5, {**EDIT, "strength": "much"}, {**EDIT, "index": 1}]
        found = ask(editor, "edits", edits=edits).json()
        good, missing, no_object, no_number, other = found["edits"]
        assert good["name"] == "tiny-sae #0 sad rainy weather"
        assert good["words"] == "tiny-sae #0 sad rainy weather: add 0.5 × max activation"
        assert good["scale"]["raw_per_one"] == 4.0
        assert good["url"].startswith("/admin/steering/feature/")
        assert "features 0 to" in missing["problem"]
        assert no_object["problem"]
        assert no_number["problem"]
        assert (other["problem"], found["problem"]) == ("", "")

    def test_the_number_of_queries_does_not_grow(
        self,
        editor: Client,
        sae: SAE,  # noqa: F811
        django_assert_max_num_queries: DjangoAssertNumQueries,
    ):
        edits = [{**EDIT, "operation": "scale", "index": index} for index in range(8)]
        with django_assert_max_num_queries(12):
            found = ask(editor, "edits", edits=edits).json()["edits"]
        assert [row["problem"] for row in found] == [""] * 8

    def test_too_many_are_refused(self, editor: Client, sae: SAE):  # noqa: F811
        assert refusal(ask(editor, "edits", edits=[EDIT] * (MAX_EDITS + 1)))[:2] == (400, "invalid_profile")

    def test_contradictions_are_named(self, editor: Client, sae: SAE):  # noqa: F811
        clamp = {**EDIT, "operation": "clamp"}
        assert ask(editor, "edits", edits=[clamp, {**clamp, "strength": 1.0}]).json()["problem"]

    def test_the_measured_effect_is_part_of_it(self, editor: Client, feature: Feature):  # noqa: F811
        FeatureEffect.objects.create(
            feature=feature, sae=feature.sae, strength=6.0, kl=0.3, push=0.3, steers_well=0.4, fluency=1.5,
            curve=[[3.0, 0.1], [6.0, 0.3]], recipe="r", measured_at=timezone.now(),
        )  # fmt: skip
        (row,) = ask(editor, "edits", edits=[{**EDIT, "strength": "auto"}]).json()["edits"]
        assert (row["strength"], row["calibrated"]["strength"], row["curve"]) == (1.5, 1.5, [[3.0, 0.1], [6.0, 0.3]])
        found = ask(editor, "features", q="").json()["features"]
        assert [(card["index"], card["strength"], card["steersWell"]) for card in found[:2]] == [
            (0, 1.5, 0.4),
            (1, None, None),
        ]

    def test_a_strength_at_which_texts_break_says_so(self, editor: Client, feature: Feature):  # noqa: F811
        FeatureEffect.objects.create(
            feature=feature, sae=feature.sae, strength=6.0, kl=0.3, push=0.3, fluency=2.2, recipe="r",
            measured_at=timezone.now(),
        )  # fmt: skip
        (row,) = ask(editor, "edits", edits=[EDIT]).json()["edits"]
        assert row["calibrated"]["words"].endswith("perplexity × 2.2. Texts read worse there; try less.")

    @pytest.mark.parametrize(
        "body", [b"[]", b"{", b'{"model": "tiny"}', b'{"model": "tiny", "edits": {}}', b'{"edits": []}']
    )
    def test_bodies_that_are_none_are_refused(self, editor: Client, sae: SAE, body: bytes):  # noqa: F811
        url = reverse("admin:console_studio_edits")
        assert refusal(editor.post(url, body, content_type="application/json"))[0] == 400


class TestFeatures:
    def test_words_find_features(self, editor: Client, sae: SAE):  # noqa: F811
        found = ask(editor, "features", q="cats").json()["features"]
        assert (found[0]["index"], found[0]["label"], found[0]["unit"]) == (1, "cats and kittens", "max_act")

    def test_examples_are_coloured_around_their_maximum(self, editor: Client, feature: Feature):  # noqa: F811
        values = [0.0] * 200 + [2.0, 4.0]
        feature.examples = [{"tokens": ["<b>"] * 202, "values": values}, {"tokens": [], "values": []}]
        feature.save()
        (example,) = ask(editor, "features", q="#0").json()["features"][0]["examples"]
        assert len(example) == 7
        assert example[-2:] == [["<b>", 4, 2.0], ["<b>", 9, 4.0]]

    def test_features_of_other_models_are_not_found(self, editor: Client, sae: SAE, other_sae: SAE):  # noqa: F811
        saes = {card["sae"] for card in ask(editor, "features", q="").json()["features"]}
        assert saes == {"tiny-sae"}

    @pytest.mark.parametrize("fields", [{"q": "x" * 201}, {"q": 5}, {"q": "a\0"}, {"model": "none"}, {"model": None}])
    def test_bad_queries_are_refused(self, editor: Client, sae: SAE, fields: dict[str, Any]):  # noqa: F811
        assert refusal(ask(editor, "features", **fields))[0] in {400, 404}

    def test_a_text_needs_an_sae_of_the_model(self, editor: Client, sae: SAE, other_sae: SAE):  # noqa: F811
        assert refusal(ask(editor, "text", sae="other-sae", text="hi")) == (400, "invalid_value", "sae")
        assert ask(editor, "text", sae="tiny-sae", text="").json() == {"features": []}
        assert refusal(ask(editor, "text", sae="tiny-sae", text="x" * 2001)) == (400, "invalid_value", "text")

    def test_they_need_the_permission(self, sae: SAE):  # noqa: F811
        client = client_of(staff("use_playground"))
        for name in ("features", "text"):
            assert ask(client, name, q="").status_code == 403


class TestVectors:
    def test_vectors_of_the_model_are_listed_with_a_strength(self, model: LanguageModel, sae: SAE, calm: VectorSet):  # noqa: F811
        client = client_of(staff(*EDITOR, "view_vectorset"))
        first, second = ask(client, "vectors").json()["features"]
        assert (first["set"], first["layer"], first["site"]) == ("calm", 0, "resid_post")
        norm_is_known = sae.layer == second["layer"]
        assert (second["unit"], second["strength"]) == (("resid_norm", 0.1) if norm_is_known else ("raw", 1.0))
        items = [
            {name: card[name] for name in ("set", "layer", "site", "strength", "unit")} for card in (first, second)
        ]
        described = ask(client, "edits", edits=items).json()["edits"]
        assert [row["problem"] for row in described] == ["", ""]
        assert described[0]["url"] == first["url"]

    def test_vectors_of_others_are_not_listed(self, calm: VectorSet, other_model: LanguageModel):  # noqa: F811
        calm.created_by = User.objects.create_user("olga")
        calm.save()
        client = client_of(staff(*EDITOR, "view_vectorset"))
        assert ask(client, "vectors").json() == {"features": []}
        root = client_of(User.objects.create_superuser("root"))
        assert ask(root, "vectors", model="other").json() == {"features": []}
        assert ask(client_of(staff(*EDITOR)), "vectors").status_code == 403


class TestSaving:
    def test_a_new_profile_becomes_a_draft(self, editor: Client, sae: SAE):  # noqa: F811
        found = save(editor, name="sea", edits=[{**EDIT, "index": 2}]).json()
        assert (found["name"], found["edits"][0]["index"]) == ("sea", 2)
        saved = SteeringProfile.objects.get(name="sea")
        assert saved.owner is not None
        assert saved.edits.filter(feature__index=2).count() == 1

    def test_a_draft_is_replaced_if_nobody_changed_it(self, editor: Client, profile: SteeringProfile):  # noqa: F811
        etag = ask(editor, "profile", profile="gloomy").json()["etag"]
        found = save(editor, profile="gloomy", edits=[{**EDIT, "strength": 0.7}], etag=etag).json()
        assert profile.edits.get().strength == 0.7
        assert found["etag"] != etag
        conflict = save(editor, profile="gloomy", edits=[{**EDIT, "strength": 0.9}], etag=etag)
        assert refusal(conflict) == (409, "conflict", "etag")
        assert profile.edits.get().strength == 0.7

    def test_saving_what_was_loaded_changes_nothing(self, editor: Client, profile: SteeringProfile):  # noqa: F811
        services.publish_profile(profile=profile)
        loaded = ask(editor, "profile", profile="gloomy").json()
        found = save(editor, profile="gloomy", edits=loaded["edits"], etag=loaded["etag"]).json()
        assert found["edits"] == loaded["edits"]
        assert "No unpublished changes" in found["state"]

    def test_what_cannot_be_saved_is_refused(self, editor: Client, profile: SteeringProfile):  # noqa: F811
        assert refusal(save(editor, name="gloomy", edits=[EDIT])) == (400, "invalid_value", "name")
        assert refusal(save(editor, name="a b", edits=[EDIT])) == (400, "invalid_value", "name")
        assert refusal(save(editor, name="", edits=[EDIT])) == (400, "invalid_value", "name")
        assert refusal(save(editor, name="new", edits=[{**EDIT, "index": -1}]))[1] == "invalid_profile"
        assert FeatureEdit.objects.count() == 1

    def test_it_needs_the_permissions_of_the_forms(self, profile: SteeringProfile):  # noqa: F811
        client = client_of(staff("use_playground", "view_steeringprofile"))
        etag = ask(client, "profile", profile="gloomy").json()["etag"]
        assert refusal(save(client, profile="gloomy", edits=[EDIT], etag=etag))[:2] == (403, "permission_denied")
        assert refusal(save(client, name="sea", edits=[EDIT]))[:2] == (403, "permission_denied")
        assert profile.edits.get().strength == 0.5

    def test_edits_of_a_version_survive_a_round_trip(self, editor: Client, profile: SteeringProfile):  # noqa: F811
        version = services.publish_profile(profile=profile)
        loaded = ask(editor, "profile", profile="gloomy@1").json()
        save(editor, name="copy", edits=loaded["edits"])
        copy = SteeringProfile.objects.get(name="copy")
        assert fingerprint(draft_edits(copy)) == version.fingerprint == fingerprint(parse_edits(version.edits))


async def post(client: AsyncClient, name: str, body: Any) -> Any:
    return await client.post(reverse(f"studio-{name}"), json.dumps(body), content_type="application/json")


class TestAnswers:
    @pytest.mark.parametrize("name", ["chat", "completion"])
    async def test_edits_steer_and_are_logged(self, api: Api, sae: SAE, name: str):  # noqa: F811
        body = {**ASKED[name], "edits": [EDIT], "seed": 3}
        response = await post(await signed_in("use_playground"), name, body)
        chunks = await chunks_of(response)
        assert chunks[-1] == "[DONE]"
        entry = api.log.only
        assert (entry.user, entry.profile, entry.source, entry.status) == ("rita", "studio@draft", "console", 200)
        assert entry.parameters["draft"] == ["tiny-sae #0 sad rainy weather: add 0.5 × max activation"]
        (selection,) = api.steering.selections
        assert selection.draft is not None
        assert selection.reference is None

    async def test_edits_of_a_profile_are_logged_as_its_draft(self, api: Api, profile: SteeringProfile):  # noqa: F811
        client = await signed_in("use_playground", "view_steeringprofile")
        await chunks_of(await post(client, "chat", {**ASKED["chat"], "profile": "gloomy", "edits": [EDIT]}))
        assert api.log.only.profile == "gloomy@draft"

    async def test_answers_are_compared_with_what_they_were_without(self, api: Api, sae: SAE):  # noqa: F811
        api.engine.script = scoring
        response = await post(await signed_in("use_playground"), "inspect", {**ASKED["inspect"], "edits": [EDIT]})
        assert response.json()["kl"] == [0.25] * 3

    @pytest.mark.parametrize(
        ("change", "status", "code"),
        [
            ({"edits": []}, 400, "invalid_profile"),
            ({"edits": None}, 400, "invalid_value"),
            ({"edits": [{**EDIT, "strength": 1e6}]}, 400, "invalid_profile"),
            ({"edits": [{**EDIT, "sae": "none"}]}, 400, "invalid_profile"),
            ({"edits": [EDIT] * 1000}, 400, "invalid_profile"),
            ({"steering": {"features": [EDIT]}}, 400, "unsupported_parameter"),
            ({"user": "root"}, 400, "unsupported_parameter"),
            ({"profile": "gloomy"}, 404, "profile_not_found"),
            ({"model": "none"}, 404, "model_not_found"),
            ({"model": ["tiny"]}, 400, "invalid_value"),
        ],
    )
    async def test_bad_requests_reach_no_engine(
        self,
        api: Api,  # noqa: F811
        sae: SAE,  # noqa: F811
        change: dict[str, Any],
        status: int,
        code: str,
    ):
        body = {**ASKED["chat"], "edits": [EDIT], **change}
        assert refusal(await post(await signed_in("use_playground"), "chat", body))[:2] == (status, code)
        assert api.engine.requests == []

    @pytest.mark.parametrize("name", ["chat", "completion", "inspect"])
    async def test_it_needs_staff_and_the_permission(self, api: Api, sae: SAE, name: str):  # noqa: F811
        body = {**ASKED[name], "edits": [EDIT]}
        assert (await post(await signed_in("view_steeringprofile"), name, body)).status_code == 403
        assert (await post(AsyncClient(), name, body)).status_code == 403
        assert api.engine.requests == []
