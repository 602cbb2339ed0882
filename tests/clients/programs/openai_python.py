"""OpenAI's own client, sync and async, with all of its ways to read an answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
from cases import case, main
from openai import AsyncOpenAI, OpenAI
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

STORY: Any = [{"role": "user", "content": "Tell me a story."}]
QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
SHORT: dict[str, Any] = {"model": "demo", "messages": STORY, "max_tokens": 24, "temperature": 0}
WHOLE = {**SHORT, "max_tokens": 500}  # the helpers refuse answers that were cut
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    is_tame: bool


class Weather(BaseModel):
    """Get the weather in a city."""

    city: str


def client_of(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def async_client_of(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@case
def version(_url: str) -> Any:
    return openai.__version__


@case
def chat(url: str) -> Any:
    answer = client_of(url).chat.completions.create(**SHORT)
    return ChatCompletion.model_validate(answer.to_dict(), strict=True).model_dump(mode="json")


@case
def chat_stream(url: str) -> Any:
    stream = client_of(url).chat.completions.create(**SHORT, stream=True, stream_options={"include_usage": True})
    return [ChatCompletionChunk.model_validate(c.to_dict(), strict=True).model_dump(mode="json") for c in stream]


@case
async def async_chat(url: str) -> Any:
    """Eight at once on one connection pool."""
    async with async_client_of(url) as client:
        answers = await asyncio.gather(*(client.chat.completions.create(**SHORT) for _ in range(8)))
    return [answer.choices[0].message.content for answer in answers]


@case
async def async_stream(url: str) -> Any:
    async with async_client_of(url) as client:
        stream = await client.chat.completions.create(**SHORT, stream=True)
        return "".join([c.choices[0].delta.content or "" async for c in stream])


@case
async def async_stream_helper(url: str) -> Any:
    async with async_client_of(url) as client, client.chat.completions.stream(**WHOLE) as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_completion()
    return {"types": types, "text": final.choices[0].message.content}


@case
def stream_helper_with_tools(url: str) -> Any:
    body = {**SHORT, "messages": QUESTION, "max_tokens": 80}
    tool = openai.pydantic_function_tool(Weather, name="get_weather")
    with client_of(url).chat.completions.stream(**body, tools=[tool], tool_choice="required") as stream:
        types = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls or ()
    arguments = call.function.parsed_arguments
    return {"types": types, "name": call.function.name, "is_weather": isinstance(arguments, Weather)}


@case
def parse(url: str) -> Any:
    body = {**SHORT, "max_tokens": 60}
    parsed = client_of(url).chat.completions.parse(**body, response_format=Animal).choices[0].message.parsed
    assert parsed is not None
    return parsed.model_dump()


@case
def responses(url: str) -> Any:
    answer = client_of(url).responses.create(
        model="demo", input="Tell me a story.", max_output_tokens=24, temperature=0
    )
    Response.model_validate(answer.to_dict(), strict=True)
    return answer.output_text


@case
def responses_stream(url: str) -> Any:
    with client_of(url).responses.stream(
        model="demo", input="Tell me a story.", max_output_tokens=500, temperature=0
    ) as stream:
        events = [EVENTS.validate_python(event.to_dict(), strict=False) for event in stream]
        final = stream.get_final_response()
    return {"types": [event.type for event in events], "text": final.output_text}


@case
async def async_responses_stream(url: str) -> Any:
    async with async_client_of(url) as client:
        stream = await client.responses.create(
            model="demo", input="Tell me a story.", max_output_tokens=24, temperature=0, stream=True
        )
        events = [event async for event in stream]
    return {"types": [event.type for event in events], "numbers": [event.sequence_number for event in events]}


@case
def responses_websocket(url: str) -> Any:
    """Two responses on one connection, the second of which continues the first, which is not stored."""
    options: dict[str, Any] = {"model": "demo", "max_output_tokens": 24, "temperature": 0, "store": False}
    texts, previous = [], None
    with client_of(url).responses.connect() as connection:
        for question in (STORY, "Go on."):
            connection.response.create(input=question, previous_response_id=previous, **options)
            for event in connection:
                EVENTS.validate_python(event.to_dict(), strict=True)
                if event.type in {"response.completed", "response.incomplete", "response.failed", "error"}:
                    break
            assert event.type in {"response.completed", "response.incomplete"}, event
            assert event.response.previous_response_id == previous
            previous = event.response.id
            texts.append(event.response.output_text)
    return texts


@case
def responses_parse(url: str) -> Any:
    answer = client_of(url).responses.parse(
        model="demo", input="Tell me a story.", text_format=Animal, max_output_tokens=60
    )
    assert answer.output_parsed is not None
    return answer.output_parsed.model_dump()


@case
def raw_response(url: str) -> Any:
    raw = client_of(url).chat.completions.with_raw_response.create(**SHORT)
    answer = raw.parse()
    return {
        "status": raw.http_response.status_code,
        "request_id": raw.headers["x-request-id"],
        "of_answer": answer._request_id,
        "text": answer.choices[0].message.content,
    }


@case
def streaming_response(url: str) -> Any:
    """The bytes as they come, without the client's reading of them."""
    with client_of(url).chat.completions.with_streaming_response.create(**SHORT, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
        return {"type": response.headers["content-type"], "lines": lines}


@case
async def async_streaming_response(url: str) -> Any:
    async with (
        async_client_of(url) as client,
        client.chat.completions.with_streaming_response.create(**SHORT) as response,
    ):
        body = json.loads(await response.text())
    return body["choices"][0]["message"]["content"]


@case
def completions(url: str) -> Any:
    answer = client_of(url).completions.create(
        model="demo", prompt=["Once upon a time", "The cat"], echo=True, max_tokens=2, logprobs=1
    )
    return answer.to_dict(mode="json")


@case
def embeddings(url: str) -> Any:
    """The client asks for base64 by itself, and decodes it."""
    client, texts = client_of(url), ["The cat sat.", "a"]
    default = client.embeddings.create(model="vectors", input=texts)
    plain = client.embeddings.create(model="vectors", input=texts, encoding_format="float")
    CreateEmbeddingResponse.model_validate(plain.to_dict(), strict=True)
    return {
        "default": [item.embedding for item in default.data],
        "float": [item.embedding for item in plain.data],
        "dimensions": len(client.embeddings.create(model="vectors", input="a", dimensions=8).data[0].embedding),
    }


@case
def models(url: str) -> Any:
    client = client_of(url)
    return {"list": sorted(model.id for model in client.models.list()), "one": client.models.retrieve("demo").id}


@case
def errors(url: str) -> Any:
    client = client_of(url)
    wrong_key = client.with_options(api_key="sk-millm-wrong")
    attempts: list[Any] = [
        lambda: client.chat.completions.create(**{**SHORT, "temperature": 9}),
        lambda: client.chat.completions.create(**{**SHORT, "model": "nobody"}),
        lambda: wrong_key.chat.completions.create(**SHORT),
        lambda: client.responses.retrieve("resp_nobody"),
        lambda: client.completions.create(model="demo", prompt="x", suffix="y"),
    ]
    return [_error(attempt) for attempt in attempts]


def _error(attempt: Any) -> Any:
    try:
        attempt()
    except openai.APIStatusError as error:
        return [type(error).__name__, error.status_code, error.code, error.param]
    return None


if __name__ == "__main__":
    main()
