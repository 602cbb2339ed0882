"""/v1/models: list, look up, unload."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from openai.types import Model, ModelDeleted
from pydantic import TypeAdapter

from audit.models import AuditEvent
from core.runtime import runtime
from inference.registry.registry import MODEL_REGISTRY
from openai_api.backend import BACKEND, Backend
from openai_api.keys.authentication import snapshot
from openai_api.keys.record import KeyRecord
from openai_api.keys.services import create_api_key
from tests.inference.test_admin import FakeRegistry as UnloadingRegistry
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import record


async def test_all_registered_models_are_listed(api: Api):
    response = await api.client.get("/v1/models")
    body = response.json()
    assert body["object"] == "list"
    assert body["data"][2] == {
        "id": "cold:8b",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "millm",
        "kind": "generation",
        "is_default": False,
        "state": "unloaded",
        "max_model_len": None,
        "num_layers": None,
        "hidden_size": None,
        "aliases": [],
        "default_profile": None,
    }
    assert [model["id"] for model in body["data"]] == ["tiny", "org/steered", "cold:8b", "vectors"]
    assert [model["max_model_len"] for model in body["data"]] == [100, 100, None, 100]
    assert [(model["num_layers"], model["hidden_size"]) for model in body["data"]] == [
        (2, 4),
        (2, 4),
        (None, None),
        (None, None),
    ]
    assert body["data"][1]["default_profile"] == "joyful"
    assert api.log.only.endpoint == "/v1/models"


@pytest.mark.parametrize("path", ["/v1/models/org/steered", "/v1/models/org%2Fsteered", "/v1/models/org/steered/"])
async def test_ids_may_have_slashes(api: Api, path: str):
    response = await api.client.get(path)
    assert response.json()["id"] == "org/steered"
    TypeAdapter(Model).validate_json(response.content, strict=True)


async def test_an_alias_finds_its_model(api: Api):
    assert (await api.client.get("/v1/models/small")).json()["id"] == "tiny"


async def test_head_answers_like_get(api: Api):
    assert (await api.client.head("/v1/models")).status_code == 200


@pytest.mark.parametrize("path", ["nope", "../../etc/passwd", "x" * 5_000])
@pytest.mark.parametrize("method", ["get", "delete"])
async def test_unknown_models_are_404(api: Api, path: str, method: str):
    response = await getattr(api.client, method)(f"/v1/models/{path}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert api.log.only.status == 404


async def test_a_model_with_a_profile_can_be_looked_up(api: Api):
    for path, label in (("tiny:gloomy", "gloomy@2"), ("small:gloomy@1", "gloomy@1"), ("cold:8b:cats", "cats@2")):
        response = await api.client.get(f"/v1/models/{path}")
        assert response.status_code == 200, response.content
        TypeAdapter(Model).validate_json(response.content, strict=True)
        body = response.json()
        base, _, reference = path.rpartition(":")
        assert body["id"] == f"{'tiny' if base == 'small' else base}:{reference}"
        assert body["default_profile"] == label
    for path, status, code in (
        ("tiny:nobody", 404, "profile_not_found"),
        ("nobody:gloomy", 404, "model_not_found"),
        ("tiny:", 404, "model_not_found"),
        ("ft:tiny:me::1", 404, "model_not_found"),
    ):
        refused = await api.client.get(f"/v1/models/{path}")
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)


async def test_a_key_sees_a_model_only_with_its_own_profiles(api: Api):
    headers = api.keys.add("key", allowed_profiles=frozenset({"cats"}))
    assert (await api.client.get("/v1/models/tiny:cats", headers=headers)).status_code == 200
    refused = await api.client.get("/v1/models/tiny:gloomy", headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "profile_not_allowed")


PROFILES = ["tiny:cats", "tiny:gloomy", "tiny:joyful"]


async def listed(api: Api, query: str = "?profiles=true", **headers: str) -> list[str]:
    response = await api.client.get(f"/v1/models{query}", headers=headers)
    assert response.status_code == 200, response.content
    for model in response.json()["data"]:
        assert (await api.client.get(f"/v1/models/{model['id']}", headers=headers)).json() == model
    return [model["id"] for model in response.json()["data"]]


async def test_profiles_are_listed_on_request_behind_their_model(api: Api):
    steered = ["org/steered:cats", "org/steered:gloomy", "org/steered:joyful"]
    assert await listed(api) == ["tiny", *PROFILES, "org/steered", *steered, "cold:8b", "vectors"]
    [gloomy] = [
        model
        for model in (await api.client.get("/v1/models?profiles=1")).json()["data"]
        if model["id"] == "tiny:gloomy"
    ]
    TypeAdapter(Model).validate_python(gloomy, strict=True)
    assert (gloomy["default_profile"], gloomy["aliases"], gloomy["is_default"]) == ("gloomy@2", ["small:gloomy"], False)
    for name in PROFILES:
        assert (await api.chat(model=name)).headers["x-millm-profile"].startswith(name.removeprefix("tiny:"))


async def test_the_setting_lists_profiles_and_a_request_can_decline(api: Api, settings: Any):
    assert "tiny:gloomy" not in await listed(api, "")
    settings.MILLM_LIST_PROFILES = True
    assert "tiny:gloomy" in await listed(api, "")
    assert "tiny:gloomy" not in await listed(api, "?profiles=false")


async def test_a_key_lists_the_profiles_that_it_may_name(api: Api):
    headers = api.keys.add(
        "key", allowed_models=frozenset({"tiny"}), allowed_profiles=frozenset({"cats", "gloomy@1", "gloomy@9", "old"})
    )
    assert await listed(api, **headers) == ["tiny", "tiny:cats", "tiny:gloomy@1"]


async def test_a_model_with_the_name_of_a_profile_is_listed_once(api: Api):
    api.registry.add(record("tiny:cats"), record("other", aliases=("tiny:gloomy",)))
    names = [model["id"] for model in (await api.client.get("/v1/models?profiles=true")).json()["data"]]
    assert names.count("tiny:cats") == 1
    assert "tiny:gloomy" not in names
    assert "tiny:joyful" in names


async def test_anthropic_s_clients_page_through_profiles(api: Api):
    headers = {"anthropic-version": "2023-06-01"}
    page = (await api.client.get("/v1/models?profiles=true&limit=2", headers=headers)).json()
    assert ([model["id"] for model in page["data"]], page["has_more"]) == (["tiny", "tiny:cats"], True)
    url = "/v1/models?profiles=true&limit=2&after_id=tiny:cats"
    page = (await api.client.get(url, headers=headers)).json()
    assert [model["id"] for model in page["data"]] == ["tiny:gloomy", "tiny:joyful"]


@pytest.mark.parametrize("value", ["maybe", "2", "[]", "x" * 5_000])
async def test_a_bad_value_of_profiles_is_refused(api: Api, value: str):
    response = await api.client.get(f"/v1/models?profiles={value}")
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "profiles")
    assert len(response.content) < 1_000


async def test_names_may_have_colons(api: Api):
    api.registry._records = (record("ft:tiny:me::1"), record("llama3:8b"), record("llama3"))
    for name in ("ft:tiny:me::1", "llama3:8b", "llama3"):
        assert (await api.client.get(f"/v1/models/{name}")).json()["id"] == name
        assert (await api.chat(model=name)).json()["model"] == name
        assert (await api.chat(model=f"{name}:gloomy")).headers["x-millm-profile"] == "gloomy@2"
        assert (await api.client.delete(f"/v1/models/{name}")).json()["id"] == name


async def test_delete_unloads(api: Api):
    response = await api.client.delete("/v1/models/small")
    assert response.json() == {"id": "tiny", "object": "model", "deleted": True}
    TypeAdapter(ModelDeleted).validate_json(response.content, strict=True)
    assert api.registry.unloaded == ["tiny"]


async def test_a_delete_that_is_repeated_has_the_same_answer(api: Api):
    """Of a model that is unloaded, or about to be, there is nothing else to say; the registry does it once."""
    answers = [await api.client.delete("/v1/models/cold:8b") for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    assert [answer.json() for answer in answers] == [{"id": "cold:8b", "object": "model", "deleted": True}] * 3


@pytest.mark.django_db(transaction=True)
async def test_the_trail_says_who_unloaded_it_by_which_key(api: Api, settings: Any):
    owner = await User.objects.acreate_superuser("root")
    created = await sync_to_async(create_api_key)(name="laptop", owner=owner)
    registry = UnloadingRegistry()
    runtime.install(MODEL_REGISTRY, registry)
    runtime.install(BACKEND, Backend(lambda: api.engine, lambda: api.registry))
    snapshot.forget()
    headers = {"Authorization": f"Bearer {created.plain}", "X-Client-Request-Id": "mine-1"}
    response = await api.client.delete("/v1/models/tiny", headers=headers)
    runtime.remove(MODEL_REGISTRY)
    snapshot.forget()
    assert response.status_code == 200
    assert registry.calls == [("unload", "tiny")]
    event = await AuditEvent.objects.aget(action="unload")
    assert (event.user, event.key, event.request_id) == ("root", "laptop", "mine-1")
    assert (event.kind, event.object_id, event.subject) == ("inference.languagemodel", "1", "tiny")


@pytest.mark.parametrize(("may", "status"), [(True, 200), (False, 403)])
async def test_unloading_needs_the_right(api: Api, may: bool, status: int):
    headers = api.keys.add("key", may_manage_models=may)
    response = await api.client.delete("/v1/models/tiny", headers=headers)
    assert response.status_code == status
    assert api.registry.unloaded == (["tiny"] if may else [])
    if not may:
        assert response.json()["error"]["type"] == "permission_error"
        assert response.json()["error"]["code"] == "permission_denied"


async def test_a_key_sees_what_it_may_use(api: Api):
    headers = api.keys.add("key", allowed_models=frozenset({"tiny"}))
    assert [model["id"] for model in (await api.client.get("/v1/models", headers=headers)).json()["data"]] == ["tiny"]
    assert (await api.client.get("/v1/models/cold:8b", headers=headers)).status_code == 403


def test_a_key_record_manages_nothing_by_default():
    assert not KeyRecord(1, "k", "d").may_manage_models
