"""Ollama's API over fakes: conversion, lines, names, errors, rights and log rows. tests/clients runs its clients."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from hypothesis import given
from hypothesis import strategies as st

from core.runtime import runtime
from inference.text.dialects.dialect import Dialect
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.dialects.tool_formats import HERMES
from millm_site.http.asgi_handler import ASYNC_PATHS
from openai_api.backend import BACKEND, get_backend
from openai_api.http.file_uploads import accepts_files
from openai_api.ollama.conversion import context_of, read_context
from openai_api.ollama.routes import ROUTES
from openai_api.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest
from openai_api.schemas.chat import ChatRequest
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import CONTEXT, TURN, answering, failing, silent
from tests.openai_api.test_fuzz import ANYTHING, CALM, MESSAGES, bodies
from tests.openai_api.test_openapi import validator
from tests.openai_api.test_tools import CALL, NOW_CALL, TOOLS

HI = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "tiny", "messages": HI}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "hi"}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


async def ask(api: Api, path: str, body: Any, **headers: str) -> Any:
    return await api.post(f"/ollama/api/{path}", body, **headers)


async def whole(api: Api, path: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    response = await ask(api, path, {**body, "stream": False, **fields})
    assert response.status_code == 200, response.content
    found: dict[str, Any] = response.json()
    validator("OllamaChatBody" if path == "chat" else "OllamaGenerateBody").validate(found)
    return found


async def lines_of(response: Any) -> list[dict[str, Any]]:
    assert response.headers["Content-Type"] == "application/x-ndjson"
    parts = [part async for part in response.streaming_content] if response.streaming else [response.content]
    data = b"".join(parts)
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.decode().splitlines()]


async def lines(api: Api, path: str, body: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    found = await lines_of(await ask(api, path, {**body, **fields}))
    for line in found:
        validator("OllamaChatBody" if path == "chat" else "OllamaGenerateBody").validate(line)
    return found


@pytest.fixture
def thinker(api: Api) -> Api:
    """A model that reasons and calls tools."""
    api.registry.text.dialect = Dialect(KNOWN_MARKS[0], HERMES)
    api.registry.context = 500
    api.engine.script = answering("<think>\nHm.\n</think>\n\nYes.")
    return api


class TestChats:
    async def test_streams_by_default(self, api: Api):
        *pieces, last = await lines(api, "chat", CHAT)

        assert "".join(piece["message"]["content"] for piece in pieces) == "Hello sea"
        assert {piece["done"] for piece in pieces} == {False}
        assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
        assert (last["prompt_eval_count"], last["eval_count"]) == (4, 9)
        assert all(type(last[name]) is int and last[name] >= 0 for name in DURATIONS)
        assert (last["prompt_eval_duration"], last["eval_duration"]) == (1_000_000, 1_000_000)
        assert {line["model"] for line in [*pieces, last]} == {"tiny"}
        row = api.log.only
        assert (row.endpoint, row.model, row.status, row.stream) == ("/ollama/api/chat", "tiny", 200, True)
        assert (row.prompt, row.completion, row.completion_tokens) == (HI, "Hello sea", 9)

    async def test_one_body(self, api: Api):
        body = await whole(api, "chat", CHAT)
        assert body["message"] == {"role": "assistant", "content": "Hello sea"}
        assert (body["done"], body["done_reason"], body["eval_count"]) == (True, "stop", 9)
        assert api.log.only.stream is False

    async def test_options_become_ours(self, api: Api):
        options = {"num_predict": 5, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "typical_p": 0.8}
        more = {"seed": 42, "stop": ["x"], "repeat_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4}
        body = await whole(api, "chat", CHAT, options={**options, **more, "repeat_last_n": -1})

        assert body["done_reason"] == "length"
        sampling = api.engine.requests[0].sampling
        assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (5, 0.5, 0.9, 7)
        assert (sampling.min_p, sampling.typical_p, sampling.seed, sampling.stop) == (0.1, 0.8, 42, ("x",))
        assert (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.2, 0.3, 0.4)

    @pytest.mark.parametrize("num_predict", [-2, -1, 0, 10_000])
    async def test_limits_end_where_the_context_does(self, api: Api, num_predict: int):
        await whole(api, "chat", CHAT, options={"num_predict": num_predict})
        assert api.engine.requests[0].sampling.max_tokens == CONTEXT - 4

    async def test_what_means_nothing_special(self, api: Api):
        options = {"seed": -1, "repeat_last_n": 0, "repeat_penalty": 1.5, "mirostat": 0, "tfs_z": 1, "num_predict": 3.0}
        await whole(api, "chat", CHAT, options=options, format="", think=None, tools=[])
        sampling = api.engine.requests[0].sampling
        assert (sampling.seed, sampling.repetition_penalty, sampling.max_tokens) == (None, 1.0, 3)

    async def test_ignored_fields_are_named(self, api: Api):
        options = {"num_ctx": 4096, "num_gpu": 1, "own": 1, "temperature": 0}
        response = await ask(api, "chat", {**CHAT, "stream": False, "keep_alive": "5m", "options": options})
        names = {"keep_alive", "options.num_ctx", "options.num_gpu", "options.own"}
        assert set(response.headers["x-millm-ignored-fields"].split(", ")) == names
        assert set(api.log.only.parameters["ignored"]) == names
        response = await ask(api, "chat", {**CHAT, "stream": False, "messages": [{**HI[0], "own": 1, "name": None}]})
        assert response.headers["x-millm-ignored-fields"] == "messages[].own"

    async def test_an_assistant_s_message_at_the_end_is_continued(self, api: Api):
        await whole(api, "chat", {**CHAT, "messages": [*HI, {"role": "assistant", "content": "Once"}]})
        assert api.registry.text.render_options["continue_final"] is True

    async def test_formats(self, api: Api):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        api.engine.script = answering("{}")
        await whole(api, "chat", CHAT, format="json")
        await whole(api, "chat", CHAT, format=schema)
        kinds = [request.sampling.grammar.kind for request in api.engine.requests if request.sampling.grammar]
        assert kinds == ["json_object", "json_schema"]

    async def test_logprobs(self, api: Api):
        body = await whole(api, "chat", CHAT, logprobs=True, top_logprobs=2, options={"num_predict": 2})
        streamed = await lines(api, "chat", CHAT, logprobs=True, top_logprobs=2, options={"num_predict": 2})
        assert [(one["token"], len(one["top_logprobs"])) for one in body["logprobs"]] == [("H", 2), ("e", 2)]
        assert [one for line in streamed for one in line.get("logprobs", ())] == body["logprobs"]
        bare = await whole(api, "chat", CHAT, logprobs=True, options={"num_predict": 1})
        assert "top_logprobs" not in bare["logprobs"][0]

    async def test_content_type_need_not_be_json(self, api: Api):
        """As with Ollama's own examples of curl."""
        data = json.dumps({**CHAT, "stream": False}).encode()
        for kind in ("application/x-www-form-urlencoded", "text/plain"):
            response = await api.client.post("/ollama/api/chat", data, content_type=kind)
            assert response.json()["message"]["content"] == "Hello sea"

    async def test_pages_of_other_sites_need_a_key(self, api: Api):
        data = json.dumps(CHAT).encode()
        response = await api.client.post(
            "/ollama/api/chat", data, content_type="text/plain", headers={"Origin": "https://evil.example"}
        )
        assert (response.status_code, response.json()["code"]) == (401, "invalid_api_key")


class TestReasoningAndTools:
    async def test_reasoning_is_apart(self, thinker: Api):
        body = await whole(thinker, "chat", CHAT, think=True)
        assert body["message"] == {"role": "assistant", "content": "Yes.", "thinking": "Hm."}
        assert thinker.registry.text.kwargs == {"enable_thinking": True, "thinking": True}
        pieces = await lines(thinker, "chat", CHAT, think=True)
        assert "".join(piece["message"].get("thinking", "") for piece in pieces) == "Hm."
        text = await whole(thinker, "generate", TEXT, think=True)
        assert (text["response"], text["thinking"]) == ("Yes.", "Hm.")

    async def test_reasoning_turned_off(self, thinker: Api):
        await whole(thinker, "chat", CHAT, think=False)
        assert thinker.registry.text.kwargs == {"enable_thinking": False}

    async def test_an_effort_without_effect_is_named(self, thinker: Api):
        response = await ask(thinker, "chat", {**CHAT, "stream": False, "think": "high"})
        assert response.headers["x-millm-ignored-fields"] == "think"

    async def test_a_model_that_cannot(self, api: Api):
        for think in (True, "low"):
            response = await ask(api, "chat", {**CHAT, "think": think})
            assert (response.status_code, response.json()["param"]) == (400, "think")
            assert "does not support thinking" in response.json()["error"]
        assert (await whole(api, "chat", CHAT, think=False))["message"]["content"] == "Hello sea"

    @pytest.mark.parametrize("streams", [False, True])
    async def test_calls_have_objects(self, thinker: Api, streams: bool):
        thinker.engine.script = answering(f"Let me see.\n{CALL}\n{NOW_CALL}")
        found = (
            await lines(thinker, "chat", CHAT, tools=TOOLS, stream=streams)
            if streams
            else [await whole(thinker, "chat", CHAT, tools=TOOLS)]
        )
        calls = [call["function"] for line in found for call in line["message"].get("tool_calls", ())]
        assert calls == [
            {"index": 0, "name": "get_weather", "arguments": {"city": "Rome"}},
            {"index": 1, "name": "now", "arguments": {}},
        ]
        assert "".join(line["message"]["content"] for line in found) == "Let me see."
        assert found[-1]["done_reason"] == "stop"

    async def test_results_belong_to_calls(self, thinker: Api):
        calls = [
            {"function": {"name": "now", "arguments": {}}},
            {"function": {"name": "get_weather", "arguments": {"city": "Rome"}}},
            {"id": "own", "function": {"name": "now"}},
        ]
        chat = [
            *HI,
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
            {"role": "tool", "content": "later", "tool_call_id": "own"},
            {"role": "tool", "content": "noon"},
            {"role": "tool", "content": "?", "tool_name": "other"},
        ]
        await whole(thinker, "chat", {"model": "tiny", "messages": chat}, tools=TOOLS)
        _, asked, *results = thinker.registry.text.rendered
        ids = [call["id"] for call in asked["tool_calls"]]
        assert asked["tool_calls"][1]["function"]["arguments"] == {"city": "Rome"}
        assert [one.get("tool_call_id") for one in results] == [ids[1], "own", ids[0], None]
        assert (results[0]["name"], results[3]["name"]) == ("get_weather", "other")

    async def test_tools_without_a_type(self, thinker: Api):
        await whole(thinker, "chat", CHAT, tools=[{"function": TOOLS[0]["function"]}])
        assert thinker.registry.text.render_options["tools"][0]["type"] == "function"


class TestPrompts:
    async def test_a_prompt_is_a_chat(self, api: Api):
        *pieces, last = await lines(api, "generate", TEXT, system="Be brief.")
        assert "".join(piece["response"] for piece in pieces) == "Hello sea"
        assert [one["role"] for one in api.registry.text.rendered] == ["system", "user"]
        assert api.log.only.prompt == {"system": "Be brief.", "prompt": "hi"}
        assert last["done"] is True

    async def test_a_context_continues_the_conversation(self, api: Api):
        first = await whole(api, "generate", TEXT, system="Be brief.")
        second = await whole(api, "generate", {**TEXT, "prompt": "And é?"}, context=first["context"])
        asked = api.engine.requests[1].prompt_token_ids
        chat = [
            {"role": "system", "content": "Be brief."},
            *HI,
            {"role": "assistant", "content": "Hello sea"},
            {"role": "user", "content": "And é?"},
        ]
        await whole(api, "chat", {"model": "tiny", "messages": chat})
        assert asked == api.engine.requests[2].prompt_token_ids
        assert len(second["context"]) > len(first["context"])
        assert api.log.entries[1].prompt == chat
        assert "context" not in api.log.entries[1].parameters
        await whole(api, "generate", TEXT, context=first["context"], system="Shout.")
        assert api.registry.text.rendered[0]["content"] == "Shout."

    async def test_raw_prompts_are_continued(self, api: Api):
        body = await whole(api, "generate", TEXT, raw=True, format="json", options={"num_predict": -1})
        request = api.engine.requests[0]
        assert bytes(request.prompt_token_ids) == b"hi"
        assert request.sampling.max_tokens == CONTEXT - 2
        assert request.sampling.grammar is not None
        assert body["response"] == "Hello sea"
        assert "context" not in body

    async def test_without_a_prompt_the_model_is_loaded(self, api: Api):
        (line,) = await lines(api, "generate", {"model": "tiny"})
        assert (line["response"], line["done"], line["done_reason"]) == ("", True, "load")
        body = await whole(api, "chat", {"model": "tiny", "messages": []})
        assert (body["message"]["content"], body["done_reason"]) == ("", "load")
        assert api.engine.requests == []
        assert [row.model for row in api.log.entries] == ["tiny", "tiny"]

    @pytest.mark.parametrize("keep_alive", [0, "0", "0s", 0.0])
    async def test_and_unloaded_where_it_is_not_kept(self, api: Api, keep_alive: Any):
        body = await whole(api, "generate", {"model": "tiny:latest", "keep_alive": keep_alive})
        assert (body["done_reason"], api.registry.unloaded) == ("unload", ["tiny"])
        assert "ignored" not in api.log.only.parameters

    async def test_only_keys_that_may_unload(self, api: Api):
        headers = api.keys.add("secret")
        response = await ask(api, "generate", {"model": "tiny", "keep_alive": 0}, **headers)
        assert (response.status_code, response.json()["code"]) == (403, "permission_denied")
        assert api.registry.unloaded == []


class TestEmbeddings:
    async def test_vectors_have_length_1(self, api: Api):
        body = (await ask(api, "embed", {"model": "vectors", "input": ["a", "abc"]})).json()
        validator("OllamaEmbedBody").validate(body)
        assert body["prompt_eval_count"] == 4
        for vector in body["embeddings"]:
            assert sum(value**2 for value in vector) == pytest.approx(1)
        one = (await ask(api, "embed", {"model": "vectors:latest", "input": "a", "dimensions": 2})).json()
        assert len(one["embeddings"][0]) == 2

    async def test_the_older_form(self, api: Api):
        body = (await ask(api, "embeddings", {"model": "vectors", "prompt": "abc"})).json()
        assert body == {"embedding": [3.0, 1.0, 2.0, 3.0]}

    @pytest.mark.parametrize("text", [[], "", None])
    async def test_nothing_to_embed(self, api: Api, text: Any):
        assert (await ask(api, "embed", {"model": "vectors", "input": text})).json()["embeddings"] == []
        assert (await ask(api, "embeddings", {"model": "vectors", "prompt": None})).json() == {"embedding": []}

    async def test_long_texts_are_cut_unless_that_is_refused(self, api: Api):
        body = {"model": "vectors", "input": "x" * (CONTEXT + 50)}
        assert (await ask(api, "embed", body)).json()["prompt_eval_count"] == CONTEXT
        response = await ask(api, "embed", {**body, "truncate": False})
        assert (response.status_code, response.json()["code"]) == (400, "context_length_exceeded")
        api.registry.text.encode = lambda text, **_: [*text.encode(), TURN]  # type: ignore[method-assign]
        await ask(api, "embed", body)
        assert len(api.engine.embedded[-1].prompt_token_ids) == CONTEXT
        assert api.engine.embedded[-1].prompt_token_ids[-1] == TURN

    async def test_a_model_that_writes(self, api: Api):
        response = await ask(api, "embed", {"model": "tiny", "input": "a"})
        assert (response.status_code, response.json()["code"]) == (400, "wrong_model_kind")

    @pytest.mark.parametrize("fields", [{"profile": "gloomy"}, {"options": {"profile": "gloomy"}}])
    async def test_profiles_are_refused(self, api: Api, fields: dict[str, Any]):
        response = await ask(api, "embed", {"model": "vectors", "input": "a", **fields})
        assert (response.status_code, response.json()["code"]) == (400, "unsupported_parameter")


class TestProfiles:
    @pytest.mark.parametrize(
        "fields",
        [
            {"profile": "gloomy"},
            {"options": {"profile": "gloomy"}},
            {"profile": "gloomy", "options": {"profile": "gloomy"}},
            {"model": "tiny:gloomy"},
            {"model": "tiny:gloomy@2"},
            {"model": "small:gloomy:latest"},
        ],
    )
    @pytest.mark.parametrize("path", ["chat", "generate"])
    async def test_every_way_to_name_one(self, api: Api, path: str, fields: dict[str, Any]):
        *_, last = await lines(api, path, CHAT if path == "chat" else TEXT, **fields)
        assert api.engine.requests[0].steering is not None
        assert last["millm"]["profile"] == "gloomy@2"
        assert last["millm"]["steering"]["applied"] == 9
        assert (api.log.only.profile, api.log.only.model) == ("gloomy@2", "tiny")

    async def test_the_header(self, api: Api):
        response = await ask(api, "chat", {**CHAT, "stream": False}, **{"x-millm-profile": "joyful"})
        assert response.headers["x-millm-profile"] == "joyful@2"

    async def test_null_turns_a_default_off(self, api: Api):
        body = {**CHAT, "model": "org/steered:latest"}
        assert (await whole(api, "chat", body))["millm"]["profile"] == "joyful@2"
        assert "millm" not in await whole(api, "chat", body, profile=None)
        assert "millm" not in await whole(api, "chat", body, options={"profile": None})

    async def test_inline_edits(self, api: Api):
        steering = {"features": [{"sae": "s", "index": 1, "strength": 2}]}
        await whole(api, "chat", CHAT, options={"steering": steering, "steering_intensity": 0.5})
        selection = api.steering.selections[-1]
        assert (selection.inline, selection.intensity) == (steering, 0.5)
        assert api.log.only.parameters["options"] == {"steering": steering, "steering_intensity": 0.5}

    async def test_different_ones(self, api: Api):
        response = await ask(api, "chat", {**CHAT, "profile": "gloomy", "options": {"profile": "joyful"}})
        assert (response.status_code, response.json()["param"]) == (400, "profile")
        response = await ask(api, "chat", {**CHAT, "model": "tiny:gloomy", "options": {"profile": "joyful"}})
        assert (response.status_code, response.json()["param"]) == (400, "profile")

    @pytest.mark.parametrize("fields", [{"profil": "gloomy"}, {"options": {"profiles": "gloomy"}}])
    async def test_typos_do_not_drop_the_steering(self, api: Api, fields: dict[str, Any]):
        response = await ask(api, "chat", {**CHAT, **fields})
        assert (response.status_code, response.json()["code"]) == (400, "unknown_parameter")

    async def test_a_profile_called_latest_is_meant(self, api: Api):
        async def published(model: str) -> list[tuple[str, int]]:
            return [("latest", 1)]

        runtime.install(BACKEND, replace(get_backend(), published=published))
        response = await ask(api, "chat", {**CHAT, "model": "tiny:latest"})
        assert (response.status_code, response.json()["code"]) == (404, "profile_not_found"), "not unsteered"
        names = [one["name"] for one in (await api.client.get("/ollama/api/tags")).json()["models"]]
        assert names[0] == "tiny", "the default tag would name the profile"


class TestListing:
    async def test_models_and_their_profiles(self, api: Api):
        api.registry.add(replace(api.registry.records()[0], name="judge", aliases=(), kind="classification"))
        body = (await api.client.get("/ollama/api/tags")).json()
        validator("OllamaTagsBody").validate(body)
        names = [one["name"] for one in body["models"]]
        assert names == [
            *("tiny:latest", "tiny:cats", "tiny:gloomy", "tiny:joyful"),
            *("org/steered:latest", "org/steered:cats", "org/steered:gloomy", "org/steered:joyful"),
            *("cold:8b", "vectors:latest"),
        ]
        assert all(one["model"] == one["name"] and len(one["digest"]) == 64 for one in body["models"])
        assert len({one["digest"] for one in body["models"]}) == len(names)
        for name in names:
            assert (await ask(api, "show", {"model": name})).status_code == 200, name

    @pytest.mark.parametrize(
        ("fields", "names"),
        [
            ({"allowed_models": frozenset({"vectors"})}, ["vectors:latest"]),
            ({"allowed_models": frozenset({"small"})}, ["tiny:latest", "tiny:cats", "tiny:gloomy", "tiny:joyful"]),
            (
                {"allowed_models": frozenset({"tiny"}), "allowed_profiles": frozenset({"gloomy"})},
                ["tiny:latest", "tiny:gloomy"],
            ),
            (
                {"allowed_models": frozenset({"tiny"}), "allowed_profiles": frozenset({"joyful@2", "gloomy@1"})},
                ["tiny:latest", "tiny:gloomy@1", "tiny:joyful@2"],
            ),
            ({"allowed_models": frozenset({"cold:8b"}), "scopes": frozenset({"files"})}, ["cold:8b"]),
        ],
    )
    async def test_only_what_the_key_may_use(self, api: Api, fields: dict[str, Any], names: list[str]):
        headers = api.keys.add("secret", **fields)
        body = (await api.client.get("/ollama/api/tags", headers=headers)).json()
        assert [one["name"] for one in body["models"]] == names

    async def test_loaded_models(self, api: Api):
        body = (await api.client.get("/ollama/api/ps")).json()
        validator("OllamaPsBody").validate(body)
        assert [one["name"] for one in body["models"]] == ["tiny:latest", "org/steered:latest", "vectors:latest"]
        assert body["models"][0]["context_length"] == CONTEXT

    async def test_a_model(self, thinker: Api):
        body = (await ask(thinker, "show", {"name": "tiny:gloomy"})).json()
        validator("OllamaShowBody").validate(body)
        assert body["capabilities"] == ["completion", "tools", "thinking"]
        assert body["model_info"]["millm.context_length"] == 500
        assert body["millm"] == {"profile": "gloomy@2", "state": "loaded"}
        steered = (await ask(thinker, "show", {"model": "org/steered"})).json()
        assert steered["parameters"].split() == ["temperature", "0.5", "num_predict", "7"]
        assert (await ask(thinker, "show", {"model": "cold:8b"})).json()["capabilities"] == ["completion"]
        assert (await ask(thinker, "show", {"model": "vectors"})).json()["capabilities"] == ["embedding"]

    async def test_the_server_is_there(self, api: Api):
        api.keys.failure = AssertionError("nobody asks for keys")
        for path in ("/ollama", "/ollama/"):
            assert (await api.client.get(path)).content == b"Ollama is running"
            assert (await api.client.head(path)).status_code == 200
        refused = await api.client.delete("/ollama/")
        assert (refused.status_code, refused.json()["code"], refused.headers["Allow"]) == (
            405,
            "method_not_allowed",
            "GET, HEAD",
        )
        assert api.log.entries == []

    async def test_the_version(self, api: Api):
        body = (await api.client.get("/ollama/api/version")).json()
        validator("OllamaVersionBody").validate(body)
        assert [int(part) for part in body["version"].split(".")] >= [0, 12, 11], "the first with logprobs"

    def test_every_route_is_served_on_the_event_loop(self):
        assert all(ASYNC_PATHS.match(route.path) for route in ROUTES)


class TestErrors:
    @pytest.mark.parametrize(
        ("path", "fields", "param", "code"),
        [
            ("chat", {"options": {"temperature": 3}}, "options.temperature", "invalid_value"),
            ("chat", {"options": {"num_predict": -3}}, "options.num_predict", "invalid_value"),
            ("chat", {"options": {"num_predict": "5"}}, "options.num_predict", "invalid_type"),
            ("chat", {"options": {"mirostat": 2}}, "options.mirostat", "invalid_value"),
            ("chat", {"options": {"repeat_penalty": 1.3, "repeat_last_n": 64}}, "options.repeat_last_n", None),
            ("chat", {"options": {"repeat_penalty": 0}}, "options.repeat_penalty", "invalid_value"),
            ("chat", {"options": {"seed": 2**64}}, "options.seed", None),
            ("chat", {"options": {"stop": ["x"] * 17}}, "options.stop", "invalid_value"),
            ("chat", {"options": []}, "options", "invalid_type"),
            ("chat", {"messages": "hi"}, "messages", "invalid_type"),
            ("chat", {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role", "invalid_value"),
            ("chat", {"messages": [{**HI[0], "images": ["aGk="]}]}, "messages[0].images", "unsupported_parameter"),
            ("chat", {"messages": [{**HI[0], "content": "x" * 200}]}, "messages", "context_length_exceeded"),
            ("chat", {"tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name", "invalid_value"),
            ("chat", {"tools": ["x"]}, "tools[0]", None),
            ("chat", {"tools": TOOLS}, "tools", "unsupported_parameter"),
            ("chat", {"format": "xml"}, "format", "invalid_value"),
            ("chat", {"format": {"type": "nonsense"}}, "format", "invalid_schema"),
            ("chat", {"think": "very"}, "think", "invalid_value"),
            ("chat", {"top_logprobs": 2}, "top_logprobs", "invalid_value"),
            ("chat", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value"),
            ("chat", {"template": "{{ .Prompt }}"}, "template", "unsupported_parameter"),
            ("chat", {"model": ""}, "model", "model_not_found"),
            ("chat", {"model": None}, "model", "invalid_type"),
            ("chat", {"stream": "no"}, "stream", "invalid_type"),
            ("generate", {"suffix": "}"}, "suffix", "unsupported_parameter"),
            ("generate", {"images": ["aGk="]}, "images", "unsupported_parameter"),
            ("generate", {"template": "x"}, "template", "unsupported_parameter"),
            ("generate", {"raw": True, "system": "x"}, "system", "invalid_value"),
            ("generate", {"raw": True, "logprobs": True, "top_logprobs": 9}, "top_logprobs", "invalid_value"),
            ("generate", {"raw": True, "prompt": "x" * 200}, "options.num_predict", "context_length_exceeded"),
            ("generate", {"prompt": "x" * 200}, "prompt", "context_length_exceeded"),
            ("generate", {"context": [1, 2, 3]}, "context", "invalid_value"),
            ("generate", {"context": [0x6D6C4C, 2**40]}, "context", "invalid_value"),
            ("generate", {"context": [0x6D6C4C, -1]}, "context", "invalid_value"),
            ("embed", {"input": [1, 2]}, "input", "invalid_prompt"),
            ("embed", {"input": "a", "dimensions": 5}, "dimensions", "invalid_value"),
            ("show", {"model": None}, "model", "missing_required_parameter"),
        ],
    )
    async def test_invalid_requests_name_the_field(
        self, api: Api, path: str, fields: dict[str, Any], param: str, code: str | None
    ):
        base: dict[str, Any] = {"chat": CHAT, "generate": TEXT, "embed": {"model": "vectors"}}.get(path, {})
        response = await ask(api, path, {**base, **fields})
        body = response.json()

        validator("OllamaErrorBody").validate(body)
        assert response.status_code in {400, 404}, body
        if code != "context_length_exceeded":  # which names what can be shortened
            assert body["param"] == param, body
        assert code is None or body["code"] == code, body
        assert api.engine.requests == []
        assert api.log.only.error_code == body["code"]
        assert "messages" not in body["error"] or path == "chat"

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"{",
            b"[]",
            b'"hi"',
            b"\xff",
            b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
            b'{"options": {"temperature": NaN}}',
            b'{"a":' * 300 + b"1" + b"}" * 300,
        ],
    )
    async def test_bodies_that_are_no_json(self, api: Api, data: bytes):
        response = await ask(api, "chat", data)
        assert response.status_code == 400
        assert isinstance(response.json()["error"], str)
        assert api.log.only.status == 400

    async def test_compressed_bodies(self, api: Api):
        response = await ask(api, "chat", b"x", **{"Content-Encoding": "gzip"})
        assert (response.status_code, response.json()["code"]) == (415, "unsupported_content_encoding")

    async def test_unknown_models_and_profiles(self, api: Api):
        response = await ask(api, "chat", {**CHAT, "model": "llama3:8b"})
        assert (response.status_code, response.json()["code"]) == (404, "model_not_found")
        assert "llama3:8b" in response.json()["error"]
        for fields in ({"profile": "none"}, {"options": {"profile": "none"}}, {"model": "tiny:none"}):
            response = await ask(api, "chat", {**CHAT, **fields})
            assert (response.status_code, response.json()["code"]) == (404, "profile_not_found")
        response = await ask(api, "generate", {"model": "tiny:none"})
        assert (response.status_code, response.json()["code"]) == (404, "profile_not_found"), "to load it"

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "pull"),
            ("POST", "create"),
            ("POST", "push"),
            ("POST", "copy"),
            ("DELETE", "delete"),
            ("HEAD", "blobs/sha256:00"),
            ("POST", "blobs/sha256:00"),
        ],
    )
    async def test_models_are_managed_elsewhere(self, api: Api, method: str, path: str):
        response = await api.client.generic(method, f"/ollama/api/{path}", b"{}", content_type="application/json")
        assert response.status_code == 400
        assert api.log.only.error_code == "unsupported_endpoint"
        if method != "HEAD":
            assert "add_model" in response.json()["error"]

    async def test_other_paths_and_methods(self, api: Api):
        for path in ("/ollama/api/nothing", "/ollama/v2/models", "/ollama/../admin/", "/ollama/api/chat/x"):
            response = await api.client.get(path)
            assert response.status_code == 404, path
            assert isinstance(response.json()["error"], str)
        response = await api.client.get("/ollama/api/chat")
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")

    async def test_openais_api_is_beside_it_as_with_ollama(self, api: Api):
        response = await api.post("/ollama/v1/chat/completions", {**CHAT, "model": "tiny:gloomy"})
        assert (response.status_code, response.json()["object"]) == (200, "chat.completion")
        assert (api.log.only.endpoint, api.log.only.profile) == ("/v1/chat/completions", "gloomy@2")
        listed = await api.client.get("/ollama/v1/models")
        assert "tiny" in [model["id"] for model in listed.json()["data"]]
        missing = await api.client.get("/ollama/v1/nothing")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "invalid_request_error")
        assert accepts_files("/ollama/v1/files")

    async def test_a_failure_before_the_first_token(self, api: Api):
        api.engine.script = failing("out_of_memory")
        response = await ask(api, "chat", CHAT)
        assert (response.status_code, response.json()["code"]) == (503, "out_of_memory")

    async def test_a_failure_in_the_stream(self, api: Api):
        api.engine.script = failing("out_of_memory", after="He")
        *pieces, last = await lines_of(await ask(api, "chat", CHAT))
        assert [piece["message"]["content"] for piece in pieces] == ["H", "e"]
        assert last["code"] == "out_of_memory"
        assert isinstance(last["error"], str)
        assert api.log.only.error_code == "out_of_memory"

    async def test_a_silent_model_keeps_the_connection_open(self, api: Api):
        api.engine.script = silent
        response = await ask(api, "chat", CHAT)
        first = json.loads(await anext(aiter(response.streaming_content)))
        assert (first["message"]["content"], first["done"]) == ("", False)

    async def test_a_client_that_leaves_ends_the_generation(self, api: Api):
        api.engine.script = silent
        response = await ask(api, "generate", TEXT)
        await anext(aiter(response.streaming_content))
        response.close()
        assert api.engine.streams[0].num_closes >= 1
        assert api.log.only.error_code == "client_disconnected"


class TestKeys:
    @pytest.mark.parametrize(
        ("fields", "body", "status", "code"),
        [
            ({}, {}, 200, None),
            ({"scopes": frozenset({"generate"})}, {}, 200, None),
            ({"scopes": frozenset({"features"})}, {}, 403, "scope_required"),
            ({"allowed_models": frozenset({"vectors"})}, {}, 403, "model_not_allowed"),
            ({"allowed_profiles": frozenset({"cats"})}, {"model": "tiny:gloomy"}, 403, "profile_not_allowed"),
            ({"allowed_profiles": frozenset({"cats"})}, {"options": {"profile": "joyful"}}, 403, "profile_not_allowed"),
            ({}, {"options": {"steering": {}}}, 403, "inline_steering_not_allowed"),
            ({"requests_per_minute": 0}, {}, 429, "rate_limit_exceeded"),
            ({"tokens_per_day": 5}, {}, 429, "insufficient_quota"),
            ({"max_concurrent_requests": 0}, {}, 429, "rate_limit_exceeded"),
        ],
    )
    async def test_rights_and_limits(
        self, api: Api, fields: dict[str, Any], body: dict[str, Any], status: int, code: str | None
    ):
        headers = api.keys.add("secret", **fields)
        response = await ask(api, "chat", {**CHAT, "stream": False, **body}, **headers)
        assert response.status_code == status, response.content
        assert code is None or response.json()["code"] == code
        assert status == 200 or api.engine.requests == []
        assert api.log.only.api_key_id == 1

    async def test_a_default_profile(self, api: Api):
        headers = api.keys.add("secret", default_profile="cats")
        response = await ask(api, "chat", {**CHAT, "stream": False}, **headers)
        assert response.json()["millm"]["profile"] == "cats@2"

    async def test_no_key_and_a_wrong_one(self, api: Api, settings: Any):
        assert (await ask(api, "chat", {**CHAT, "stream": False}, Authorization="Bearer ollama")).status_code == 200
        settings.MILLM_AUTH = "required"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ollama"}):
            response = await ask(api, "chat", CHAT, **headers)
            assert (response.status_code, response.json()["code"]) == (401, "invalid_api_key")
            assert isinstance(response.json()["error"], str)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(TEXTS, TEXTS, st.booleans())
@CALM
def test_a_context_is_the_conversation(prompt: str, answer: str, has_system: bool):
    messages = [{"role": "system", "content": answer}] * has_system + [{"role": "user", "content": prompt}]
    chat = ChatRequest.parse({"model": "m", "messages": messages})
    context = context_of(chat, answer)
    assert all(0 <= number < 2**24 for number in context)
    assert read_context(context) == [*messages, {"role": "assistant", "content": answer}]


PIECES = st.sampled_from(
    ["a", " b", "é", "<think>", "</think>", "\n", "<tool_call>", "</tool_call>", "{", '"', "😀", CALL]
)


@pytest.mark.parametrize("path", ["chat", "generate"])
@given(pieces=st.lists(PIECES, max_size=12))
@CALM
def test_a_stream_s_lines_are_the_whole_answer(thinker: Api, path: str, pieces: list[str]):
    """Whatever the model writes."""
    thinker.engine.script = answering("".join(pieces))
    async_to_sync(_compare)(thinker, path)


async def _compare(api: Api, path: str) -> None:
    fields: dict[str, Any] = {"logprobs": True, **({"tools": TOOLS} if path == "chat" else {})}
    body = CHAT if path == "chat" else TEXT
    streamed, answer = await lines(api, path, body, **fields), await whole(api, path, body, **fields)
    parts = [line["message"] if path == "chat" else line for line in streamed]
    expected = answer["message"] if path == "chat" else answer
    content = "content" if path == "chat" else "response"
    for name in (content, "thinking"):
        assert "".join(part.get(name, "") for part in parts) == expected.get(name, "")
    called = [[call["function"] for call in part.get("tool_calls", ())] for part in (*parts, expected)]
    assert [call for calls in called[:-1] for call in calls] == called[-1]
    logprobs = [one for line in streamed for one in line.get("logprobs", ())]
    assert logprobs == answer.get("logprobs", [])
    same = ("done", "done_reason", "eval_count", "prompt_eval_count", "context")
    assert [streamed[-1].get(name) for name in same] == [answer.get(name) for name in same]


@given(body=bodies(OllamaChatRequest, model=st.just("tiny"), messages=MESSAGES))
@CALM
def test_any_chat_is_answered(api: Api, body: Any):
    async_to_sync(_survive)(api, "chat", body)


@given(body=bodies(OllamaGenerateRequest, model=st.just("tiny"), prompt=st.text(max_size=20) | ANYTHING))
@CALM
def test_any_prompt_is_answered(api: Api, body: Any):
    async_to_sync(_survive)(api, "generate", body)


async def _survive(api: Api, path: str, body: Any) -> None:
    api.log.entries.clear()
    response = await ask(api, path, body)
    if response.streaming or (response.status_code == 200 and body.get("stream") is not False):
        assert "error" not in (await lines_of(response))[-1]
    elif response.status_code != 200:
        assert isinstance(response.json()["error"], str)
    assert response.status_code < 500, response.content
    assert api.log.only.status == response.status_code


def test_durations_as_texts_unload_only_where_they_are_zero():
    for value, unloads in ((0, True), ("0m", True), ("10m", False), (-1, False), ("-1", False), (None, False)):
        assert OllamaChatRequest.parse({"model": "m", "keep_alive": value}).unloads is unloads
