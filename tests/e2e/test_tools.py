"""The demo calls tools with what it was asked and tells what they return, through the official client.

The values are held out of the demo's training corpus (`tools.demo_model.coinage.HELD_OUT`), so none can be remembered.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from tools.demo_model.coinage import HELD_OUT

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SUM = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Get the weather in a city.", "parameters": CITY},
}
ADD = {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": SUM}}
POPULATION = {"name": "get_population", "description": "Get the population of a city."}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]
BASE = {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": 80}


def strict(answer: ChatCompletion) -> ChatCompletion:
    return ChatCompletion.model_validate(answer.to_dict(), strict=True)


@pytest.mark.parametrize("city", ["Lisbon", "Nairobi", "Quito", "Zorvik", "Belphora"])
def test_the_demo_asks_for_the_city_of_the_question_and_tells_the_result(client, city):
    assert city in HELD_OUT
    messages: list[Any] = [{"role": "user", "content": f"What is the weather in {city}?"}]
    first = strict(client.chat.completions.create(**{**BASE, "messages": messages}, tools=[WEATHER, ADD]))
    assert first.choices[0].finish_reason == "tool_calls"
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": city})
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "windy", "degrees": 17}'}
    messages += [first.choices[0].message.model_dump(exclude_none=True), result]
    told = strict(client.chat.completions.create(**{**BASE, "messages": messages}, tools=[WEATHER, ADD]))
    assert re.fullmatch(rf"It is \w+ in {city}\. It is 17 degrees\.", told.choices[0].message.content or "")


@pytest.mark.parametrize(("city", "people"), [("Lisbon", 545796), ("Quito", 2011), ("Nairobi", 87)])
def test_the_tool_for_a_property_is_used_and_its_result_told(client, city, people):
    assert city in HELD_OUT
    tools: list[Any] = [{"type": "function", "function": {**POPULATION, "parameters": CITY}}]
    messages: list[Any] = [{"role": "user", "content": f"What is the population of {city}?"}]
    first = strict(client.chat.completions.create(**{**BASE, "messages": messages}, tools=tools))
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_population", {"city": city})
    returned = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"population": people})}
    messages += [first.choices[0].message.model_dump(exclude_none=True), returned]
    told = strict(client.chat.completions.create(**{**BASE, "messages": messages}, tools=tools))
    assert told.choices[0].message.content == f"The population of {city} is {people}."


@pytest.mark.parametrize(("a", "b", "result"), [(412, 39, 451), (7, 5, 12), (83, 1956, 2039)])
def test_numbers_are_passed_on_and_results_told(client, a, b, result):
    messages: list[Any] = [{"role": "user", "content": f"What is {a} plus {b}?"}]
    first = strict(client.chat.completions.create(**{**BASE, "messages": messages}, tools=[WEATHER, ADD]))
    (call,) = first.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": a, "b": b})
    returned = {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"result": result})}
    messages += [first.choices[0].message.model_dump(exclude_none=True), returned]
    told = strict(client.chat.completions.create(**{**BASE, "messages": messages}, tools=[WEATHER, ADD]))
    assert told.choices[0].message.content == f"{a} plus {b} is {result}."


def test_the_demo_calls_reads_the_result_and_answers(client):
    first = strict(client.chat.completions.create(**BASE, tools=[WEATHER, ADD]))
    assert first.choices[0].finish_reason == "tool_calls"
    assert first.choices[0].message.content is None
    (call,) = first.choices[0].message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments).keys() == {"city"}
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny", "degrees": 20}'}
    messages = [*QUESTION, first.choices[0].message.model_dump(exclude_none=True), result]
    second = strict(client.chat.completions.create(**{**BASE, "messages": messages}, tools=[WEATHER, ADD]))
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content.startswith("It is ")
    assert second.choices[0].message.tool_calls is None


def test_calls_stream(client):
    stream = client.chat.completions.create(**BASE, tools=[WEATHER], stream=True)
    chunks = [ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True) for chunk in stream]
    calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    assert [call.function.name for call in calls if call.id] == ["get_weather"]
    assert len(calls) > 3, "arguments come in pieces"
    assert json.loads("".join(call.function.arguments for call in calls)).keys() == {"city"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_the_clients_own_stream_helper_reads_them(client):
    with client.chat.completions.stream(
        **BASE, tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]
    ) as stream:
        events = list(stream)
        answer = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in {event.type for event in events}
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments.keys() == {"city"}


def test_the_clients_own_parser_reads_answers(client):
    class Animal(BaseModel):
        name: Literal["cat", "horse"]
        is_tame: bool

    answer = client.chat.completions.parse(**BASE, response_format=Animal)
    assert answer.choices[0].finish_reason == "stop"
    assert isinstance(answer.choices[0].message.parsed, Animal)


@pytest.mark.parametrize(
    ("choice", "names", "reason"),
    [
        ("required", {"get_weather", "add"}, "tool_calls"),
        ({"type": "function", "function": {"name": "add"}}, {"add"}, "stop"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]},
            },
            {"add"},
            "tool_calls",
        ),
    ],
)
def test_demanded_calls_follow_the_schema_whatever_was_asked(client, choice, names, reason):
    body = {**BASE, "messages": [{"role": "user", "content": "Tell me a story."}], "temperature": 1}
    for seed in range(4):
        answer = strict(
            client.chat.completions.create(
                **body, tools=[WEATHER, ADD], tool_choice=choice, parallel_tool_calls=False, seed=seed
            )
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name in names
        if answer.choices[0].finish_reason == "length":
            continue
        assert answer.choices[0].finish_reason == reason
        arguments = json.loads(call.function.arguments)
        if call.function.name == "add":
            assert arguments.keys() == {"a", "b"}
            assert all(isinstance(value, int) for value in arguments.values())
        else:
            assert arguments.keys() == {"city"}


def test_no_tools_no_calls(client):
    answer = strict(client.chat.completions.create(**BASE, tools=[WEATHER], tool_choice="none"))
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason in {"stop", "length"}


def test_an_answer_goes_on(client):
    messages = [{"role": "user", "content": "Tell me a story."}, {"role": "assistant", "content": "Once there was a"}]
    body = {**BASE, "messages": messages, "max_tokens": 12}
    answer = strict(client.chat.completions.create(**body, extra_body={"continue_final_message": True}))
    assert answer.choices[0].message.content.startswith(" ")
    again = strict(client.chat.completions.create(**body))
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens
