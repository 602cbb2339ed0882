"""What /api does: each resource from its beginning to its end."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from audit.models import AuditEvent
from core.runtime import runtime
from inference.client import ENGINE_CLIENT, LocalEngineClient
from inference.interventions import Site
from inference.models import LanguageModel
from inference.registry.registry import MODEL_REGISTRY, ModelRegistry
from jobs.models import Job, JobLine
from jobs.running_job import RunningJob
from openai_api.keys.authentication import find_key, load_keys
from openai_api.models import ApiKey, LogAccess, RequestLog
from steering import services
from steering.effects.recipe import EffectResult
from steering.effects.store import store_effects
from steering.evaluation.headline import headline_key
from steering.evaluation.runner import EvaluatedVersion
from steering.evaluation.services import keep_evaluation
from steering.models import (
    SAE,
    Evaluation,
    Feature,
    HeadlineKL,
    ProfileVersion,
    SteeringProfile,
    VectorSet,
    WatchRule,
)
from steering.profiles.drafts import draft_edits
from steering.spec.rendering import edits_to_json
from steering.vectors.probes import LinearProbe
from steering.vectors.services import NewVector, save_vectors
from steering.watch.services import record_matches
from steering.watch.watcher import ActiveRule, WatchedVector, WatchMatch
from tests.inference.fakes import FakeLoop
from tests.management_api.conftest import Api, api_of, make_user, refusal
from tests.steering.sae_files import D_IN, write_sae


@pytest.fixture
def version(profile: SteeringProfile) -> ProfileVersion:
    return services.publish_profile(profile=profile)


def running(job: Job) -> RunningJob:
    return RunningJob(job.pk, uuid4(), job.params, job.owner_id)


class TestProfiles:
    def test_from_a_draft_to_its_second_version_and_back(self, researcher_api: Api, model: LanguageModel, sae: SAE):
        edits = [{"sae": sae.name, "index": 1, "strength": 0.5}, {"index": 2, "gate": {"index": 0, "above": 0.1}}]
        made = researcher_api.post("profiles", {"name": "cats", "model": model.pk, "edits": edits}).json()
        assert (made["owner"], made["newest"], made["shared_with"]) == ("rita", None, [])
        path = f"profiles/{made['id']}"

        first = researcher_api.post(f"{path}/publish", {"note": "Cats."})
        assert first.status_code == 201
        assert (first.json()["name"], first.json()["published_by"]) == ("cats@1", "rita")

        draft = researcher_api.get(f"{path}/draft").json()["edits"]
        assert [edit["feature"]["index"] for edit in draft] == [1, 2]
        assert draft[1]["gate"]["feature"]["index"] == 0
        stronger = [{**draft[0], "strength": 0.75}]
        assert researcher_api("PUT", f"{path}/draft", {"edits": stronger}).status_code == 200
        changes = researcher_api.get(f"{path}/diff", before=1).json()["changes"]
        assert sorted(change["kind"] for change in changes) == ["changed", "removed"]

        assert researcher_api.post(f"{path}/publish").json()["number"] == 2
        assert researcher_api.get(f"{path}/diff", before=1, after=2).json()["changes"] == changes
        back = researcher_api.post(f"{path}/roll_back", {"number": 1, "note": "Too much."}).json()
        assert (back["number"], back["fingerprint"]) == (3, first.json()["fingerprint"])
        assert researcher_api.post(f"{path}/restore", {"number": 1}).json()["newest"] == 3
        assert [row["number"] for row in researcher_api.found("versions", profile=made["id"])] == [3, 2, 1]
        assert [event.user for event in AuditEvent.objects.filter(action__in=("publish", "roll_back"))] == ["rita"] * 3

    def test_archive(self, researcher_api: Api, version: ProfileVersion):
        path = f"profiles/{version.profile_id}"
        assert researcher_api.post(f"{path}/archive").json()["archived_at"] is not None
        assert researcher_api.found("profiles", archived="true")
        assert researcher_api.found("profiles", archived="false") == []
        assert researcher_api.post(f"{path}/unarchive").json()["archived_at"] is None

    def test_files(self, researcher_api: Api, version: ProfileVersion, model: LanguageModel):
        document = researcher_api.get(f"profiles/{version.profile_id}/export", version=1).json()
        assert document["profiles"][0]["fingerprint"] == version.fingerprint
        body = {"model": model.pk, "file_name": "x.json", "text": json.dumps(document), "name": "again"}
        response = researcher_api.post("profiles/import", body)
        assert response.status_code == 201
        assert [row["name"] for row in response.json()["data"]] == ["again"]
        assert researcher_api.get(f"profiles/{version.profile_id}/export").json()["profiles"][0]["version"] is None

    def test_an_import_that_replaces_needs_the_right_to_change(self, db: None, model: LanguageModel):
        from django.contrib.auth.models import Permission

        api = api_of(make_user("adder"))
        api.user.user_permissions.set(Permission.objects.filter(codename="add_steeringprofile"))
        body = {"model": model.pk, "file_name": "x.json", "text": "{}", "replaces": True}
        assert refusal(api.post("profiles/import", body))[:2] == (403, "permission_denied")

    def test_reviews(self, researcher_api: Api, admin_api: Api, profile: SteeringProfile, settings: Any):
        settings.MILLM_PROFILE_REVIEW = True
        path = f"profiles/{profile.pk}"
        assert refusal(researcher_api.post(f"{path}/publish"))[1] == "review_required"
        assert researcher_api.post(f"{path}/request_review", {"note": "Look."}).status_code == 201
        assert refusal(researcher_api.post(f"{path}/decide_review", {"approve": True}))[1] == "review_required"
        decided = admin_api.post(f"{path}/decide_review", {"approve": True, "note": "Fine."}).json()
        assert (decided["state"], decided["decided_by"]) == ("approved", "ada")
        assert researcher_api.post(f"{path}/publish").status_code == 201
        assert [row["state"] for row in researcher_api.found(f"{path}/reviews")] == ["published"]

    def test_change_duplicate_delete(self, researcher_api: Api, profile: SteeringProfile):
        path = f"profiles/{profile.pk}"
        changed = researcher_api("PATCH", path, {"description": "Rain."}).json()
        assert (changed["name"], changed["description"]) == ("gloomy", "Rain.")
        copy = researcher_api.post(f"{path}/duplicate", {"name": "copy"}).json()
        assert copy["owner"] == "rita"
        assert researcher_api("DELETE", f"profiles/{copy['id']}").status_code == 204
        assert not SteeringProfile.objects.filter(name="copy").exists()

    def test_a_list_asks_the_same_number_of_queries_however_long_it_is(self, admin_api: Api, model: LanguageModel):
        def queries() -> int:
            with CaptureQueriesContext(connection) as found:
                admin_api.found("profiles")
            return len(found)

        services.create_profile(name="first", model=model)
        admin_api.found("profiles")  # the snapshot of keys
        few = queries()
        for number in range(20):
            services.create_profile(name=f"p{number}", model=model)
        assert queries() == few


class TestModels:
    def test_registered_changed_pinned_removed(self, admin_api: Api, model: LanguageModel):
        body = {"name": "second", "source": model.source, "aliases": ["two"], "is_default": True}
        made = admin_api.post("models", body)
        assert made.status_code == 201, made.content
        path = f"models/{made.json()['id']}"
        assert admin_api.post(f"{path}/pin").json()["pinned"]
        assert not admin_api.post(f"{path}/pin", {"pinned": False}).json()["pinned"]
        assert admin_api("PATCH", path, {"keep_alive_s": 60}).json()["keep_alive_s"] == 60
        assert admin_api("PATCH", path, {"replicas": 2}).json()["replicas"] == 2
        assert admin_api("PATCH", path, {"replicas": 0}).status_code == 400
        assert admin_api("PATCH", path, {"shared_prefix_cache": True}).json()["shared_prefix_cache"]
        assert [row["name"] for row in admin_api.found("models")] == ["second", "tiny"]
        assert [row["name"] for row in admin_api.found("models", name="second", state="unloaded")] == ["second"]
        assert admin_api("PATCH", f"models/{model.pk}", {"is_default": True}).json()["is_default"]
        assert not admin_api.get(path).json()["is_default"]
        assert admin_api("DELETE", path).status_code == 204

    def test_loaded_and_unloaded_in_this_process(self, admin_api: Api, model: LanguageModel):
        asked: list[str] = []

        class Registry(ModelRegistry):
            def load(self, name: str) -> Any:
                asked.append(f"load {name}")

            def unload(self, name: str, *, now: bool = False) -> Any:
                asked.append(f"unload {name} now" if now else f"unload {name}")

        loop: Any = FakeLoop()
        runtime.install(MODEL_REGISTRY, Registry(loop))
        try:
            assert admin_api.post(f"models/{model.pk}/load").status_code == 202
            assert admin_api.post(f"models/{model.pk}/unload").status_code == 202
            assert admin_api.post(f"models/{model.pk}/unload", {"now": True}).status_code == 202
            assert refusal(admin_api.post(f"models/{model.pk}/unload", {"now": "soon"}))[0] == 400
        finally:
            runtime.remove(MODEL_REGISTRY)
        assert asked == ["load tiny", "unload tiny", "unload tiny now"]

    def test_its_default_profile(self, admin_api: Api, version: ProfileVersion, model: LanguageModel):
        path = f"models/{model.pk}/default_profile"
        assert admin_api.post(path, {"profile": "gloomy@1"}).json()["default_profile"] == "gloomy@1"
        assert refusal(admin_api.post(path, {"profile": "gloomy@2"}))[0] == 400
        assert admin_api.post(path, {"profile": ""}).json()["default_profile"] == ""

    def test_memory_in_words(self, admin_api: Api, model: LanguageModel):
        assert "Only the running server" in admin_api.get(f"models/{model.pk}/memory").json()["text"]

    def test_stats(self, admin_api: Api, model: LanguageModel):
        stopped = admin_api.get("stats").json()
        assert stopped["engine"]["state"] == "stopped"
        assert stopped["models"] == {"unloaded": 1}
        loop: Any = FakeLoop()
        runtime.install(ENGINE_CLIENT, LocalEngineClient(lambda publish: loop))
        try:
            assert admin_api.get("stats").json()["engine"]["state"] == "idle"
        finally:
            runtime.remove(ENGINE_CLIENT)

    def test_engine_processes_are_replaced(self, admin_api: Api, auditor_api: Api, monkeypatch: pytest.MonkeyPatch):
        loop: Any = FakeLoop()
        client = LocalEngineClient(lambda publish: loop)
        runtime.install(ENGINE_CLIENT, client)
        try:
            assert refusal(admin_api.post("engine/replace", {}))[:2] == (409, "single_engine_process")
            monkeypatch.setattr(client, "replace_processes", lambda: 3)
            answer = admin_api.post("engine/replace", {})
            assert (answer.status_code, answer.json()) == (202, {"processes": 3})
            assert refusal(auditor_api.post("engine/replace", {}))[0] == 403
            assert refusal(admin_api.get("engine/replace"))[0] == 405
        finally:
            runtime.remove(ENGINE_CLIENT)
        assert AuditEvent.objects.get(subject="engine processes").detail == "replacing all 3"


class TestSAEs:
    def test_added_by_a_job(self, researcher_api: Api, model: LanguageModel, tmp_path: Any):
        body = {"name": "new", "model": model.pk, "source": str(write_sae(tmp_path / "new"))}
        response = researcher_api.post("saes", body)
        assert response.status_code == 202, response.content
        job = Job.objects.get()
        assert (str(job.pk), job.kind, job.owner) == (response.json()["id"], "steering.add_sae", researcher_api.user)
        assert job.params["name"] == "new"
        assert job.params["measures"], "unless they say otherwise"

    def test_one_that_is_not_there(self, researcher_api: Api, model: LanguageModel):
        body = {"name": "new", "model": model.pk, "source": "/nowhere"}
        assert refusal(researcher_api.post("saes", body)) == (400, "invalid_source", "source")
        assert not Job.objects.exists()

    def test_a_name_that_is_taken(self, researcher_api: Api, sae: SAE):
        body = {"name": sae.name, "model": sae.model_id, "source": sae.source}
        assert refusal(researcher_api.post("saes", body)) == (400, "invalid_value", "name")

    def test_health_weights_and_measuring(self, researcher_api: Api, sae: SAE):
        researcher_api.post(f"saes/{sae.pk}/unload")  # the process may have its weights from before
        shown = researcher_api.get(f"saes/{sae.pk}").json()
        assert "20% of the residual" in shown["health"][0]
        assert not shown["is_loaded"]
        assert researcher_api.post(f"saes/{sae.pk}/load").json()["is_loaded"]
        assert not researcher_api.post(f"saes/{sae.pk}/unload").json()["is_loaded"]
        assert researcher_api.post(f"saes/{sae.pk}/measure", {"tokens": 100}).status_code == 202
        assert Job.objects.get().params == {
            "sae": sae.pk,
            "corpus": "default",
            "tokens": 100,
            "replaces_imports": False,
        }
        assert refusal(researcher_api.post(f"saes/{sae.pk}/measure", {"corpus": "../secret"}))[0] == 400

    def test_trained_by_a_job(self, researcher_api: Api, model: LanguageModel, sae: SAE):
        body = {"name": "own", "model": model.pk, "layer": 1, "features": 64, "k": 4, "tokens": 640, "batch": 64}
        response = researcher_api.post("saes/train", body)
        assert (response.status_code, response.json()["kind"]) == (202, "steering.train_sae"), response.content
        params = Job.objects.get().params
        assert (params["recipe"]["features"], params["recipe"]["activation"]) == (64, "topk")
        assert (params["site"], params["corpora"]) == ("resid_post", ["default"])
        for wrong, param in (
            ({"layer": 9}, "layer"),
            ({"k": 65}, "k"),
            ({"site": "mlp_raw"}, "site"),
            ({"activation": "relu"}, "activation"),
            ({"corpora": ["../secret"]}, "corpora"),
            ({"corpora": []}, "corpora"),
            ({"name": sae.name}, "name"),
            ({"name": "own"}, "name"),
            ({"learning_rate": 0}, "learning_rate"),
            ({"max_activations": 1}, "max_activations"),
        ):
            refused = researcher_api.post("saes/train", {**body, "name": "other", **wrong})
            assert refusal(refused) == (400, "invalid_value", param), wrong
        assert Job.objects.count() == 1

    def test_effects_are_measured_by_a_job_and_shown(self, researcher_api: Api, sae: SAE, other_sae: SAE):
        response = researcher_api.post(f"saes/{sae.pk}/effects", {"target": 0.2, "prompts": ["Tell me a story."]})
        assert (response.status_code, response.json()["kind"]) == (202, "steering.effects")
        assert Job.objects.get().params["recipe"]["target"] == 0.2
        assert researcher_api.post(f"saes/{sae.pk}/effects", {"features": [1, 0]}).status_code == 202
        assert Job.objects.latest("created_at").params["features"] == [0, 1]
        for wrong, param in (([10**6], "features"), ([0, -1], "features[1]"), ("x", "features")):
            refused = researcher_api.post(f"saes/{sae.pk}/effects", {"features": wrong})
            assert (refused.status_code, refusal(refused)[2]) == (400, param), wrong
        assert refusal(researcher_api.post(f"saes/{sae.pk}/effects", {"target": 0})) == (400, "invalid_value", "target")
        assert refusal(researcher_api.post(f"saes/{other_sae.pk}/effects", {}))[:2] == (409, "sae_not_measured")
        feature = sae.features.get(index=0)
        assert refusal(researcher_api.get(f"features/{feature.pk}/effect")) == (404, "effect_not_measured", "index")
        found = EffectResult(0, 2.0, 0.31, 0.4, is_capped=False, curve=((2.0, 0.31),))
        store_effects(sae=sae, results=[found], recipe="r", measured_at=timezone.now())
        (row,) = researcher_api.get("features?search=rain&sort=steers_well").json()["data"]
        assert (row["index"], row["relevance"], row["steers_well"]) == (0, 1.0, 0.0)
        assert refusal(researcher_api.get("features?search=rain&meaning=true"))[:2] == (409, "meaning_not_available")
        assert refusal(researcher_api.get("features?search=rain&sort=x"))[0] == 400
        shown = researcher_api.get(f"features/{feature.pk}/effect").json()
        assert (shown["strength"], shown["strength_in_max_act"], shown["curve"]) == (2.0, 0.5, [[2.0, 0.31]])

    def test_features_are_labelled_by_a_job(self, researcher_api: Api, sae: SAE):
        response = researcher_api.post(f"saes/{sae.pk}/interpret", {"model": sae.model.name, "limit": 5})
        assert (response.status_code, response.json()["kind"]) == (202, "steering.interpret")
        assert Job.objects.get().params["limit"] == 5
        assert refusal(researcher_api.post(f"saes/{sae.pk}/interpret", {"model": "no"})) == (
            400,
            "invalid_value",
            "model",
        )

    def test_renamed(self, researcher_api: Api, sae: SAE, other_sae: SAE):
        assert researcher_api("PATCH", f"saes/{sae.pk}", {"name": "layer-1"}).json()["name"] == "layer-1"
        assert refusal(researcher_api("PATCH", f"saes/{sae.pk}", {"name": other_sae.name})) == (
            400,
            "invalid_value",
            "name",
        )
        assert refusal(researcher_api("PATCH", f"saes/{sae.pk}", {"layer": 2}))[1] == "unknown_parameter"

    def test_deleted(self, researcher_api: Api, sae: SAE):
        assert researcher_api("DELETE", f"saes/{sae.pk}").status_code == 204
        assert not SAE.objects.exists()


class TestFeatures:
    def test_found_by_words_and_labelled(self, researcher_api: Api, sae: SAE):
        (found,) = researcher_api.found("features", search="kitten")
        assert (found["index"], found["label"]) == (1, "cats and kittens")
        changed = researcher_api("PATCH", f"features/{found['id']}", {"label": "cats"}).json()
        assert (changed["label"], changed["label_source"]) == ("cats", "rita, through /api")
        assert researcher_api.found("features", sae=sae.pk, index=1)[0]["label"] == "cats"

    def test_labelled_or_not(self, researcher_api: Api, sae: SAE):
        assert len(researcher_api.found("features", labelled="true")) == 3
        assert len(researcher_api.found("features", labelled="false", limit=200)) == sae.d_sae - 3

    def test_examples_of_traffic_are_not_shown(self, researcher_api: Api, feature: Feature):
        feature.traffic_examples = [{"tokens": ["secret"], "values": [1.0]}]
        feature.save()
        assert "secret" not in researcher_api.get(f"features/{feature.pk}").content.decode()

    def test_quantiles_come_from_the_histogram(self, feature: Feature, researcher_api: Api):
        assert researcher_api.get(f"features/{feature.pk}").json()["activation_quantiles"] is None
        Feature.objects.filter(pk=feature.pk).update(histogram={"width": 0.5, "counts": [98, 1, 0, 1] + [0] * 28})
        found = researcher_api.get(f"features/{feature.pk}").json()["activation_quantiles"]
        assert found == {"p99": 1.0, "p999": pytest.approx(1.95), "n": 100, "corpus": ""}

    def test_page_by_page(self, researcher_api: Api, sae: SAE):
        seen: list[int] = []
        cursor: str | None = ""
        while cursor is not None:
            query = {"cursor": cursor} if cursor else {}
            page = researcher_api.get("features", sae=sae.pk, limit=7, **query).json()
            seen += [row["index"] for row in page["data"]]
            cursor = page["next"]
        assert seen == list(range(sae.d_sae))


class TestKeys:
    def test_its_whole_life(self, admin_api: Api):
        response = admin_api.post("keys", {"name": "laptop", "requests_per_minute": 5, "allowed_models": ["tiny"]})
        assert response.status_code == 201
        assert response.headers["Cache-Control"] == "no-store"
        made = response.json()
        assert find_key(made["key"], load_keys()) is not None
        path = f"keys/{made['id']}"
        assert "key" not in admin_api.get(path).json()
        assert "digest" not in admin_api.get(path).json()
        assert admin_api("PATCH", path, {"requests_per_minute": None}).json()["requests_per_minute"] is None

        rotated = admin_api.post(f"{path}/rotate").json()
        assert rotated["key"] != made["key"]
        assert rotated["id"] == made["id"]
        assert find_key(rotated["key"], load_keys()) is not None

        assert admin_api.post(f"{path}/revoke").json()["revoked_at"] is not None
        assert find_key(rotated["key"], load_keys()) is None
        assert refusal(admin_api.post(f"{path}/rotate"))[0] == 400
        assert [row["name"] for row in admin_api.found("keys", revoked="true")] == ["laptop"]
        assert admin_api("DELETE", path).status_code == 204

    def test_both_secrets_open_the_door_for_the_grace_that_was_asked_for(self, admin_api: Api):
        made = admin_api.post("keys", {"name": "laptop", "requests_per_day": 5}).json()
        before = timezone.now()
        response = admin_api.post(f"keys/{made['id']}/rotate", {"grace_s": 3600})
        assert response.headers["Cache-Control"] == "no-store"
        rotated = response.json()
        until = parse_datetime(rotated["old_valid_until"])
        assert until is not None
        assert before + timedelta(hours=1) <= until <= timezone.now() + timedelta(hours=1)
        assert (rotated["old_prefix"], rotated["requests_per_day"]) == (made["prefix"], 5)
        assert made["key"].startswith(rotated["old_prefix"])
        old, new = (find_key(plain, load_keys()) for plain in (made["key"], rotated["key"]))
        assert old is not None
        assert new is not None
        assert (old.pk, old.expires_at, new.expires_at) == (new.pk, until, None)
        shown = admin_api.get(f"keys/{made['id']}").json()
        assert {"key", "digest", "old_digest"} & shown.keys() == set()

        event = AuditEvent.objects.get(action="rotate")
        assert (event.user, event.key, event.object_id) == ("ada", "ada's", str(made["id"]))
        assert made["prefix"] in event.detail
        assert f"valid until {until:%Y-%m-%d %H:%M} UTC" in event.detail
        assert not {made["key"], rotated["key"]} & {event.detail, event.subject}

    def test_without_a_grace_the_old_secret_is_refused_at_once(self, admin_api: Api):
        made = admin_api.post("keys", {"name": "laptop"}).json()
        rotated = admin_api.post(f"keys/{made['id']}/rotate").json()
        assert (rotated["old_valid_until"], rotated["old_prefix"]) == (None, "")
        assert find_key(made["key"], load_keys()) is None
        assert "valid no longer" in AuditEvent.objects.get(action="rotate").detail

    def test_a_key_rotates_itself_and_goes_on_with_either_secret(self, admin_api: Api):
        own = ApiKey.objects.get(name="ada's")
        rotated = admin_api.post(f"keys/{own.pk}/rotate", {"grace_s": 90 * 86_400}).json()
        assert admin_api.get("me").status_code == 200
        admin_api.headers["Authorization"] = f"Bearer {rotated['key']}"
        assert admin_api.get("me").status_code == 200

    def test_revoking_with_a_reason_ends_both_secrets(self, admin_api: Api):
        made = admin_api.post("keys", {"name": "laptop"}).json()
        rotated = admin_api.post(f"keys/{made['id']}/rotate", {"grace_s": 60}).json()
        revoked = admin_api.post(f"keys/{made['id']}/revoke", {"reason": "it leaked"}).json()
        assert (revoked["revoked_reason"], revoked["old_valid_until"]) == ("it leaked", None)
        assert [find_key(plain, load_keys()) for plain in (made["key"], rotated["key"])] == [None, None]
        assert AuditEvent.objects.get(action="revoke").detail == "it leaked"

    def test_for_somebody_else(self, admin_api: Api, researcher_api: Api):
        assert admin_api.post("keys", {"name": "k", "owner": "rita"}).json()["owner"] == "rita"
        assert refusal(admin_api.post("keys", {"name": "k", "owner": "gone"})) == (404, "not_found", "owner")
        assert ApiKey.objects.filter(name="k").count() == 1

    def test_no_key_is_in_the_audit_trail(self, admin_api: Api):
        plain = admin_api.post("keys", {"name": "laptop", "scopes": ["manage"]}).json()["key"]
        assert not [event for event in AuditEvent.objects.all() if plain in f"{event.subject} {event.detail}"]


class TestLogs:
    @pytest.fixture
    def rows(self, db: None) -> None:
        now = timezone.now()
        RequestLog.objects.bulk_create(
            RequestLog(
                id=f"req_{number:03}",
                created_at=now - timedelta(minutes=number // 3),  # three of a time
                endpoint="/v1/chat/completions",
                model="tiny" if number % 2 else "other",
                profile="gloomy@1" if number % 5 == 0 else "",
                status=200 if number % 7 else 500,
                total_ms=float(number),
                prompt="the secret prompt",
                completion="the secret answer",
                parameters={"stop": ["the secret stop"]},
            )
            for number in range(60)
        )

    @pytest.mark.usefixtures("rows")
    def test_every_row_once_page_by_page(self, auditor_api: Api):
        seen: list[str] = []
        page = auditor_api.get("logs", limit=7).json()
        while page["next"]:
            seen += [row["id"] for row in page["data"]]
            page = auditor_api.get("logs", limit=7, cursor=page["next"]).json()
        seen += [row["id"] for row in page["data"]]
        assert len(seen) == 60
        assert len(set(seen)) == 60

    def test_by_source(self, auditor_api: Api):
        for source in RequestLog.Source.values:
            RequestLog.objects.create(id=source, source=source, created_at=timezone.now(), endpoint="/v1/x", status=200)
        assert {row["id"] for row in auditor_api.get("logs").json()["data"]} == set(RequestLog.Source.values)
        (row,) = auditor_api.get("logs", source="console").json()["data"]
        assert (row["id"], row["source"]) == ("console", "console")

    @pytest.mark.usefixtures("rows")
    def test_nothing_is_counted_and_no_text_is_read(self, auditor_api: Api):
        auditor_api.found("logs")
        with CaptureQueriesContext(connection) as queries:
            auditor_api.found("logs")
        texts = [query["sql"] for query in queries if "openai_api_requestlog" in query["sql"]]
        assert len(texts) == 1
        assert "COUNT" not in texts[0]
        assert "OFFSET" not in texts[0]
        assert '"prompt"' not in texts[0]

    @pytest.mark.usefixtures("rows")
    def test_filters(self, auditor_api: Api):
        assert len(auditor_api.found("logs", model="tiny")) == 30
        assert len(auditor_api.found("logs", profile="gloomy")) == 12
        assert len(auditor_api.found("logs", profile="gloomy@1")) == 12
        assert auditor_api.found("logs", profile="gloomy@2") == []
        assert len(auditor_api.found("logs", status=500)) == 9
        assert len(auditor_api.found("logs", min_total_ms=50)) == 10
        early = (timezone.now() - timedelta(minutes=9, seconds=30)).isoformat()
        assert len(auditor_api.found("logs", since=early)) + len(auditor_api.found("logs", until=early)) == 60

    @pytest.mark.usefixtures("rows")
    def test_texts_only_for_those_who_may_read_them(self, auditor_api: Api, db: None):
        boss = api_of(make_user("boss", is_superuser=True))
        assert boss.get("logs/req_001").json()["prompt"] == "the secret prompt"
        assert LogAccess.objects.get().username == "boss"
        assert "secret" not in boss.get("logs").content.decode(), "a list never has texts"
        if not auditor_api.user.has_perm("openai_api.view_prompt_text"):
            assert "secret" not in auditor_api.get("logs/req_001").content.decode()

    @pytest.mark.usefixtures("rows")
    def test_a_program_scores_with_the_key_of_an_account(self, auditor_api: Api, researcher_api: Api):
        answer = auditor_api("PUT", "logs/req_001/score", {"value": 0.25})
        assert answer.status_code == 200
        assert answer.json()["scores"] == [{"user": "aldo", "name": "", "value": 0.25, "note": ""}]
        boss = api_of(make_user("boss", is_superuser=True))
        boss("PUT", "logs/req_001/score", {"value": 1, "note": "Quotes the secret."})
        auditor_api("PUT", "logs/req_001/score", {"value": 0.5})
        scores = boss.get("logs/req_001").json()["scores"]
        assert [(score["user"], score["value"]) for score in scores] == [("aldo", 0.5), ("boss", 1)]
        assert scores[1]["note"] == "Quotes the secret."
        scorer = make_user("sam")
        may = ("view_requestlog", "view_requestscore", "add_requestscore")
        scorer.user_permissions.add(*Permission.objects.filter(codename__in=may))
        assert "secret" not in api_of(scorer).get("logs/req_001").content.decode()
        refused = api_of(scorer)("PUT", "logs/req_001/score", {"value": 0.5, "note": "Bad."})
        assert refusal(refused) == (403, "permission_denied", "note")
        auditor_api("PUT", "logs/req_001/score", {"value": 0, "name": "funny"})
        assert auditor_api("DELETE", "logs/req_001/score").status_code == 204
        names = [(score["user"], score["name"]) for score in boss.get("logs/req_001").json()["scores"]]
        assert names == [("boss", ""), ("aldo", "funny")]
        assert refusal(auditor_api("DELETE", "logs/req_001/score?of=funny"))[0] == 400
        assert auditor_api("DELETE", "logs/req_001/score?name=funny").status_code == 204
        assert [score["user"] for score in boss.get("logs/req_001").json()["scores"]] == ["boss"]
        assert researcher_api("PUT", "logs/req_001/score", {"value": 1}).status_code in {403, 404}

    @pytest.mark.usefixtures("rows")
    @pytest.mark.parametrize("value", [-0.1, 1.1, "1", None, True, [1]])
    def test_a_score_is_a_number_from_0_to_1(self, auditor_api: Api, value: object):
        assert refusal(auditor_api("PUT", "logs/req_001/score", {"value": value}))[0] == 400
        assert refusal(auditor_api("PUT", "logs/req_001/score", {}))[0] == 400
        assert refusal(auditor_api("PUT", "logs/req_none/score", {"value": 1}))[0] == 404
        assert auditor_api.get("logs/req_001").json()["scores"] == []


class TestJobs:
    def test_cancelled_and_retried(self, researcher_api: Api):
        job = Job.objects.create(kind="example.none", title="Long", owner=researcher_api.user)
        JobLine.objects.create(job=job, text="Began.")
        detail = researcher_api.get(f"jobs/{job.pk}").json()
        assert (detail["lines"], detail["owner"]) == (["Began."], "rita")
        assert researcher_api.post(f"jobs/{job.pk}/cancel").json()["state"] == "cancelled"
        assert refusal(researcher_api.post(f"jobs/{job.pk}/cancel"))[:2] == (409, "job_state")
        assert researcher_api.post(f"jobs/{job.pk}/retry").json()["state"] == "queued"
        assert researcher_api.found("jobs", state="queued", kind="example.none")
        assert [row["lane"] for row in researcher_api.found("jobs", lane="bulk")] == ["bulk"]
        assert not researcher_api.found("jobs", lane="interactive")
        assert refusal(researcher_api.get("jobs?lane=fast"))[:2] == (400, "invalid_value")

    def test_admins_see_all(self, researcher_api: Api, admin_api: Api):
        Job.objects.create(kind="example.none", title="Long", owner=researcher_api.user)
        assert len(admin_api.found("jobs")) == 1


class TestEvaluations:
    @pytest.mark.parametrize("act", ["sweep", "calibrate", "compare"])
    def test_begun(self, act: str, researcher_api: Api, version: ProfileVersion):
        response = researcher_api.post(f"versions/{version.pk}/{act}", {"prompts": ["Hello."], "max_tokens": 4})
        assert response.status_code == 202, response.content
        job = Job.objects.get()
        assert job.kind == f"steering.{act}"
        assert (job.params["version"], job.params["texts"]["prompts"]) == (version.pk, ["Hello."])
        assert job.owner == researcher_api.user

    @pytest.mark.parametrize("kind", ["sweep", "calibration", "comparison"])
    def test_of_a_draft(self, kind: str, researcher_api: Api, profile: SteeringProfile):
        body = {"kind": kind, "draft": profile.pk, "prompts": ["Hello."]}
        assert researcher_api.post("evaluations", body).status_code == 202
        job = Job.objects.get()
        edits = edits_to_json(draft_edits(profile))
        assert job.params["version"] == {
            "model": profile.model_id,
            "label": "gloomy@draft",
            "edits": edits,
            "profile": profile.pk,
        }

        keep_evaluation(kind, running(job), {"proposal": {"factor": 0.5, "kl": 0.3}})
        (row,) = researcher_api.found("evaluations", profile=profile.pk)
        report = researcher_api.get(f"evaluations/{row['id']}").json()
        assert (report["version"], report["profile"], report["model"]) == (None, profile.pk, profile.model_id)
        assert report["edits"] == edits
        used = researcher_api.post(f"evaluations/{row['id']}/use")
        assert used.status_code == (200 if kind == "calibration" else 400)

    def test_of_inline_edits(self, researcher_api: Api, admin_api: Api, model: LanguageModel, feature: Feature):
        edits = [{"index": feature.index, "strength": 0.5}]
        body = {"kind": "sweep", "edits": edits, "model": model.pk, "strengths": [1.0]}
        assert researcher_api.post("evaluations", body).status_code == 202
        job = Job.objects.get()
        assert job.params["version"]["label"] == "inline"
        assert EvaluatedVersion.find(job.params["version"]).published.saes[0].checksum == feature.sae.checksum

        keep_evaluation("calibration", running(job), {"proposal": {"factor": 0.5, "kl": 0.3}})
        (row,) = researcher_api.found("evaluations", model=model.pk)
        assert refusal(researcher_api.post(f"evaluations/{row['id']}/use"))[0] == 400
        assert len(admin_api.found("evaluations")) == 1
        stranger = api_of(make_user("sam", "Researchers"))
        assert stranger.found("evaluations") == []

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "kind"),
            ({"kind": "guess"}, "kind"),
            ({"kind": "sweep"}, "version"),
            ({"kind": "sweep", "version": 10**9}, "version"),
            ({"kind": "sweep", "draft": "gloomy"}, "draft"),
            ({"kind": "sweep", "edits": []}, "edits"),
            ({"kind": "sweep", "edits": [{"index": 3}]}, "model"),
            ({"kind": "sweep", "edits": [{"index": 10**6}], "model": "MODEL"}, "edits[0].index"),
            ({"kind": "sweep", "edits": [{"index": 3, "strength": "1"}], "model": "MODEL"}, "edits[0].strength"),
            ({"kind": "sweep", "edits": [{"index": 3}], "model": "MODEL", "target": 0.5}, "target"),
            ({"kind": "calibration", "edits": [{"index": 3}], "model": "MODEL", "other": 3}, "other"),
            ({"kind": "calibration", "draft": "PROFILE", "model": "MODEL"}, "model"),
            ({"kind": "comparison", "draft": "PROFILE", "edits": [{"index": 3}], "model": "MODEL"}, "edits"),
            ({"kind": "sweep", "draft": "PROFILE", "prompts": []}, None),
        ],
    )
    def test_refused(self, body: Any, param: str | None, researcher_api: Api, profile: SteeringProfile):
        names = {"MODEL": profile.model_id, "PROFILE": profile.pk}
        body = {name: names.get(value, value) if isinstance(value, str) else value for name, value in body.items()}
        status, _, found = refusal(researcher_api.post("evaluations", body))
        assert (status in {400, 404}, found) == (True, param)
        assert not Job.objects.exists()

    def test_reports(self, researcher_api: Api, version: ProfileVersion):
        report = Evaluation.objects.create(kind="sweep", version=version, result={"rows": [1, 2]})
        assert "result" not in researcher_api.found("evaluations", version=version.pk)[0]
        assert researcher_api.get(f"evaluations/{report.pk}").json()["result"] == {"rows": [1, 2]}
        assert refusal(researcher_api.post(f"evaluations/{report.pk}/use"))[0] == 400

    def test_a_version_has_its_headline_kl(self, researcher_api: Api, version: ProfileVersion):
        assert researcher_api.get(f"versions/{version.pk}").json()["headline_kl"] is None
        key = headline_key(version.profile.model, version.fingerprint)
        HeadlineKL.objects.create(**key, kl=0.5, low=0.25, high=0.75, result={})
        found = researcher_api.get(f"versions/{version.pk}").json()["headline_kl"]
        assert found == {"kl": 0.5, "low": 0.25, "high": 0.75, "recipe": "1"}

    def test_a_proposal_is_used(self, researcher_api: Api, version: ProfileVersion):
        result = {"proposal": {"factor": 0.5, "kl": 0.3}}
        report = Evaluation.objects.create(kind="calibration", version=version, result=result)
        edits = researcher_api.post(f"evaluations/{report.pk}/use").json()["edits"]
        assert edits[0]["strength"] == pytest.approx(0.25)


class TestPolicies:
    def test_made_changed_removed(self, admin_api: Api, version: ProfileVersion):
        made = admin_api.post("policies", {"version": version.pk, "reason": "Calm."})
        assert made.status_code == 201, made.content
        path = f"policies/{made.json()['id']}"
        assert (made.json()["name"], made.json()["created_by"]) == ("gloomy@1", "ada")
        changed = admin_api("PATCH", path, {"is_active": False}).json()
        assert (changed["is_active"], changed["reason"], changed["position"]) == (False, "Calm.", 0)
        assert refusal(admin_api.post("policies", {"version": version.pk, "reason": "Again."}))[0] == 400
        assert admin_api("DELETE", path).status_code == 204
        assert AuditEvent.objects.filter(action="policy", user="ada").count() == 3


class TestWatchRules:
    @pytest.fixture
    def vectors(self, model: LanguageModel) -> VectorSet:
        found = [NewVector(Site(layer), (0.5,) * D_IN) for layer in (0, 2)]
        return save_vectors(name="angry", model=model, vectors=found, origin="x")

    def test_on_a_feature(self, admin_api: Api, feature: Feature):
        made = admin_api.post("watch_rules", {"name": "storm", "feature": feature.pk, "reason": "Weather."})
        assert made.status_code == 201, made.content
        rule = made.json()
        assert (rule["unit"], rule["raw_threshold"]) == ("max_act", feature.max_activation)
        assert (rule["feature"], rule["vector"], rule["created_by"]) == (feature.pk, None, "ada")
        path = f"watch_rules/{rule['id']}"
        changed = admin_api("PATCH", path, {"threshold": 0.5, "action": "cap"}).json()
        assert changed["raw_threshold"] == 0.5 * (feature.max_activation or 0)
        assert (changed["action"], changed["reason"]) == ("cap", "Weather.")
        assert admin_api("DELETE", path).status_code == 204
        assert AuditEvent.objects.filter(action="watch", user="ada").count() == 3

    def test_on_a_vector_and_its_events(self, admin_api: Api, vectors: VectorSet, model: LanguageModel):
        body = {"name": "anger", "vector": {"set": "angry", "layer": 2}, "sigmoid": True, "bias": -1, "threshold": 0.9}
        made = admin_api.post("watch_rules", {**body, "reason": "Reviewed."})
        assert made.status_code == 201, made.content
        rule = made.json()
        assert (rule["vector"], rule["unit"]) == ({"set": "angry", "layer": 2, "site": "resid_post"}, "raw")
        assert (rule["model"], rule["subject"]) == (model.pk, "angry at layer 2 (resid_post)")
        assert [found["name"] for found in admin_api.found("watch_rules", model=model.pk)] == ["anger"]
        assert admin_api.found("watch_rules", model=model.pk + 1) == []
        target = WatchedVector(rule["subject"], Site(2), b"", LinearProbe())
        match = WatchMatch(
            ActiveRule(1, "anger", "alert", target, 0.9), 0.99, 3, 5, True, timezone.now(), "tiny", "", "r"
        )
        record_matches([match])
        (event,) = admin_api.found("watch_events", rule="anger")
        assert (event["vector"], event["feature"], event["value"]) == (rule["subject"], None, 0.99)
        assert admin_api.found("watch_events", rule="other") == []

    @pytest.mark.parametrize(
        ("body", "refused"),
        [
            ({}, (400, "missing_required_parameter", "feature")),
            ({"feature": 10**9}, (404, "not_found", "feature")),
            ({"feature": True, "vector": {"set": "angry", "layer": 2}}, (400, "invalid_value", "vector")),
            ({"feature": True, "sigmoid": True}, (400, "invalid_value", "sigmoid")),
            ({"feature": True, "threshold": -1}, (400, "invalid_value", "threshold")),
            ({"feature": True, "unit": "metres"}, (400, "invalid_value", "unit")),
            ({"vector": {"set": "calm"}}, (400, "vector_set_not_found", "vector.set")),
            ({"vector": {"set": "angry"}}, (400, "invalid_value", "vector.layer")),
            ({"vector": {"set": "angry", "layer": 1}}, (400, "invalid_value", "vector.layer")),
            ({"vector": {"layer": 1}}, (400, "missing_required_parameter", "vector.set")),
            ({"vector": {"set": "angry", "layer": 2, "values": []}}, (400, "unknown_parameter", "vector.values")),
            ({"vector": {"set": "angry", "layer": 2}, "unit": "p99"}, (400, "invalid_value", "unit")),
            ({"vector": {"set": "angry", "layer": 2}, "sigmoid": True}, (400, "invalid_value", "threshold")),
            ({"feature": True, "name": "two words"}, (400, "invalid_value", "name")),
        ],
    )
    def test_refused(self, body: Any, refused: Any, admin_api: Api, feature: Feature, vectors: VectorSet):
        if body.get("feature") is True:
            body = body | {"feature": feature.pk}
        response = admin_api.post("watch_rules", {"name": "x", "reason": "To see.", **body})
        assert refusal(response) == refused, response.content
        assert not WatchRule.objects.exists()

    def test_sets_of_others_are_not_there(self, vectors: VectorSet, researcher_api: Api):
        user = make_user("willy", "Researchers")
        user.user_permissions.add(Permission.objects.get(codename="add_watchrule"))
        VectorSet.objects.update(created_by=researcher_api.user)
        body = {"name": "x", "reason": "To see.", "vector": {"set": "angry", "layer": 2}}
        assert refusal(api_of(user).post("watch_rules", body))[1:] == ("vector_set_not_found", "vector.set")
