"""What /api refuses, and how: the contract's body, the field, a code."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from inference.models import LanguageModel
from openai_api.models import ApiKey, RequestLog
from steering import services
from steering.models import SAE, Feature, FeatureEdit, ProfileVersion, SteeringProfile
from tests.management_api.conftest import Api, refusal

RESOURCES = (
    *(
        "models",
        "saes",
        "features",
        "profiles",
        "versions",
        "vectors",
        "policies",
        "watch_rules",
        "watch_events",
        "evaluations",
        "keys",
        "logs",
        "jobs",
        "webhooks",
        "webhook_deliveries",
    ),
)


@pytest.fixture
def version(profile: SteeringProfile) -> ProfileVersion:
    return services.publish_profile(profile=profile)


class TestBodies:
    @pytest.mark.parametrize(
        ("body", "code", "param"),
        [
            ("", "missing_required_parameter", "name"),
            ("{", "invalid_json", None),
            ("[]", "invalid_json", None),
            ('"x"', "invalid_json", None),
            ("null", "invalid_json", None),
            ('{"name": NaN}', "invalid_json", None),
            ('{"name": "\\ud800"}', "invalid_unicode", None),
            (b'{"name": "\xff"}', "invalid_unicode", None),
            ('{"name": "a\\u0000b", "model": 1}', "invalid_value", "name"),
            ("[" * 100_000, "invalid_json", None),
            ('{"nme": "x"}', "unknown_parameter", "nme"),
            ('{"id": 7, "name": "x", "model": 1}', "unknown_parameter", "id"),
            ('{"owner": "ada", "name": "x", "model": 1}', "unknown_parameter", "owner"),
            ('{"name": 5, "model": 1}', "invalid_type", "name"),
            ('{"name": ["x"], "model": 1}', "invalid_type", "name"),
            ('{"name": "x", "model": "1"}', "invalid_type", "model"),
            ('{"name": "x", "model": true}', "invalid_type", "model"),
            ('{"name": "x", "model": 1.5}', "invalid_type", "model"),
            ('{"name": "x", "model": {}}', "invalid_type", "model"),
            ('{"name": null, "model": 1}', "invalid_value", "name"),
        ],
    )
    def test_of_a_new_profile(self, body: Any, code: str, param: str | None, admin_api: Api, model: LanguageModel):
        if isinstance(body, str):
            body = body.replace('"model": 1}', f'"model": {model.pk}}}')
        status, found_code, found_param = refusal(admin_api.post("profiles", body))
        assert (status, found_code, found_param) == (400, code, param)
        assert not SteeringProfile.objects.exists()

    @pytest.mark.parametrize("pk", [0, -1, 2**31, 2**63, 10**30])
    def test_a_model_that_there_is_not(self, pk: int, admin_api: Api):
        body = {"name": "x", "model": pk}
        assert refusal(admin_api.post("profiles", body)) == (404, "not_found", "model")

    @pytest.mark.parametrize("name", ["", " ", "a b", "ä", "a/b", "x" * 101])
    def test_names(self, name: str, admin_api: Api, model: LanguageModel):
        assert refusal(admin_api.post("profiles", {"name": name, "model": model.pk})) == (400, "invalid_value", "name")

    def test_a_name_that_is_taken(self, admin_api: Api, profile: SteeringProfile):
        body = {"name": profile.name, "model": profile.model_id}
        assert refusal(admin_api.post("profiles", body))[:2] == (400, "invalid_value")

    def test_another_media_type(self, admin_api: Api):
        response = admin_api.client.post("/api/profiles", "x=1", content_type="text/plain", headers=admin_api.headers)
        assert refusal(response) == (415, "unsupported_media_type", None)

    def test_too_large(self, admin_api: Api, settings: Any):
        settings.MILLM_MAX_BODY_BYTES = 100
        assert refusal(admin_api.post("profiles", {"name": "x" * 200})) == (413, "request_too_large", None)

    def test_a_form(self, admin_api: Api):
        response = admin_api.client.post("/api/profiles", {"name": "x"}, headers=admin_api.headers)
        assert refusal(response) == (415, "unsupported_media_type", None)


class TestEdits:
    @pytest.mark.parametrize(
        ("edit", "code", "param"),
        [
            (5, "invalid_value", "edits[0]"),
            ({}, "invalid_value", "edits[0]"),
            ({"index": 99}, "invalid_feature", "edits[0].index"),
            ({"index": -1}, "invalid_feature", "edits[0].index"),
            ({"index": True}, "invalid_feature", "edits[0].index"),
            ({"index": "0"}, "invalid_feature", "edits[0].index"),
            ({"index": 0, "sae": "other-sae"}, "sae_not_found", "edits[0].sae"),
            ({"index": 0, "strength": "much"}, "invalid_value", "edits[0].strength"),
            ({"index": 0, "strength": 1e300}, "invalid_value", "edits[0].strength"),
            ({"index": 0, "power": 3}, "unknown_field", "edits[0].power"),
            ({"index": 0, "operation": "melt"}, "invalid_value", "edits[0].operation"),
            ({"index": 0, "gate": {"index": 99}}, "invalid_feature", "edits[0].gate.index"),
        ],
    )
    def test_of_a_draft(
        self, edit: Any, code: str, param: str, admin_api: Api, profile: SteeringProfile, other_sae: SAE
    ):
        response = admin_api("PUT", f"profiles/{profile.pk}/draft", {"edits": [edit]})
        status, found, field = refusal(response)
        assert (status, found, field) == (400, code, param)
        assert profile.edits.count() == 1, "nothing half written"

    @pytest.mark.parametrize("edits", [{}, "x", None, 3])
    def test_that_are_no_list(self, edits: Any, admin_api: Api, profile: SteeringProfile):
        response = admin_api("PUT", f"profiles/{profile.pk}/draft", {"edits": edits})
        assert refusal(response)[::2] == (400, "edits")

    def test_too_many(self, admin_api: Api, profile: SteeringProfile):
        response = admin_api("PUT", f"profiles/{profile.pk}/draft", {"edits": [{"index": 0}] * 300})
        assert refusal(response)[::2] == (400, "edits")

    def test_a_draft_without_edits_is_not_published(self, admin_api: Api, model: LanguageModel):
        empty = services.create_profile(name="empty", model=model)
        assert refusal(admin_api.post(f"profiles/{empty.pk}/publish")) == (400, "invalid_profile", "profile")

    def test_a_push_that_is_too_strong(self, admin_api: Api, profile: SteeringProfile):
        profile.edits.update(strength=1e6)
        assert refusal(admin_api.post(f"profiles/{profile.pk}/publish"))[:2] == (400, "invalid_profile")
        assert not ProfileVersion.objects.exists()


class TestLists:
    @pytest.mark.parametrize("path", RESOURCES)
    @pytest.mark.parametrize("limit", ["0", "-1", "201", "1000000", "1e2", "", "x", "٣", "9" * 400])
    def test_pages_are_bounded(self, path: str, limit: str, admin_api: Api):
        assert refusal(admin_api.get(path, limit=limit)) == (400, "invalid_value", "limit")

    @pytest.mark.parametrize("path", RESOURCES)
    @pytest.mark.parametrize("cursor", ["x", "%00", "cD0wMDA=", "cD14", "bz0xMDAwMDAwMDA=", "A" * 5000])
    def test_cursors_that_are_made_up(self, path: str, cursor: str, admin_api: Api):
        response = admin_api.get(path, cursor=cursor)
        if response.status_code != 200:  # a name may be anything
            assert refusal(response) == (400, "invalid_value", "cursor")

    @pytest.mark.parametrize("path", RESOURCES)
    def test_filters_that_there_are_not(self, path: str, admin_api: Api):
        assert refusal(admin_api.get(path, owner__password="x")) == (400, "unknown_parameter", "owner__password")

    @pytest.mark.parametrize(
        ("path", "name", "value"),
        [
            ("models", "state", "broken"),
            ("models", "name", "a\0b"),
            ("saes", "model", "tiny"),
            ("saes", "model", "-1"),
            ("features", "sae", "9" * 30),
            ("features", "index", str(2**31)),
            ("features", "labelled", "perhaps"),
            ("features", "search", "x" * 501),
            ("profiles", "archived", "5"),
            ("versions", "profile", "1 or 1=1"),
            ("evaluations", "job", "not-a-uuid"),
            ("evaluations", "kind", "guess"),
            ("logs", "since", "yesterday"),
            ("logs", "status", "ok"),
            ("logs", "source", "mars"),
            ("logs", "min_total_ms", "-1"),
            ("jobs", "state", "lost"),
            ("keys", "revoked", "maybe"),
        ],
    )
    def test_values_of_filters(self, path: str, name: str, value: str, admin_api: Api):
        assert refusal(admin_api.get(path, **{name: value})) == (400, "invalid_value", name)


class TestAddresses:
    @pytest.mark.parametrize("path", RESOURCES)
    @pytest.mark.parametrize("pk", ["0", "9" * 30, str(UUID(int=7))])
    def test_of_nothing(self, path: str, pk: str, admin_api: Api):
        response = admin_api.get(f"{path}/{pk}")
        assert response.status_code == 404
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    @pytest.mark.parametrize("path", ["", "nothing", "models/1/fly", "models/x", "profiles/import/now", "%00"])
    def test_that_there_are_not(self, path: str, admin_api: Api):
        response = admin_api.get(path)
        assert response.status_code == 404
        assert response.json()["error"]["code"] is None

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("PUT", "models"),
            ("DELETE", "logs"),
            ("POST", "logs"),
            ("POST", "versions"),
            ("PATCH", "stats"),
            ("POST", "me"),
        ],
    )
    def test_other_methods(self, method: str, path: str, admin_api: Api):
        response = admin_api(method, path)
        assert refusal(response) == (405, "method_not_allowed", None)
        assert response.headers["Allow"]

    def test_a_log_row_is_never_written(self, admin_api: Api):
        RequestLog.objects.create(id="req_1", created_at=timezone.now(), endpoint="/v1/models", status=200)
        for method in ("PUT", "PATCH", "DELETE", "POST"):
            assert refusal(admin_api(method, "logs/req_1"))[0] == 405
        assert RequestLog.objects.count() == 1

    def test_a_get_changes_nothing(self, admin_api: Api, profile: SteeringProfile):
        for act in ("publish", "archive", "roll_back", "share", "duplicate"):
            assert refusal(admin_api.get(f"profiles/{profile.pk}/{act}"))[0] == 405
        assert not ProfileVersion.objects.exists()


class TestConflicts:
    def test_a_version_keeps_its_profile_and_its_sae(self, admin_api: Api, version: ProfileVersion, sae: SAE):
        for path in (f"profiles/{version.profile_id}", f"saes/{sae.pk}", f"models/{sae.model_id}"):
            assert refusal(admin_api("DELETE", path))[:2] == (409, "in_use")

    def test_a_published_name_stays(self, admin_api: Api, version: ProfileVersion):
        response = admin_api("PATCH", f"profiles/{version.profile_id}", {"name": "other"})
        assert refusal(response) == (409, "in_use", "name")

    def test_nothing_to_publish(self, admin_api: Api, version: ProfileVersion):
        assert refusal(admin_api.post(f"profiles/{version.profile_id}/publish"))[:2] == (400, "invalid_profile")

    def test_a_version_that_there_is_not(self, admin_api: Api, version: ProfileVersion):
        path = f"profiles/{version.profile_id}"
        assert refusal(admin_api.post(f"{path}/roll_back", {"number": 9}))[:2] == (404, "not_found")
        assert refusal(admin_api.get(f"{path}/diff", before="9"))[:2] == (404, "not_found")
        assert refusal(admin_api.get(f"{path}/diff", before="x")) == (400, "invalid_value", "before")
        assert refusal(admin_api.get(f"{path}/export", version="-1")) == (400, "invalid_value", "version")

    def test_no_review_to_decide(self, admin_api: Api, profile: SteeringProfile):
        response = admin_api.post(f"profiles/{profile.pk}/decide_review", {"approve": True})
        assert refusal(response) == (409, "review_required", None)

    def test_without_an_engine(self, admin_api: Api, model: LanguageModel):
        for act in ("load", "unload"):
            assert refusal(admin_api.post(f"models/{model.pk}/{act}"))[:2] == (503, "engine_unavailable")

    def test_an_sae_of_another_model(self, admin_api: Api, model: LanguageModel, other_sae: SAE):
        body = {"model": model.pk, "sae": other_sae.pk, "file_name": "x.json", "text": "{}"}
        assert refusal(admin_api.post("profiles/import", body)) == (400, "invalid_value", "sae")


class TestOtherValues:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"device": "toaster"}, "device"),
            ({"dtype": "float8"}, "dtype"),
            ({"pinned": "yes"}, "pinned"),
            ({"keep_alive_s": -1}, "keep_alive_s"),
            ({"keep_alive_s": 2**40}, "keep_alive_s"),
            ({"default_sampling": {"temperature": "hot"}}, "default_sampling"),
            ({"chat_template": "{% for %}"}, "chat_template"),
            ({"aliases": "a"}, "aliases"),
            ({"aliases": [1]}, "aliases[0]"),
            ({"state": "loaded"}, "state"),
            ({"default_profile": "gloomy"}, "default_profile"),
        ],
    )
    def test_of_a_model(self, body: Any, param: str, admin_api: Api, model: LanguageModel):
        status, _, found = refusal(admin_api("PATCH", f"models/{model.pk}", body))
        assert (status, found) == (400, param)

    @pytest.mark.parametrize("source", ["/nowhere", "a b", "../../etc", "x" * 600, ""])
    def test_sources(self, source: str, admin_api: Api):
        response = admin_api.post("models", {"name": "new", "source": source})
        assert refusal(response)[::2] == (400, "source")
        assert not LanguageModel.objects.exists()

    @pytest.mark.parametrize(
        ("act", "body"),
        [
            ("sweep", {"strengths": []}),
            ("sweep", {"strengths": [1e999]}),
            ("sweep", {"strengths": ["1"]}),
            ("sweep", {"prompts": [""]}),
            ("sweep", {"prompts": ["x"] * 257}),
            ("sweep", {"max_tokens": 10**9}),
            ("sweep", {"temperature": -1}),
            ("sweep", {"seed": True}),
            ("calibrate", {"target": 0}),
            ("calibrate", {"push_cap": 1e9}),
            ("compare", {"other": "gloomy@1"}),
            ("compare", {"others": 1}),
        ],
    )
    def test_of_evaluations(self, act: str, body: Any, admin_api: Api, version: ProfileVersion):
        assert refusal(admin_api.post(f"versions/{version.pk}/{act}", body))[0] == 400

    @pytest.mark.parametrize(
        "body",
        [
            {"label": "x" * 501},
            {"label": 5},
            {"label": "a\0b"},
            {"index": 3},
            {"description": "x" * 4001},
        ],
    )
    def test_of_a_label(self, body: Any, admin_api: Api, feature: Feature):
        assert refusal(admin_api("PATCH", f"features/{feature.pk}", body))[0] == 400
        feature.refresh_from_db()
        assert feature.label == "sad rainy weather"

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"name": ""},
            {"name": "x", "min_intensity": 2},
            {"name": "x", "max_intensity": 99},
            {"name": "x", "requests_per_minute": -1},
            {"name": "x", "allowed_models": "tiny"},
            {"name": "x", "expires_at": "soon"},
            {"name": "x", "digest": "0" * 64},
            {"name": "x", "revoked_at": None},
            {"name": "x", "priority": 10**9},
        ],
    )
    def test_of_a_key(self, body: Any, admin_api: Api):
        assert refusal(admin_api.post("keys", body))[0] == 400

    @pytest.mark.parametrize(
        ("body", "code", "param"),
        [
            ({"grace_s": -1}, "invalid_value", "grace_s"),
            ({"grace_s": 90 * 86_400 + 1}, "invalid_value", "grace_s"),
            ({"grace_s": 10**30}, "invalid_value", "grace_s"),
            ({"grace_s": 1.5}, "invalid_type", "grace_s"),
            ('{"grace_s": 1e3}', "invalid_type", "grace_s"),
            ({"grace_s": "3600"}, "invalid_type", "grace_s"),
            ({"grace_s": True}, "invalid_type", "grace_s"),
            ({"grace_s": None}, "invalid_value", "grace_s"),
            ({"grace_s": [3600]}, "invalid_type", "grace_s"),
            ({"grace": 3600}, "unknown_parameter", "grace"),
            ({"grace_s": 60, "old_valid_until": None}, "unknown_parameter", "old_valid_until"),
        ],
    )
    def test_of_a_rotation(self, body: Any, code: str, param: str, admin_api: Api):
        key = ApiKey.objects.get(name="ada's")
        assert refusal(admin_api.post(f"keys/{key.pk}/rotate", body)) == (400, code, param)
        key.refresh_from_db()
        assert (key.rotated_at, key.old_digest) == (None, None)

    @pytest.mark.parametrize("reason", ["x" * 301, "a\0b", 5, None, ["leaked"]])
    def test_of_a_revocation(self, reason: Any, admin_api: Api):
        key = ApiKey.objects.get(name="ada's")
        assert refusal(admin_api.post(f"keys/{key.pk}/revoke", {"reason": reason}))[::2] == (400, "reason")
        key.refresh_from_db()
        assert key.revoked_at is None

    @pytest.mark.parametrize(
        ("text", "name"),
        [("{", "x.json"), ("{}", "x.json"), ("{}", "x.exe"), ("[" * 5000, "x.json"), ("a,b\n1", "x.csv")],
    )
    def test_of_files(self, text: str, name: str, admin_api: Api, model: LanguageModel):
        body = {"model": model.pk, "file_name": name, "text": text}
        assert refusal(admin_api.post("profiles/import", body))[0] == 400
        assert not SteeringProfile.objects.exists()

    def test_several_problems_are_all_named(self, admin_api: Api):
        response = admin_api.post("keys", {"name": 5, "priority": "x"})
        message = response.json()["error"]["message"]
        assert "name: must be a string, got a number" in message
        assert "priority: must be an integer, got a string" in message

    def test_texts_come_back_as_they_are_said(self, admin_api: Api, profile: SteeringProfile):
        """JSON is data: nothing in it is markup, and pages that show it escape it."""
        text = "<script>alert(1)</script>\x1b[31m\u202e"
        response = admin_api("PATCH", f"profiles/{profile.pk}", {"description": text})
        assert response.json()["description"] == text
        assert response.headers["Content-Type"] == "application/json"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_an_edit_of_an_sae_that_was_removed_since(admin_api: Api, profile: SteeringProfile):
    FeatureEdit.objects.all().delete()
    assert admin_api.get(f"profiles/{profile.pk}/draft").json() == {"edits": []}


@pytest.mark.parametrize("resource", RESOURCES)
def test_options_names_the_methods(resource: str, admin_api: Api):
    got = admin_api("OPTIONS", resource)
    assert got.status_code == 204
    assert "GET" in got.headers["allow"]
    assert admin_api.client.options(f"/api/{resource}").status_code == 401
