"""Azure OpenAI's paths: the routes of /v1, with the model in the URL."""

from __future__ import annotations

from typing import Any

import pytest

from openai_api.http.file_uploads import accepts_files, body_limit
from openai_api.routes import ROUTES
from tests.openai_api.conftest import Api, events_of

VERSION = "?api-version=2024-10-21"
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
DEPLOYED = {
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/images/generations", "/v1/images/edits"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
}


def deployment(name: str, path: str = "chat/completions") -> str:
    return f"/openai/deployments/{name}/{path}{VERSION}"


def test_the_table_says_what_is_deployed() -> None:
    assert {route.path for route in ROUTES if route.is_deployed} == DEPLOYED
    assert {route.method for route in ROUTES if route.is_deployed} == {"POST"}


@pytest.mark.parametrize(
    "path", [deployment("tiny"), "/openai/v1/chat/completions", f"/openai/chat/completions{VERSION}"]
)
async def test_a_chat_is_that_of_v1_in_the_answer_and_in_the_log(api: Api, path: str) -> None:
    response = await api.post(path, {"model": "tiny", **CHAT})
    assert response.status_code == 200, response.content
    assert response.json()["choices"][0]["message"]["content"] == "Hello sea"
    assert response.json()["model"] == "tiny"
    assert (api.log.only.endpoint, api.log.only.model, api.log.only.status) == ("/v1/chat/completions", "tiny", 200)


@pytest.mark.parametrize("name", ["org/steered", "org%2Fsteered", "small", "cold:8b", "tiny:gloomy"])
async def test_a_deployment_is_any_name_of_a_model(api: Api, name: str) -> None:
    response = await api.post(deployment(name), CHAT)
    assert response.status_code == 200, response.content
    assert api.log.only.profile == {
        "tiny:gloomy": "gloomy@2",
        "org/steered": "joyful@2",
        "org%2Fsteered": "joyful@2",
    }.get(name, "")


async def test_the_url_takes_precedence_over_the_body(api: Api) -> None:
    response = await api.post(deployment("tiny"), {"model": "nobody", **CHAT})
    assert (response.status_code, response.json()["model"]) == (200, "tiny")


async def test_a_stream(api: Api) -> None:
    response = await api.post(deployment("tiny"), {**CHAT, "stream": True})
    assert (await events_of(response))[-1] == "data: [DONE]"


async def test_completions_and_embeddings(api: Api) -> None:
    response = await api.post(deployment("tiny", "completions"), {"prompt": "hi"})
    assert response.json()["object"] == "text_completion"
    response = await api.post(deployment("vectors", "embeddings"), {"input": "hi"})
    assert response.json()["data"][0]["object"] == "embedding"


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        (deployment("nobody"), CHAT, 404, "model_not_found", "model"),
        (deployment("tiny:"), CHAT, 404, "model_not_found", "model"),
        (deployment("vectors"), CHAT, 400, "wrong_model_kind", "model"),
        (deployment("tiny"), {}, 400, "missing_required_parameter", "messages"),
        (deployment("tiny"), [], 400, "invalid_json", None),
        (deployment("tiny", "nothing"), CHAT, 404, None, None),
        (deployment("tiny", "responses"), CHAT, 404, None, None),
        ("/openai/deployments//chat/completions", CHAT, 404, None, None),
        ("/openai/nothing", CHAT, 404, None, None),
        ("/openai/v1/deployments/tiny/chat/completions", CHAT, 404, None, None),
        (deployment("x" * 4_000), CHAT, 404, "model_not_found", "model"),
    ],
)
async def test_errors_are_those_of_v1(
    api: Api, path: str, body: Any, status: int, code: str | None, param: str | None
) -> None:
    response = await api.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (status, code, param), error
    assert len(response.content) < 2_000
    assert api.log.only.status == status


async def test_another_method_is_refused_by_name(api: Api) -> None:
    response = await api.client.get(deployment("tiny"))
    assert (response.status_code, response["Allow"]) == (405, "POST")


async def test_keys_scopes_and_limits_are_those_of_v1(api: Api, settings: Any) -> None:
    settings.MILLM_AUTH = "required"
    assert (await api.post(deployment("tiny"), CHAT)).status_code == 401
    api.keys.add("sk-files", scopes=frozenset({"files"}))
    refused = await api.post(deployment("tiny"), CHAT, **{"api-key": "sk-files"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "scope_required")
    api.keys.add("sk-other", allowed_models=frozenset({"vectors"}))
    refused = await api.post(deployment("tiny"), CHAT, **{"api-key": "sk-other"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
    api.keys.add("sk-slow", requests_per_minute=1)
    accepted = await api.post(deployment("tiny"), CHAT, **{"api-key": "sk-slow"})
    assert (accepted.status_code, accepted["x-ratelimit-remaining-requests"]) == (200, "0")
    limited = await api.post("/v1/chat/completions", {"model": "tiny", **CHAT}, **{"api-key": "sk-slow"})
    assert limited.status_code == 429  # one limit for both addresses


@pytest.mark.parametrize("path", ["/openai/models", "/openai/v1/models"])
async def test_models_are_listed(api: Api, path: str) -> None:
    listed = (await api.client.get(f"{path}{VERSION}")).json()
    assert "tiny" in [model["id"] for model in listed["data"]]


@pytest.mark.parametrize("start", ["/openai", "/openai/v1", "/openai/deployments/org/whisper"])
def test_uploads_are_as_large_as_those_of_v1(start: str) -> None:
    assert accepts_files(f"{start}/audio/transcriptions")
    assert body_limit(f"{start}/audio/transcriptions") == body_limit("/v1/audio/transcriptions")
    assert not accepts_files(f"{start}/chat/completions")
