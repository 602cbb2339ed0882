"""Which model and profile a request means, and what its key allows."""

from __future__ import annotations

from typing import Any

import pytest

from inference.client import EngineDownError, ModelNotAttachedError, QueueFullError
from inference.registry.model_card import ModelNotReadyError
from tests.openai_api.conftest import Api


def profile_of(api: Api) -> str | None:
    steering = api.engine.requests[-1].steering
    return steering.fingerprint if steering else None


@pytest.mark.parametrize(
    ("fields", "headers", "label"),
    [
        ({"profile": "gloomy"}, {}, "gloomy@2"),
        ({"profile": "gloomy@1"}, {}, "gloomy@1"),
        ({}, {"x-millm-profile": "cats"}, "cats@2"),
        ({"model": "tiny:cats@1"}, {}, "cats@1"),
        ({"model": "small:cats"}, {}, "cats@2"),
        ({"model": "cold:8b:cats"}, {}, "cats@2"),
        ({"model": "tiny:cats", "profile": "cats"}, {"x-millm-profile": "cats"}, "cats@2"),
        ({"model": "org/steered"}, {}, "joyful@2"),
        ({"model": "org/steered", "profile": "cats"}, {}, "cats@2"),
        ({"model": "org/steered", "profile": None}, {}, None),
        ({"model": "org/steered"}, {"x-millm-profile": ""}, None),
        ({"model": "cold:8b"}, {}, None),
        ({}, {}, None),
    ],
)
async def test_the_profile_of_a_request(api: Api, fields: dict[str, Any], headers: dict[str, str], label: str | None):
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    response = await api.post("/v1/chat/completions", body, **headers)
    assert response.status_code == 200
    assert profile_of(api) == (f"print-{label.partition('@')[0]}" if label else None)
    assert response.headers.get("x-millm-profile") == label
    assert response.json().get("millm", {}).get("profile") == label
    assert api.log.only.profile == (label or "")


async def test_contradicting_profiles_are_refused(api: Api):
    response = await api.chat(model="tiny:cats", profile=None)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "profile"


@pytest.mark.parametrize(
    ("profile", "status", "code"),
    [
        ("nope", 404, "profile_not_found"),
        ("gloomy@9", 404, "profile_not_found"),
        ("../x", 404, "profile_not_found"),
        ("foreign", 400, "profile_model_mismatch"),
        ("broken", 409, "sae_mismatch"),
        ("old", 404, "profile_archived"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_profile_that_cannot_act_is_never_passed_over(
    api: Api, profile: str, status: int, code: str, stream: bool
):
    response = await api.chat(profile=profile, stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert response.json()["error"]["param"] == "profile"
    assert (response.headers.get("x-should-retry") == "false") == (status == 409)
    assert api.engine.requests == []
    assert api.log.only.error_code == code


@pytest.mark.parametrize(
    ("failure", "code", "retry_after"),
    [
        (EngineDownError("The engine is draining."), "engine_unavailable", "5"),
        (QueueFullError("80 requests wait.", 7.4), "server_is_overloaded", "8"),
        (QueueFullError("80 requests wait.", 10_000), "server_is_overloaded", "120"),
        (ModelNotAttachedError("The model is not loaded."), "model_not_ready", "5"),
    ],
)
async def test_an_engine_that_takes_nothing_is_503(api: Api, failure: Exception, code: str, retry_after: str):
    api.engine.failure = failure
    response = await api.chat()
    assert response.status_code == 503
    assert response["Retry-After"] == retry_after
    assert response.json()["error"] == {"message": str(failure), "type": "server_error", "param": None, "code": code}


async def test_a_model_that_loads_too_long_is_503(api: Api):
    api.registry.failure = ModelNotReadyError("The model tiny is still loading.", 5.0)
    response = await api.chat()
    assert response.status_code == 503
    assert response["Retry-After"] == "5"
    assert response.json()["error"]["code"] == "model_not_ready"


async def test_an_unforeseen_exception_is_a_500_without_internals(api: Api):
    api.registry.failure = ZeroDivisionError("secret internals")
    response = await api.chat()
    assert response.status_code == 500
    error = response.json()["error"]
    assert "secret" not in error["message"]
    assert response["x-request-id"] in error["message"]
    assert api.log.only.status == 500


@pytest.mark.parametrize(
    ("allowed", "fields", "status"),
    [
        ((), {"profile": "gloomy"}, 200),
        (("gloomy",), {"profile": "gloomy@1"}, 200),
        (("gloomy@1",), {"profile": "gloomy@1"}, 200),
        (("gloomy@1",), {"profile": "gloomy"}, 403),
        (("cats",), {"profile": "gloomy"}, 403),
        (("cats",), {"model": "tiny:gloomy"}, 403),
        (("cats",), {"profile": None}, 200),
        (("cats",), {"model": "org/steered"}, 200),
    ],
)
async def test_a_key_may_use_some_profiles(api: Api, allowed: tuple[str, ...], fields: dict[str, Any], status: int):
    response = await api.chat(api.keys.add("key", allowed_profiles=frozenset(allowed)), **fields)
    assert response.status_code == status
    if status == 403:
        error = response.json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("permission_error", "profile_not_allowed", "profile")


@pytest.mark.parametrize(("allowed", "status"), [((), 200), (("tiny",), 200), (("small",), 200), (("other",), 403)])
async def test_a_key_may_use_some_models(api: Api, allowed: tuple[str, ...], status: int):
    response = await api.chat(api.keys.add("key", allowed_models=frozenset(allowed)))
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "model_not_allowed"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, "print-gloomy"), ({"profile": None}, None), ({"profile": "cats"}, "print-cats")],
)
async def test_the_keys_default_profile(api: Api, fields: dict[str, Any], expected: str | None):
    headers = api.keys.add("key", default_profile="gloomy", allowed_profiles=frozenset({"cats"}))
    assert (await api.chat(headers, model="org/steered", **fields)).status_code == 200
    assert profile_of(api) == expected
