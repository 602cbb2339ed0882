"""Bad input (robustness, rows 1 - 25 and 42 - 44) gets the contract's error, and the next good request is served."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from django.test import RequestFactory

from core.errors import MillmError
from openai_api.http.json_body import read_body
from openai_api.responses.schemas.request import ResponseRequest
from openai_api.schemas.anthropic import MessagesRequest
from openai_api.schemas.base import RequestSchema
from openai_api.schemas.chat import ChatRequest
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.embeddings import EmbeddingsRequest
from tests.openai_api.conftest import Api

HELLO = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
SAME = object()


def raw(**fields: Any) -> bytes:
    return json.dumps({"model": "tiny", "messages": HELLO, **fields}).encode()


async def check(api: Api, response: Any, status: int, code: str | None, param: Any = SAME) -> dict[str, Any]:
    assert response.status_code == status, response.content[:500]
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code, error
    assert param is SAME or error["param"] == param, error
    assert len(response.content) < 4_000
    assert api.engine.requests == []
    entry = api.log.only
    assert (entry.status, entry.error_code, entry.id) == (status, code or error["type"], response["x-request-id"])
    assert (await api.chat()).status_code == 200
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"[]",
        b'"x"',
        b"null",
        b"3",
        b"\xef\xbb\xbf" + raw(),
        raw().decode().encode("utf-16"),
        b"[" * 100_000,
        b'{"a":' * 5_000,
        b'{"model": "tiny", "seed": ' + b"9" * 5_000 + b"}",
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        raw() + b"x",
    ],
    ids=lambda body: repr(body[:12]),
)
async def test_bodies_that_are_no_json_objects(api: Api, body: bytes):
    await check(api, await api.post(CHAT, body), 400, "invalid_json", None)


@pytest.mark.parametrize("text", [b'"\\ud800"', b'"\\udc00x"', b'"\xff\xfe"'])
async def test_text_that_is_no_unicode(api: Api, text: bytes):
    body = raw(user="HERE").replace(b'"HERE"', text)
    await check(api, await api.post(CHAT, body), 400, "invalid_unicode", None)


async def test_the_last_of_duplicate_keys_wins(api: Api):
    body = raw(n=1).replace(b'"n": 1', b'"n": 1, "n": 2')
    response = await api.post(CHAT, body)
    assert len(response.json()["choices"]) == 2
    assert len(api.engine.requests) == 2


@pytest.mark.parametrize(
    "media_type", ["text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonx"]
)
async def test_bodies_that_are_not_declared_as_json(api: Api, media_type: str):
    response = await api.client.post(CHAT, raw(), content_type=media_type)
    await check(api, response, 415, "unsupported_media_type")


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "application/vnd.api+json"])
async def test_bodies_that_are_json(api: Api, media_type: str):
    assert (await api.client.post(CHAT, raw(), content_type=media_type)).status_code == 200


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, gzip"])
async def test_compressed_bodies_are_never_inflated(api: Api, encoding: str):
    response = await api.post(CHAT, b"\x1f\x8b" + b"\0" * 100, **{"Content-Encoding": encoding})
    await check(api, response, 415, "unsupported_content_encoding")


async def test_bodies_over_the_limit(api: Api, settings):
    settings.MILLM_MAX_BODY_BYTES = 1_000
    response = await api.post(CHAT, raw(user="x" * 1_000))
    assert response["Connection"] == "close"
    await check(api, response, 413, "request_too_large")


def test_a_body_that_does_not_say_how_long_it_is(settings):
    settings.MILLM_MAX_BODY_BYTES = 1_000
    for size, is_refused in ((1_000, False), (1_001, True)):
        request = RequestFactory().post(CHAT, b"x" * size, content_type="application/json")
        del request.META["CONTENT_LENGTH"]
        if is_refused:
            with pytest.raises(MillmError, match="larger than 1000 bytes"):
                read_body(request)
        else:
            assert len(read_body(request)) == size


VALUES: list[tuple[str, Any, str]] = [
    ("temperature", -1, "invalid_value"),
    ("temperature", 2.1, "invalid_value"),
    ("temperature", "0.7", "invalid_type"),
    ("temperature", True, "invalid_type"),
    ("temperature", [], "invalid_type"),
    ("top_p", 0, "invalid_value"),
    ("top_p", 1.1, "invalid_value"),
    ("min_p", 2, "invalid_value"),
    ("typical_p", 0, "invalid_value"),
    ("typical_p", 1.1, "invalid_value"),
    ("min_tokens", -1, "invalid_value"),
    ("min_tokens", 101, "invalid_value"),
    ("min_tokens", 1.5, "invalid_type"),
    ("bad_words", "x", "invalid_type"),
    ("bad_words", ["x"] * 65, "invalid_value"),
    ("allowed_token_ids", [], "invalid_value"),
    ("allowed_token_ids", [258], "invalid_value"),
    ("prompt_logprobs", 21, "invalid_value"),
    ("prompt_logprobs", -1, "invalid_value"),
    ("skip_special_tokens", 1, "invalid_type"),
    ("include_stop_str_in_output", "yes", "invalid_type"),
    ("min_p", -0.1, "invalid_value"),
    ("top_k", -5, "invalid_value"),
    ("top_k", 2**40, "invalid_value"),
    ("top_k", 1.5, "invalid_type"),
    ("n", 10**9, "invalid_value"),
    ("n", 129, "invalid_value"),
    ("n", 1.5, "invalid_type"),
    ("n", 1e300, "invalid_value"),
    ("n", True, "invalid_type"),
    ("verbosity", "loud", "invalid_value"),
    ("verbosity", 1, "invalid_value"),
    ("reasoning_effort", "maximal", "invalid_value"),
    ("n", 0, "invalid_value"),
    ("n", "2", "invalid_type"),
    ("max_tokens", 10**12, "invalid_value"),
    ("max_tokens", 0, "invalid_value"),
    ("max_tokens", -1, "invalid_value"),
    ("max_tokens", 1.5, "invalid_type"),
    ("max_completion_tokens", 0, "invalid_value"),
    ("top_logprobs", 10**6, "invalid_value"),
    ("top_logprobs", 21, "invalid_value"),
    ("top_logprobs", 2, "invalid_value"),
    ("logprobs", 2, "invalid_type"),
    ("logit_bias", {"258": 1}, "invalid_value"),
    ("logit_bias", [1], "invalid_type"),
    ("logit_bias", {str(token): 1 for token in range(1025)}, "invalid_value"),
    ("presence_penalty", 1e308, "invalid_value"),
    ("frequency_penalty", -2.1, "invalid_value"),
    ("repetition_penalty", 0, "invalid_value"),
    ("repetition_penalty", 1e-300, "invalid_value"),
    ("seed", 2**64, "invalid_value"),
    ("seed", 2**63, "invalid_value"),
    ("seed", 0.5, "invalid_type"),
    ("stop", ["x"] * 1000, "invalid_value"),
    ("stop", 3, "invalid_type"),
    ("stop", {}, "invalid_type"),
    ("stop_token_ids", [258], "invalid_value"),
    ("stop_token_ids", [-1], "invalid_value"),
    ("messages", [], "invalid_value"),
    ("messages", None, "invalid_type"),
    ("messages", "hi", "invalid_type"),
    ("messages", HELLO * 10_000, "invalid_value"),
    ("stream", "yes", "invalid_type"),
    ("stream_options", {"include_usage": True}, "invalid_value"),
    ("profile", 3, "invalid_type"),
    ("profile", "", "invalid_value"),
    ("model", 3, "invalid_type"),
    ("model", None, "invalid_type"),
    ("user", {}, "invalid_type"),
    ("store", "yes", "invalid_type"),
]


@pytest.mark.parametrize(("field", "value", "code"), VALUES, ids=lambda value: repr(value)[:40])
async def test_bad_values_are_named(api: Api, field: str, value: Any, code: str):
    error = await check(api, await api.chat(**{field: value}), 400, code)
    assert (error["param"] or "").startswith(field)
    assert field in error["message"]


@pytest.mark.parametrize("value", [b"1e999", b"-1e999"])
async def test_infinity_in_disguise(api: Api, value: bytes):
    body = raw(temperature="HERE").replace(b'"HERE"', value)
    await check(api, await api.post(CHAT, body), 400, "invalid_value", "temperature")


NESTED: list[tuple[Any, str, str]] = [
    ({"stop": ["a", ""]}, "stop[1]", "invalid_value"),
    ({"bad_words": ["a", ""]}, "bad_words[1]", "invalid_value"),
    ({"bad_words": ["a", "  "]}, "bad_words[1]", "invalid_value"),
    ({"bad_words": ["x" * 201]}, "bad_words[0]", "invalid_value"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens", "invalid_value"),
    ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "invalid_value"),
    ({"stop": ["x" * 1025]}, "stop[0]", "invalid_value"),
    ({"stop": ["a", 1]}, "stop[1]", "invalid_type"),
    ({"logit_bias": {"abc": 1}}, "logit_bias.abc", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "invalid_value"),
    ({"logit_bias": {"5": 1e30}}, "logit_bias.5", "invalid_value"),
    ({"logit_bias": {"5": None}}, "logit_bias.5", "invalid_type"),
    ({"messages": [{"role": "root", "content": ""}]}, "messages[0]", "invalid_value"),
    ({"messages": [{"content": ""}]}, "messages[0]", "invalid_value"),
    ({"messages": [3]}, "messages[0]", "invalid_value"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content", "invalid_value"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0]", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "missing_required_parameter"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name", "missing_required_parameter"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "invalid_value"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]},
        "messages[0].content[0]",
        "unsupported_parameter",
    ),
    ({"chat_template_kwargs": {"documents": []}}, "chat_template_kwargs.documents", "unsupported_parameter"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), NESTED, ids=lambda value: repr(value)[:50])
async def test_bad_parts_are_located(api: Api, fields: dict[str, Any], param: str, code: str):
    await check(api, await api.chat(**fields), 400, code, param)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("functions", [{"name": "f"}]),
        ("function_call", "auto"),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {}),
        ("chat_template", "{{ 1 }}"),
        ("length_penalty", 5),
        ("use_beam_search", True),
        ("echo", True),
        ("best_of", 2),
    ],
)
async def test_what_would_change_the_output_is_refused_by_name(api: Api, field: str, value: Any):
    error = await check(api, await api.chat(**{field: value}), 400, "unsupported_parameter", field)
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", []),
        ("tools", None),
        ("tool_choice", "none"),
        ("modalities", ["text"]),
        ("steering", None),
        ("steering_intensity", None),
        ("mirostat", 0),
        ("early_stopping", False),
    ],
)
async def test_harmless_values_of_refused_fields_pass(api: Api, field: str, value: Any):
    response = await api.chat(**{field: value})
    assert response.status_code == 200
    assert "x-millm-ignored-fields" not in response.headers


async def test_harmless_means_the_same_type_too(api: Api):
    await check(api, await api.chat(mirostat=False), 400, "unsupported_parameter", "mirostat")


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [[]],
        [True],
        [1.5],
        [-1],
        [258],
        [[1], [258]],
        ["a", 1],
        [["a"]],
        [[[1]]],
        None,
        {},
        3,
        "",
        ["a", ""],
        [10**30],
    ],
    ids=repr,
)
async def test_bad_prompts(api: Api, prompt: Any):
    error = await check(api, await api.complete(prompt=prompt), 400, "invalid_prompt")
    assert error["param"].startswith("prompt")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": ["x"] * 10_000}, "prompt", "invalid_prompt"),
        ({"prompt": ["x"] * 2_000, "n": 16}, "prompt", "invalid_value"),
        ({"best_of": 1, "n": 2}, "best_of", "invalid_value"),
        ({"best_of": 17}, "best_of", "invalid_value"),
        ({"best_of": 2, "stream": True}, "best_of", "invalid_value"),
        ({"logprobs": 6}, "logprobs", "invalid_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"echo": 1}, "echo", "invalid_type"),
    ],
    ids=repr,
)
async def test_bad_completion_fields(api: Api, fields: dict[str, Any], param: str, code: str):
    await check(api, await api.complete(**fields), 400, code, param)


async def test_the_prompt_must_be_there(api: Api):
    await check(api, await api.post(TEXT, {"model": "tiny"}), 400, "missing_required_parameter", "prompt")


async def test_prompt_and_completion_must_fit_the_context(api: Api):
    error = await check(api, await api.complete(prompt="x" * 60, max_tokens=41), 400, "context_length_exceeded")
    assert "100 tokens" in error["message"]
    assert "101" in error["message"]
    assert error["param"] == "max_tokens"


async def test_a_prompt_that_fills_the_context(api: Api):
    response = await api.chat(messages=[{"role": "user", "content": "x" * 98}])
    await check(api, response, 400, "context_length_exceeded")


async def test_a_huge_word_is_refused_by_its_length(api: Api):
    response = await api.complete(prompt="x" * 1_000_000)
    await check(api, response, 400, "context_length_exceeded", "prompt")


async def test_a_huge_message_is_refused_by_its_length(api: Api):
    response = await api.chat(messages=[{"role": "user", "content": "x" * 1_000_000}])
    await check(api, response, 400, "context_length_exceeded", "messages")


@pytest.mark.parametrize(("length", "is_off_loop"), [(50, False), (50_000, True)])
async def test_long_prompts_are_encoded_off_the_loop(api: Api, length: int, is_off_loop: bool):
    text = "x" * length
    await api.complete(prompt=text, max_tokens=1)
    await api.chat(messages=[{"role": "user", "content": text}], max_tokens=1)
    here = threading.get_ident()
    assert [thread != here for thread in api.registry.text.threads] == [is_off_loop] * 2


@pytest.mark.parametrize(
    "model",
    ["nope", "", "x" * 1_000_000, "../../etc/passwd", "https://huggingface.co/gpt2", "nope:gloomy", ":", "a\0b"],
)
async def test_unknown_models(api: Api, model: str):
    await check(api, await api.chat(model=model), 404, "model_not_found", "model")


@pytest.mark.parametrize("path", ["/v1/", "/v1/nothing", "/v1/responses/../../x", "/v1/" + "x" * 10_000])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_unknown_urls(api: Api, path: str, method: str):
    response = await api.client.generic(method, path, b"{}", content_type="application/json")
    await check(api, response, 404, None, None)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", CHAT, "GET, POST"),
        ("PUT", TEXT, "POST"),
        ("POST", "/v1/models", "GET"),
        ("PATCH", "/v1/models/tiny", "DELETE, GET"),
        ("OPTIONS", CHAT, "GET, POST"),
    ],
)
async def test_wrong_methods(api: Api, method: str, path: str, allowed: str):
    response = await api.client.generic(method, path)
    assert response["Allow"] == allowed
    await check(api, response, 405, "method_not_allowed", None)


async def test_at_most_ten_problems_are_listed_each_cut(api: Api):
    messages = [{"role": "user", "content": 7, "name": "x" * 5_000}] * 200
    response = await api.chat(messages=messages)
    error = await check(api, response, 400, "invalid_type", "messages[0].content")
    assert "390 more problems." in error["message"]


async def test_refused_requests_are_logged_with_what_they_said(api: Api):
    await api.chat(model="nope", user="ann", stream=True)
    entry = api.log.only
    assert (entry.model, entry.user, entry.stream) == ("nope", "ann", True)
    assert entry.prompt == HELLO
    assert entry.error_message.startswith("The model `nope`")


HUGE_FORMS: list[Any] = [10**300, -(10**300), [10**300], {"a": 10**300}, [{"type": "text", "text": 10**300}]]
WHOLE: dict[str, tuple[type[RequestSchema], dict[str, Any]]] = {
    CHAT: (ChatRequest, {"model": "tiny", "messages": HELLO}),
    TEXT: (CompletionRequest, {"model": "tiny", "prompt": "hi"}),
    "/v1/responses": (ResponseRequest, {"model": "tiny", "input": "hi", "store": False}),
    "/v1/messages": (MessagesRequest, {"model": "tiny", "messages": HELLO, "max_tokens": 5}),
    "/v1/embeddings": (EmbeddingsRequest, {"model": "vectors", "input": "hi"}),
}


@pytest.mark.parametrize("path", WHOLE)
async def test_a_huge_integer_is_a_server_error_in_no_field(api: Api, path: str):
    schema, body = WHOLE[path]
    for name in [*schema.model_fields, *schema.REFUSED, "unheard_of"]:
        for value in HUGE_FORMS:
            response = await api.post(path, {**body, name: value})
            assert response.status_code < 500, (name, value, response.content)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 3}, "`temperature` must be at most 2, got 3."),
        ({"top_p": 0}, "`top_p` must be greater than 0, got 0."),
        ({"temperature": "hot"}, "`temperature` must be a number, got `hot`."),
        ({"n": 1.5}, "`n` must be an integer, got 1.5."),
        ({"stream": "yes"}, "`stream` must be true or false, got `yes`."),
        ({"model": 3}, "`model` must be a string, got 3."),
        ({"messages": "hi"}, "`messages` must be an array, got `hi`."),
        ({"messages": []}, "`messages` must not be empty."),
        ({"messages": None}, "`messages` must be an array, got null."),
        ({"stop": ["a"] * 20}, "`stop` must have at most 16 items, got 20."),
        ({"user": "a" * 513}, "`user` must have at most 512 characters, got 513."),
        ({"stop": ""}, "`stop[0]` must not be empty."),
        ({"messages": [{"role": "user"}]}, "`messages[0].content` is required."),
        ({"chat_template_kwargs": {"a": 1}}, "`chat_template_kwargs.a` is not supported."),
        ({"logit_bias": {"x": 1}}, "`logit_bias.x` must match the pattern `^[0-9]{1,9}$`, got `x`."),
        ({"mirostat": 2}, "`mirostat` is not supported. Remove it."),
        ({"functions": [{}]}, "`functions` is not supported. Use `tools` instead."),
        ({"profil": "gloomy"}, "Unknown parameter `profil`. Did you mean `profile`?"),
        ({"tools": [{"type": "zzz"}]}, "`tools[0]` has the unsupported type `zzz`. Supported: function."),
    ],
)
async def test_messages_name_the_field_the_rule_and_the_value(api: Api, fields: dict[str, Any], message: str):
    response = await api.post(CHAT, raw(**fields))
    assert response.json()["error"]["message"] == message


@pytest.mark.parametrize(
    ("turn", "message"),
    [
        (
            {"role": "x", "content": "a"},
            "`messages[0]` has the unsupported `role` `x`. Supported: `user`, `assistant`, `system`.",
        ),
        ({"content": "a"}, "`messages[0]` must have `role`."),
    ],
)
def test_messages_name_the_known_kinds_of_an_object(turn: dict[str, Any], message: str):
    with pytest.raises(MillmError) as caught:
        MessagesRequest.parse({"model": "tiny", "max_tokens": 1, "messages": [turn]})
    assert caught.value.message == message
