"""Bad requests: each is refused by its field's name, the engine never hears of it, and the next one is answered."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import MillmError
from openai_api.responses.schemas.request import ResponseRequest
from tests.openai_api.conftest import Api
from tests.openai_api.responses.test_create import create

MESSAGE = {"role": "user", "content": "hi"}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": ""}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "missing_required_parameter"),
    ({"input": 3}, "input", "invalid_type"),
    ({"input": [3]}, "input[0]", "invalid_type"),
    ({"input": [[]]}, "input[0]", "invalid_type"),
    ({"input": [{"type": 3}]}, "input[0]", "invalid_value"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]", "unsupported_parameter"),
    ({"input": [{"role": "root", "content": "x"}]}, "input[0].role", "invalid_value"),
    ({"input": [{"role": "user"}]}, "input[0].content", "missing_required_parameter"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content", "invalid_type"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0]",
        "unsupported_parameter",
    ),
    (
        {"input": [MESSAGE, {"type": "function_call", "name": "f", "arguments": "{}"}]},
        "input[1].call_id",
        "missing_required_parameter",
    ),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": 3}]}, "input[0].output", "invalid_type"),
    ({"input": [MESSAGE] * 2049}, "input", "invalid_value"),
    ({"model": None}, "model", "invalid_type"),
    ({"model": 3}, "model", "invalid_type"),
    ({"instructions": 3}, "instructions", "invalid_type"),
    ({"temperature": "0.7"}, "temperature", "invalid_type"),
    ({"temperature": 9}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 10**12}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 99}, "max_output_tokens", "context_length_exceeded"),
    ({"input": "x" * 300}, "max_output_tokens", "context_length_exceeded"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
    ({"include": ["everything"]}, "include[0]", "invalid_value"),
    ({"metadata": {"a": 3}}, "metadata.a", "invalid_type"),
    ({"metadata": {str(number): "" for number in range(17)}}, "metadata", "invalid_value"),
    ({"store": "yes"}, "store", "invalid_type"),
    ({"background": True, "store": False}, "store", "invalid_value"),
    ({"previous_response_id": "resp_1", "conversation": "conv_1"}, "previous_response_id", "invalid_value"),
    ({"previous_response_id": "x" * 10_000}, "previous_response_id", "invalid_value"),
    ({"conversation": {"id": 3}}, "conversation", "invalid_type"),
    ({"truncation": "some"}, "truncation", "invalid_value"),
    ({"text": {"format": {"type": "yaml"}}}, "text.format", "invalid_value"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
    (
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"$ref": "http://x"}}}},
        "text.format.schema",
        "invalid_schema",
    ),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0]", "unsupported_parameter"),
    ({"tools": [{"type": "zzz", "name": "x"}]}, "tools[0]", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
    ({"tools": [{"type": "function", "name": "../x"}]}, "tools[0].name", "invalid_value"),
    ({"tools": [{"type": "web_search"}] * 129}, "tools", "invalid_value"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice", "unsupported_parameter"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"n": 2}, "n", "unsupported_parameter"),
    ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
    ({"max_completion_tokens": 5}, "max_completion_tokens", "unsupported_parameter"),
    ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
    ({"messages": [MESSAGE]}, "messages", "unsupported_parameter"),
    ({"logprobs": True}, "logprobs", "unsupported_parameter"),
    ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_parameter"),
    ({"return_activations": True}, "return_activations", "unsupported_parameter"),
    ({"guided_json": {"not": {}}}, "guided_json", "invalid_schema"),
    ({"guided_regex": "a", "text": {"format": {"type": "json_object"}}}, "guided_regex", "invalid_value"),
    ({"reasoning_budget": "none"}, "reasoning_budget", "invalid_type"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x", "unsupported_parameter"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
    ({"input": [{"type": "compaction", "encrypted_content": "aaaa"}]}, "input[0].encrypted_content", "invalid_value"),
    ({"input": [{"type": "compaction", "encrypted_content": "e30="}]}, "input[0].encrypted_content", "invalid_value"),
    ({"logit_bias": {"258": 1}}, "logit_bias", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD)
async def test_bad_fields_are_named(api: Api, fields: dict[str, Any], param: str, code: str):
    response = await create(api, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert len(response.content) < 4_000
    assert api.engine.requests == []
    assert api.log.only.error_code == code
    assert (await create(api, store=False)).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "responses/resp_nobody",
        "responses/" + "x" * 10_000,
        "responses/%00",
        "responses/..%2f..%2fx",
        "responses/resp_nobody/input_items",
        "conversations/conv_nobody",
        "conversations/%00/items",
        "conversations/conv_nobody/items/x",
    ],
)
async def test_unknown_ids_are_not_found(stored: Api, path: str):
    response = await stored.client.get(f"/v1/{path}")
    assert response.status_code == 404
    assert len(response.content) < 1_000


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("limit=" + "9" * 5_000, "limit"),
        ("order=up", "order"),
        ("after=nobody", "after"),
    ],
)
async def test_bad_pages_are_named(stored: Api, query: str, param: str):
    made = (await create(stored)).json()
    response = await stored.client.get(f"/v1/responses/{made['id']}/input_items?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("stream=maybe", "stream"),
        ("stream=true&starting_after=-1", "starting_after"),
        ("starting_after=x", "starting_after"),
    ],
)
async def test_bad_queries_of_a_stream_are_named(stored: Api, query: str, param: str):
    made = (await create(stored)).json()
    response = await stored.client.get(f"/v1/responses/{made['id']}?{query}")
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_a_place_to_start_after_means_nothing_without_a_stream(stored: Api):
    made = (await create(stored)).json()
    response = await stored.client.get(f"/v1/responses/{made['id']}?starting_after=1")
    assert (response.status_code, response.json()["id"]) == (200, made["id"])


async def test_conversations_take_twenty_items_at_once(stored: Api):
    for body, param in (
        ({"items": [MESSAGE] * 21}, "items"),
        ({"items": [3]}, "items[0]"),
        ({"metadata": 3}, "metadata"),
    ):
        response = await stored.post("/v1/conversations", body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.sampled_from(["message", "function_call", "reasoning", "item_reference", "user", "x"])
        for name in ("type", "role", "content", "id", "call_id", "name", "arguments", "output", "summary")
    },
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    fields=st.dictionaries(st.sampled_from(sorted(ResponseRequest.model_fields)), JSON, max_size=4),
    items=st.lists(ITEM, max_size=3),
)
def test_any_json_is_read_or_refused(fields: dict[str, Any], items: list[dict[str, Any]]):
    """Nothing else is raised, also where the names of ignored fields are gathered."""
    body = {"model": "tiny", "input": items, **fields}
    with suppress(MillmError):
        ResponseRequest.parse(body)
        ResponseRequest.ignored_in(body)
