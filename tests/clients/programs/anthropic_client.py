"""Anthropic's client for Python, sync and async."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import Anthropic, APIStatusError, AsyncAnthropic
from cases import case, main

STORY: Any = [{"role": "user", "content": "Tell me a story."}]
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
SHORT: dict[str, Any] = {"model": "demo", "max_tokens": 24, "messages": STORY}
WEATHER: Any = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
FORCED: dict[str, Any] = {"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 80}


def client_of(url: str) -> Anthropic:
    return Anthropic(base_url=url, api_key="none", max_retries=0)


@case
def message(url: str) -> Any:
    return client_of(url).messages.create(**SHORT, system="Be brief.").model_dump(mode="json")


@case
def raw_response(url: str) -> Any:
    raw = client_of(url).messages.with_raw_response.create(**SHORT)
    return {
        "status": raw.http_response.status_code,
        "request_id": raw.headers["x-request-id"],
        "type": raw.parse().type,
    }


@case
async def async_stream(url: str) -> Any:
    async with AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        async with client.messages.stream(**SHORT) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            final = await stream.get_final_message()
        many = await asyncio.gather(*(client.messages.create(**SHORT) for _ in range(4)))
    return {"text": text, "final": final.content[0].text, "many": [answer.type for answer in many]}


@case
def tool_and_result(url: str) -> Any:
    client = client_of(url)
    first = client.messages.create(**{**SHORT, **FORCED, "messages": QUESTION})
    call = next(block for block in first.content if block.type == "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny, 20 degrees"}
    assistant = {"role": "assistant", "content": [block.model_dump(mode="json") for block in first.content]}
    messages: Any = [*QUESTION, assistant, {"role": "user", "content": [result]}]
    second = client.messages.create(**{**SHORT, "tools": [WEATHER], "messages": messages})
    return {"name": call.name, "input": call.input, "reason": first.stop_reason, "answer": second.content[0].text}


@case
def streamed_tool(url: str) -> Any:
    with client_of(url).messages.stream(**{**SHORT, **FORCED}) as stream:
        types = [event.type for event in stream]
        final = stream.get_final_message()
    return {"types": types, "content": [block.model_dump(mode="json") for block in final.content]}


@case
def count_tokens(url: str) -> Any:
    return client_of(url).messages.count_tokens(model="demo", messages=STORY).input_tokens


@case
def errors(url: str) -> Any:
    return [_error(url, model="nobody"), _error(url, max_tokens=-1)]


def _error(url: str, **options: Any) -> Any:
    try:
        client_of(url).messages.create(**{**SHORT, **options})
    except APIStatusError as error:
        return [type(error).__name__, error.status_code]
    return None


if __name__ == "__main__":
    main()
