"""Tools and reasoning in responses: items and their events, and the way back into the next prompt."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import TypeAdapter

from inference.text.dialects.dialect import Dialect
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.dialects.tool_formats import HERMES
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import answering
from tests.openai_api.responses.test_create import create, events, strict_event

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOW: dict[str, Any] = {"type": "function", "name": "now"}
TOOLS = [{"type": "web_search"}, WEATHER, NOW]
ARGUMENTS = '{"city": "Rome"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.fixture
def caller(stored: Api) -> Api:
    """A model that was taught to think and to call."""
    stored.registry.text.dialect = Dialect(KNOWN_MARKS[0], HERMES)
    stored.registry.context = 900
    stored.engine.script = answering(f"<think>\nRome it is.\n</think>\n\nLet me see.\n{CALL}\n{NOW_CALL}")
    return stored


async def test_reasoning_text_and_calls_are_items_of_their_own(caller: Api):
    response = await create(caller, tools=TOOLS)
    body = response.json()
    parsed = TypeAdapter(Response).validate_json(response.content, strict=True)
    assert [item.type for item in parsed.output] == ["reasoning", "message", "function_call", "function_call"]
    reasoning, message, weather, now = body["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Rome it is."}]
    assert message["content"][0]["text"] == "Let me see."
    assert (weather["name"], weather["arguments"], weather["status"]) == ("get_weather", ARGUMENTS, "completed")
    assert (now["name"], now["arguments"]) == ("now", "{}")
    assert weather["call_id"] != now["call_id"]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert [tool["name"] for tool in body["tools"]] == ["get_weather", "now"]


async def test_events_of_calls_come_in_the_contract_s_order(caller: Api):
    found = await events(caller, tools=TOOLS)
    for event in found:
        strict_event(event)
    first = [event for event in found if event.get("output_index") == 0]
    assert [event["type"] for event in first[:2]] == ["response.output_item.added", "response.content_part.added"]
    assert {event["type"] for event in first[2:-3]} == {"response.reasoning_text.delta"}
    call = [event for event in found if event.get("output_index") == 2]
    assert call[0]["type"] == "response.output_item.added"
    assert call[0]["item"]["arguments"] == ""
    deltas = [event["delta"] for event in call if event["type"] == "response.function_call_arguments.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == ARGUMENTS
    assert [event["type"] for event in call[-2:]] == [
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert [event["item"] for event in found if event["type"] == "response.output_item.done"] == found[-1]["response"][
        "output"
    ]


async def test_the_client_s_helper_follows_calls(caller: Api, client: AsyncOpenAI):
    tools: Any = [WEATHER, NOW]
    async with client.responses.stream(model="tiny", input="hi", tools=tools) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == [ARGUMENTS, "{}"]


async def test_what_a_tool_gave_back_follows_its_call(caller: Api):
    first = (await create(caller, tools=TOOLS)).json()
    call_id = first["output"][2]["call_id"]
    caller.engine.script = answering("It is sunny.")
    output = {"type": "function_call_output", "call_id": call_id, "output": "Sunny."}
    second = await create(caller, tools=TOOLS, input=[output], previous_response_id=first["id"])
    assert second.json()["output"][0]["content"][0]["text"] == "It is sunny."
    user, turn, tool = caller.registry.text.rendered
    assert (user["content"], turn["content"], turn["reasoning_content"]) == ("hi", "Let me see.", "Rome it is.")
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["get_weather", "now"]
    assert (tool["role"], tool["content"], tool["tool_call_id"]) == ("tool", "Sunny.", call_id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "now"}, {"type": "function", "name": "other"}],
                }
            },
            "tool_choice.tools[1].name",
        ),
        ({"tools": [{"type": "web_search"}, NOW, {"type": "web_search"}, NOW]}, "tools[3].name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
    ],
)
async def test_contradictions_are_named_as_the_client_wrote_them(caller: Api, fields: dict[str, Any], param: str):
    error = (await create(caller, **{"tools": TOOLS, **fields})).json()["error"]
    assert error["param"] == param
    assert ".function" not in error["message"]


async def test_demanded_calls_follow_a_grammar(caller: Api):
    for choice in ("required", {"type": "function", "name": "get_weather"}):
        body = (await create(caller, tools=TOOLS, tool_choice=choice)).json()
        assert body["tool_choice"] == choice
        assert caller.engine.requests[-1].sampling.grammar is not None
    await create(caller, tools=TOOLS, parallel_tool_calls=False)
    assert caller.engine.requests[-1].sampling.grammar is not None


async def test_a_model_without_calls_refuses_tools(stored: Api):
    error = (await create(stored, tools=TOOLS)).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")


async def test_a_call_that_is_cut_off_is_incomplete(caller: Api):
    caller.engine.script = answering(CALL)
    body = (await create(caller, tools=TOOLS, max_output_tokens=len(CALL) - 20)).json()
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", "incomplete")
    assert ARGUMENTS.startswith(body["output"][0]["arguments"])


async def test_calls_of_a_background_response(caller: Api):
    from tests.openai_api.responses.test_background import order, work

    made = await order(caller, tools=TOOLS)
    await work(caller)
    done = (await caller.client.get(f"/v1/responses/{made['id']}")).json()
    assert [item["type"] for item in done["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert json.loads(done["output"][2]["arguments"]) == {"city": "Rome"}
