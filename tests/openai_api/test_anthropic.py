"""/v1/messages: Anthropic's own types parse what is answered, and their requests mean what chats mean."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from anthropic.types import Message, MessageDeltaUsage, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from inference.client import FailedEvent, Timings, TokensEvent, Usage
from inference.text.dialects.dialect import Dialect
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.dialects.tool_formats import HERMES
from openai_api.endpoints.anthropic_events import read_input
from openai_api.endpoints.anthropic_messages import chat_messages, chat_of
from openai_api.schemas.anthropic import MessagesRequest
from tests.openai_api.conftest import Api, events_of
from tests.openai_api.fakes import failing, finished

EVENT = TypeAdapter(RawMessageStreamEvent)
TOOL = {"name": "weather", "description": "d", "input_schema": {"type": "object", "properties": {"city": {}}}}
CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'


async def ask(api: Api, headers: dict[str, str] | None = None, /, **fields: Any) -> Any:
    body = {"model": "tiny", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], **fields}
    return await api.post("/v1/messages", body, **(headers or {}))


def parsed(response: Any) -> Message:
    return TypeAdapter(Message).validate_json(response.content, strict=True)


async def stream_of(response: Any) -> list[Any]:
    """The events, each parsed by Anthropic's types and named as its type says."""
    events = []
    for text in await events_of(response):
        name, data = text.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        if body["type"] not in {"ping", "error"}:
            EVENT.validate_python(body, strict=True)
        events.append(body)
    return events


def assert_whole(kind: type[BaseModel], body: dict[str, Any]) -> None:
    """All fields of the client's type are there, of the objects inside too."""
    assert body.keys() >= kind.model_fields.keys(), kind
    for name, field in kind.model_fields.items():
        inner = [one for one in (field.annotation, *get_args(field.annotation)) if isinstance(one, type)]
        for one in inner:
            if isinstance(body[name], dict) and issubclass(one, BaseModel):
                assert_whole(one, body[name])


@pytest.fixture
def tools(api: Api) -> Api:
    api.registry.text.dialect = Dialect(KNOWN_MARKS[0], HERMES)
    api.registry.context = 1_000
    return api


async def test_a_message(api: Api):
    response = await ask(api)
    message = parsed(response)

    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "Hello sea", "citations": None}]
    assert_whole(Message, response.json())
    assert (message.stop_reason, message.stop_sequence, message.role, message.model) == (
        "end_turn",
        None,
        "assistant",
        "tiny",
    )
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (2, 2)
    assert message.usage.output_tokens == 9
    assert response.headers["request-id"] == response.headers["x-request-id"] == api.log.only.id
    assert (api.log.only.endpoint, api.log.only.status, api.log.only.completion) == ("/v1/messages", 200, "Hello sea")


async def test_a_stream_has_the_events_in_order(api: Api):
    events = await stream_of(await ask(api, stream=True))
    kinds = [event["type"] for event in events]

    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 9,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(event["delta"]["text"] for event in events[2:-3]) == "Hello sea"
    assert events[-2]["delta"] == {
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
    }
    assert_whole(Message, events[0]["message"])
    assert_whole(MessageDeltaUsage, events[-2]["usage"])
    assert events[-2]["usage"]["output_tokens"] == 9
    assert api.log.only.stream is True


@pytest.mark.parametrize("stream", [False, True])
async def test_the_limit(api: Api, stream: bool):
    response = await ask(api, max_tokens=3, stream=stream)
    ending = (await stream_of(response))[-2]["delta"] if stream else response.json()

    assert ending["stop_reason"] == "max_tokens"


async def test_more_tokens_than_there_is_room_for_mean_the_room(api: Api, settings: Any):
    """Clients of Anthropic's have to name a limit, and name a large one."""
    assert (await ask(api, max_tokens=64_000)).status_code == 200
    assert api.engine.requests[0].sampling.max_tokens == 100 - 4
    assert (await api.chat(max_tokens=64_000)).status_code == 400
    settings.MILLM_CLAMP_MAX_TOKENS = True
    assert (await api.chat(max_tokens=64_000)).status_code == 200
    assert (await api.complete(max_tokens=64_000)).status_code == 200
    too_long = await api.complete(prompt="x" * 100, max_tokens=5)
    assert (too_long.status_code, too_long.json()["error"]["code"]) == (400, "context_length_exceeded")


async def test_models_have_anthropic_s_form_for_its_clients(api: Api):
    version = {"anthropic-version": "2023-06-01"}
    response = await api.client.get("/v1/models", headers=version)
    body = response.json()
    assert [TypeAdapter(ModelInfo).validate_json(json.dumps(model), strict=True).id for model in body["data"]] == [
        "tiny",
        "org/steered",
        "cold:8b",
        "vectors",
    ]
    assert body["data"][0].keys() >= ModelInfo.model_fields.keys()
    assert (body["has_more"], body["first_id"], body["last_id"]) == (False, "tiny", "vectors")
    assert response.headers["request-id"] == api.log.only.id
    pages = {
        "limit=2": (["tiny", "org/steered"], True),
        "limit=2&after_id=org/steered": (["cold:8b", "vectors"], False),
        "limit=1&before_id=cold:8b": (["org/steered"], True),
        "after_id=vectors": ([], False),
    }
    for query, (ids, has_more) in pages.items():
        page = (await api.client.get(f"/v1/models?{query}", headers=version)).json()
        assert ([model["id"] for model in page["data"]], page["has_more"]) == (ids, has_more)
    one = await api.client.get("/v1/models/tiny:gloomy", headers=version)
    assert TypeAdapter(ModelInfo).validate_json(one.content, strict=True).id == "tiny:gloomy"
    assert (await api.client.get("/v1/models/small", headers=version)).json()["type"] == "model"
    for path, status in (("models/nobody", 404), ("models?limit=0", 400), ("models?after_id=x", 400), ("nothing", 404)):
        refused = await api.client.get(f"/v1/{path}", headers=version)
        assert (refused.status_code, refused.json()["type"]) == (status, "error")


async def test_a_stop_sequence_is_named(api: Api):
    def script(request: Any) -> list[Any]:
        assert request.sampling.stop == ("sea", "END")
        return [TokensEvent(0, (72,), "Hello "), finished(request, 1, stop="sea")]

    api.engine.script = script
    message = parsed(await ask(api, stop_sequences=["sea", "END"]))

    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "sea")


async def test_sampling_reaches_the_engine(api: Api):
    await ask(api, temperature=0.3, top_p=0.5, top_k=7, max_tokens=11, metadata={"user_id": "u1"})
    sampling = api.engine.requests[0].sampling

    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens) == (0.3, 0.5, 7, 11)
    assert api.log.only.user == "u1"


async def test_system_and_blocks_are_a_chat(api: Api):
    await ask(
        api,
        system=[
            {"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "kind"},
        ],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "c"}]},
            {"role": "user", "content": "d"},
        ],
    )

    assert [(one["role"], one["content"]) for one in api.registry.text.rendered] == [
        ("system", "Be\nkind"),
        ("user", "a\nb"),
        ("assistant", "c"),
        ("user", "d"),
    ]


async def test_an_assistant_s_beginning_is_continued(api: Api):
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "The answer is ("}]
    await ask(api, messages=messages)

    assert api.registry.text.render_options["continue_final"] is True


@pytest.mark.parametrize("size", [1, 4, 1_000])
async def test_thoughts_and_calls_are_blocks(tools: Api, size: int):
    text = f"<think>Hm.</think>So {CALL}"

    def script(request: Any) -> list[Any]:
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        return [*(TokensEvent(0, (65,), part) for part in parts), finished(request, len(parts))]

    tools.engine.script = script
    message = parsed(await ask(tools, tools=[TOOL], max_tokens=500))
    events = await stream_of(await ask(tools, tools=[TOOL], max_tokens=500, stream=True))

    blocks = [block.to_dict() for block in message.content]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[0]["thinking"] == "Hm."
    assert str(blocks[1]["text"]).strip() == "So"
    assert (blocks[2]["name"], blocks[2]["input"]) == ("weather", {"city": "Rome"})
    assert message.stop_reason == "tool_use"
    starts = [event["content_block"]["type"] for event in events if event["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    assert [event["index"] for event in events if event["type"] == "content_block_stop"] == [0, 1, 2]
    pieces = [event["delta"].get("partial_json", "") for event in events if event["type"] == "content_block_delta"]
    assert json.loads("".join(pieces)) == {"city": "Rome"}


async def test_results_of_tools_go_to_the_template(tools: Api):
    await ask(
        tools,
        tools=[TOOL],
        messages=[
            {"role": "user", "content": "Rome?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look.", "signature": "x"},
                    {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Rome"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "call_1", "content": "sunny"},
                    {"type": "tool_result", "tool_use_id": "call_2", "content": "gone", "is_error": True},
                    {"type": "text", "text": "And?"},
                ],
            },
        ],
    )
    rendered = tools.registry.text.rendered

    assert [one["role"] for one in rendered] == ["user", "assistant", "tool", "tool", "user"]
    assert rendered[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Rome"}}
    assert rendered[1]["reasoning_content"] == "Look."
    assert [one["content"] for one in rendered[2:]] == ["sunny", "Error: gone", "And?"]


@pytest.mark.parametrize(
    ("choice", "wanted", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "weather"}, "weather", True),
    ],
)
def test_choices_of_tools(choice: dict[str, Any], wanted: str, parallel: bool):
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}], "tools": [TOOL]}
    chat = chat_of(MessagesRequest.parse({**body, "tool_choice": choice}))
    name = chat.tool_choice if isinstance(chat.tool_choice, str) else chat.tool_choice.function.name  # type: ignore[union-attr]

    assert (name, chat.parallel_tool_calls) == (wanted, parallel)


@pytest.mark.parametrize(
    ("fields", "effort", "budget"),
    [
        ({}, None, None),
        ({"thinking": {"type": "disabled"}}, "none", None),
        ({"thinking": {"type": "adaptive"}}, None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 3}}, None, 3),
        ({"output_config": {"effort": "max"}}, "max", None),
    ],
)
def test_thinking(fields: dict[str, Any], effort: str | None, budget: int | None):
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}], **fields}
    chat = chat_of(MessagesRequest.parse(body))

    assert (chat.reasoning_effort, chat.reasoning_budget) == (effort, budget)


async def test_output_follows_a_schema(api: Api):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    await ask(api, output_config={"format": {"type": "json_schema", "schema": schema}})

    assert api.engine.requests[0].sampling.grammar is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_profiles_act_and_are_told(api: Api, stream: bool):
    response = await ask(api, profile="joyful", stream=stream)
    last = (await stream_of(response))[-2] if stream else response.json()

    assert last["millm"]["profile"] == "joyful@2"
    assert response.headers["x-millm-profile"] == "joyful@2"


async def test_null_means_no_profile(api: Api):
    await ask(api, model="org/steered", profile=None)
    assert api.engine.requests[0].steering is None


async def test_counting(api: Api):
    fields = {"model": "tiny", "system": "Be kind", "messages": [{"role": "user", "content": "hi"}]}
    response = await api.post("/v1/messages/count_tokens", fields)
    count = TypeAdapter(MessageTokensCount).validate_json(response.content, strict=True)

    assert count.input_tokens == len("Be kind") + len("hi") + 3
    assert api.engine.requests == []
    assert parsed(await api.post("/v1/messages", {**fields, "max_tokens": 5})).usage.input_tokens + 2 == 12


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 120}]}, "max_tokens", "context_length_exceeded"),
        ({"stop": ["x"]}, "stop", "unsupported_parameter"),
        ({"response_format": {"type": "json_object"}}, "response_format", "unsupported_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0]", "invalid_value"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].user.content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].user.content[0]",
            "unsupported_parameter",
        ),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "invalid_value"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [TOOL]}, "tools", "unsupported_parameter"),
        (
            {"tools": [{"name": "w", "strict": True, "input_schema": {"properties": {"a": {"maximum": 10**300}}}}]},
            "tools[0].input_schema",
            "invalid_schema",
        ),
        ({"tools": [TOOL, TOOL]}, "tools[1].name", "invalid_value"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens", "invalid_value"),
        ({"thinking": {"type": "enabled", "budget_tokens": 60}}, "thinking.budget_tokens", "invalid_value"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "invalid_value"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "unsupported_parameter"),
        ({"model": "vectors"}, "model", "wrong_model_kind"),
    ],
)
async def test_bad_requests_are_named_in_anthropic_s_form(api: Api, fields: dict[str, Any], param: str, code: str):
    response = await ask(api, **fields)
    body = response.json()

    assert (response.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert (body["error"]["param"], body["error"]["code"]) == (param, code)
    assert body["error"]["message"]
    assert api.log.only.error_code == code


@pytest.mark.parametrize(
    ("fields", "headers", "status", "kind"),
    [
        ({"model": "nobody"}, {}, 404, "not_found_error"),
        ({}, {"x-api-key": "wrong"}, 401, "authentication_error"),
        ({"profile": "nobody"}, {}, 404, "not_found_error"),
        ({"profile": "broken"}, {}, 409, "invalid_request_error"),
    ],
)
async def test_refusals(api: Api, fields: dict[str, Any], headers: dict[str, str], status: int, kind: str):
    response = await ask(api, headers, **fields)

    assert (response.status_code, response.json()["error"]["type"]) == (status, kind)


async def test_a_failure_is_a_status_or_an_event(api: Api):
    api.engine.script = failing("out_of_memory", after="He")
    status = await ask(api)
    events = await stream_of(await ask(api, stream=True))

    assert (status.status_code, status.json()["error"]["type"]) == (503, "overloaded_error")
    assert (events[-1]["type"], events[-1]["error"]["code"]) == ("error", "out_of_memory")


async def test_a_failure_before_the_first_text_is_a_status_when_streamed(api: Api):
    api.engine.script = lambda request: [FailedEvent(0, "out_of_memory", "Too much.", Usage(), Timings())]

    assert (await ask(api, stream=True)).status_code == 503


async def test_a_method_that_is_not_there(api: Api):
    response = await api.client.get("/v1/messages")

    assert (response.status_code, response.json()["type"]) == (405, "error")


async def test_while_it_waits_pings_are_events(api: Api):
    api.engine.script = lambda request: []
    response = await ask(api, stream=True)
    content = response.streaming_content
    first = [await anext(content), await anext(content)]
    await response.streaming_content.aclose()

    assert first[1] == b'event: ping\ndata: {"type":"ping"}\n\n'


@given(st.text())
def test_any_arguments_are_an_object(text: str):
    assert isinstance(read_input(text), dict)


TEXT = st.fixed_dictionaries({"type": st.just("text"), "text": st.text(min_size=1)})
RESULT = st.fixed_dictionaries(
    {"type": st.just("tool_result"), "tool_use_id": st.just("a"), "content": st.text(min_size=1)}
)


@given(blocks=st.lists(TEXT | RESULT, min_size=1, max_size=6))
def test_no_block_of_a_turn_is_lost_or_moved(blocks: list[dict[str, Any]]):
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": blocks}]}
    messages = list(chat_messages(MessagesRequest.parse(body)))
    texts = [str(block.get("text", block.get("content"))) for block in blocks]

    assert "\n".join(message["content"] for message in messages) == "\n".join(texts)
    assert sum(message["role"] == "tool" for message in messages) == sum(b["type"] == "tool_result" for b in blocks)
