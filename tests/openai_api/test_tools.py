"""Tools in chat completions: what reaches the template and the engine, and what becomes of the model's calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import TypeAdapter

from inference.client import FinishedEvent, TokensEvent
from inference.text.dialects.dialect import Dialect
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.dialects.tool_formats import HERMES, MISTRAL
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import answering, finished

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
HUGE = 10**300  # beyond what the compiler of grammars can read
ARGUMENTS = '{"city": "Rome"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "now"}}
ALLOWED: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}


@pytest.fixture
def caller(api: Api) -> Api:
    """A model that was taught to call."""
    api.registry.text.dialect = Dialect(KNOWN_MARKS[0], HERMES)
    api.registry.context = 500
    api.engine.script = answering(f"Let me see.\n{CALL}\n{NOW_CALL}")
    return api


def strict(response: Any) -> Any:
    assert response.status_code == 200, response.content
    return TypeAdapter(ChatCompletion).validate_json(response.content, strict=True)


async def stream(api: Api, **fields: Any) -> list[dict[str, Any]]:
    *chunks, done = await chunks_of(await api.chat(stream=True, **fields))
    assert done == "[DONE]"
    for chunk in chunks:
        TypeAdapter(ChatCompletionChunk).validate_json(json.dumps(chunk), strict=True)
    return chunks


async def test_calls_are_told_from_content(caller: Api):
    (choice,) = strict(await caller.chat(tools=TOOLS)).choices
    assert choice.message.content == "Let me see."
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls
    assert [(c.type, c.function.name, c.function.arguments) for c in calls] == [
        ("function", "get_weather", ARGUMENTS),
        ("function", "now", "{}"),
    ]
    assert len({c.id for c in calls}) == 2


async def test_calls_alone_have_null_content(caller: Api):
    caller.engine.script = answering(CALL)
    message = strict(await caller.chat(tools=TOOLS)).choices[0].message
    assert message.content is None
    assert len(message.tool_calls) == 1


async def test_calls_stream_as_deltas(caller: Api):
    deltas = [chunk["choices"][0]["delta"] for chunk in await stream(caller, tools=TOOLS)]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    named = [call for call in calls if "id" in call]
    assert [(call["index"], call["function"]["name"]) for call in named] == [(0, "get_weather"), (1, "now")]
    for index, arguments in enumerate((ARGUMENTS, "{}")):
        pieces = [call["function"]["arguments"] for call in calls if call["index"] == index]
        assert pieces[0] == ""
        assert "".join(pieces) == arguments
        assert len(pieces) == len(arguments) + 1, "they come while the model writes, here a byte at a time"
    assert all(call.keys() <= {"index", "function"} for call in calls if "id" not in call)
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me see."


async def test_choices_are_read_apart(caller: Api):
    completion = strict(await caller.chat(tools=TOOLS, n=3))
    ids = {call.id for choice in completion.choices for call in choice.message.tool_calls}
    assert len(ids) == 6


async def test_tools_reach_the_template_without_what_is_the_servers(caller: Api):
    strict_tool = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    await caller.chat(tools=[strict_tool, NOW])
    shown = caller.registry.text.render_options["tools"]
    assert shown[0] == WEATHER
    assert shown[1]["function"] == {"name": "now", "parameters": {"type": "object", "properties": {}}}


async def test_without_tools_marks_are_content(caller: Api):
    wishes: list[dict[str, Any]] = [{}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}]
    for fields in wishes:
        choice = strict(await caller.chat(**fields)).choices[0]
        assert choice.message.content == f"Let me see.\n{CALL}\n{NOW_CALL}"
        assert choice.message.tool_calls is None
        assert choice.finish_reason == "stop"
        assert caller.registry.text.render_options["tools"] is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tool_choice": "auto"}, "tool_calls"),
        ({"tool_choice": "required"}, "tool_calls"),
        ({"tool_choice": NAMED}, "stop"),
        ({"tool_choice": ALLOWED}, "tool_calls"),
        ({"max_tokens": 60}, "length"),
    ],
)
async def test_finish_reasons(caller: Api, fields: dict[str, Any], reason: str):
    assert strict(await caller.chat(tools=TOOLS, **fields)).choices[0].finish_reason == reason
    chunks = await stream(caller, tools=TOOLS, **fields)
    assert chunks[-1]["choices"][0]["finish_reason"] == reason


async def test_auto_needs_no_grammar(caller: Api):
    await caller.chat(tools=TOOLS)
    assert caller.engine.requests[0].sampling.grammar is None


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": NAMED},
        {"tool_choice": ALLOWED},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {**WEATHER["function"], "strict": True}}]},
    ],
)
async def test_promises_are_kept_by_a_grammar(caller: Api, fields: dict[str, Any]):
    strict(await caller.chat(**{"tools": TOOLS, **fields}))
    grammar = caller.engine.requests[0].sampling.grammar
    assert grammar is not None
    assert grammar.kind == "composed"


async def test_one_call_at_most_where_they_are_not_parallel(caller: Api):
    message = strict(await caller.chat(tools=TOOLS, parallel_tool_calls=False)).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["get_weather"]


async def test_broken_arguments_are_passed_on_as_they_are(caller: Api):
    caller.engine.script = answering('<tool_call>{"name": "now", "arguments": {"a": [}}}</tool_call>')
    choice = strict(await caller.chat(tools=TOOLS)).choices[0]
    assert choice.message.tool_calls[0].function.arguments == '{"a": [}}}'
    assert choice.finish_reason == "tool_calls"


async def test_text_that_only_looks_like_a_call_is_not_lost(caller: Api):
    caller.engine.script = answering("a <tool_ca")
    chunks = await stream(caller, tools=TOOLS)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "a <tool_ca"
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_logprobs_of_all_tokens_are_there(caller: Api):
    completion = strict(await caller.chat(tools=TOOLS, logprobs=True))
    written = "".join(token.token for token in completion.choices[0].logprobs.content)
    assert written == f"Let me see.\n{CALL}\n{NOW_CALL}"


async def test_mistrals_ids_are_made_short(api: Api):
    api.registry.text.dialect = Dialect(None, MISTRAL)
    call = {"id": "call_of_another_server", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "tool_calls": [call, {**call, "id": "abcdefghi"}]},
        {"role": "tool", "tool_call_id": "call_of_another_server", "content": "12"},
    ]
    assert (await api.chat(messages=messages, tools=TOOLS)).status_code == 200
    rendered = api.registry.text.rendered
    first, second = (one["id"] for one in rendered[1]["tool_calls"])
    assert (len(first), second) == (9, "abcdefghi")
    assert rendered[2] == {"role": "tool", "content": "12", "tool_call_id": first, "name": "now"}


async def test_models_without_a_notation_refuse_tools(api: Api):
    error = (await api.chat(tools=TOOLS)).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "tools")


FUNCTION = {"type": "function", "function": {"name": "f"}}
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [FUNCTION] * 10_000}, "tools", "invalid_value"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].function.name", "invalid_value"),
    *(
        ({"tools": [{"type": "function", "function": {"name": name}}]}, "tools[0].function.name", "invalid_value")
        for name in ("two words", "../x", "", "x" * 65, "é", "f\n", "a\0")
    ),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"tools": [{"type": "zzz", "function": {"name": "f"}}]}, "tools[0]", "unsupported_parameter"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "missing_required_parameter"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]", "unsupported_parameter"),
    ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type", "missing_required_parameter"),
    ({"tools": "f"}, "tools", "invalid_type"),
    ({"tools": [5]}, "tools[0]", "invalid_type"),
    (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]},
        "tools[0].function.parameters",
        "invalid_type",
    ),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": "auto"}, "tool_choice", "invalid_value"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice", "invalid_value"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice", "invalid_value"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "absent"}}},
        "tool_choice.function.name",
        "invalid_value",
    ),
    (
        {"tools": TOOLS, "tool_choice": {**ALLOWED, "allowed_tools": {"mode": "auto", "tools": [FUNCTION]}}},
        "tool_choice.allowed_tools.tools[0].function.name",
        "invalid_value",
    ),
    (
        {"tools": TOOLS, "tool_choice": {**ALLOWED, "allowed_tools": {"mode": "auto", "tools": []}}},
        "tool_choice.allowed_tools.tools",
        "invalid_value",
    ),
    ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type"),
    ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
    ({"function_call": "auto"}, "function_call", "unsupported_parameter"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD, ids=lambda value: repr(value)[:60])
async def test_bad_tools_are_refused_by_name(caller: Api, fields: dict[str, Any], param: str, code: str):
    response = await caller.chat(**fields)
    assert response.status_code == 400, response.content
    error = response.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert len(error["message"]) < 4_000
    assert caller.engine.requests == []


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "object", "properties": {"a": {"not": {}}}}, "tools[1].function.parameters"),
        ({"type": "object", "properties": {"a": {"$ref": "http://localhost/x"}}}, "tools[1].function.parameters"),
        ({"type": "object", "properties": {"a": {"enum": list(range(2_000))}}}, "tools[1].function.parameters"),
        ({"type": "object", "title": "x" * 70_000}, "tools[1].function.parameters"),
        ({"type": "object", "properties": {"a": {"const": HUGE}}}, "tools[1].function.parameters"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}, "tools"),
        ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, "tools"),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_schemas_of_strict_tools_are_enforced_or_refused(caller: Api, schema: dict[str, Any], param: str):
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}
    error = (await caller.chat(tools=[NOW, tool])).json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_schema")
    assert caller.engine.requests == []


async def test_a_huge_integer_in_a_strict_tool_s_schema_is_located(caller: Api):
    parameters = {"type": "object", "properties": {"a": {"type": "integer", "maximum": HUGE}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
    error = (await caller.chat(tools=[tool])).json()["error"]
    assert "#/properties/a/maximum" in error["message"]


async def test_schemas_of_other_tools_are_advice(caller: Api):
    extras: list[dict[str, Any]] = [{"if": {}}, {"maxProperties": HUGE}, {"default": HUGE}]
    for extra in extras:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", **extra}}}
        assert (await caller.chat(tools=[tool])).status_code == 200
        assert (await caller.chat(tools=[tool], tool_choice="required")).status_code == 200


async def test_held_text_goes_out_before_the_finish_reason(caller: Api):
    def script(request: Any) -> list[Any]:
        return [TokensEvent(request.index, (1,), "Hi <tool"), finished(request, 1)]

    caller.engine.script = script
    chunks = await stream(caller, tools=TOOLS)
    assert [chunk["choices"][0]["delta"] for chunk in chunks[1:]] == [{"content": "Hi"}, {"content": " <tool"}, {}]
    assert isinstance(script(caller.engine.requests[0])[-1], FinishedEvent)
