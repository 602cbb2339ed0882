"""LiteLLM, which many gateways and agents are made with."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import litellm
from cases import case, main
from pydantic import BaseModel

STORY: Any = [{"role": "user", "content": "Tell me a story."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    is_tame: bool


def short(url: str, **options: Any) -> dict[str, Any]:
    place = {"api_base": f"{url}/v1", "api_key": "none", "num_retries": 0, "timeout": 60}
    return {"model": "openai/demo", "messages": STORY, "max_tokens": 24, "temperature": 0, **place, **options}


@case
def completion(url: str) -> Any:
    return litellm.completion(**short(url)).model_dump(mode="json")


@case
def stream(url: str) -> Any:
    chunks = list(litellm.completion(**short(url, stream=True, stream_options={"include_usage": True})))
    built = litellm.stream_chunk_builder(chunks, messages=STORY)
    return {"count": len(chunks), "text": built.choices[0].message.content, "usage": built.usage.model_dump()}


@case
async def acompletion(url: str) -> Any:
    answers = await asyncio.gather(*(litellm.acompletion(**short(url)) for _ in range(4)))
    return [answer.choices[0].message.content for answer in answers]


@case
def as_vllm(url: str) -> Any:
    """The provider for servers like vLLM passes their extensions on."""
    options = {"model": "hosted_vllm/demo", "top_k": 1, "temperature": 1, "extra_body": {"profile": "gloomy"}}
    answer = litellm.completion(**short(url, **options))
    return {"text": answer.choices[0].message.content, "millm": answer.model_dump().get("millm")}


@case
def demanded_tool(url: str) -> Any:
    answer = litellm.completion(**short(url, max_tokens=80, tools=[WEATHER], tool_choice="required"))
    return answer.choices[0].message.model_dump(mode="json")


@case
def structured(url: str) -> Any:
    answer = litellm.completion(**short(url, max_tokens=60, response_format=Animal))
    return Animal.model_validate_json(answer.choices[0].message.content).model_dump()


@case
def text_completion(url: str) -> Any:
    options = short(url, model="text-completion-openai/demo", prompt="Once upon a time")
    del options["messages"]
    return litellm.text_completion(**options).choices[0].text


@case
def responses(url: str) -> Any:
    place = {"api_base": f"{url}/v1", "api_key": "none"}
    answer = litellm.responses(
        model="openai/demo", input="Tell me a story.", max_output_tokens=24, temperature=0, **place
    )
    return answer.output[0].content[0].text


@case
def responses_stream(url: str) -> Any:
    place = {"api_base": f"{url}/v1", "api_key": "none"}
    events = litellm.responses(model="openai/demo", input="Hello.", max_output_tokens=24, stream=True, **place)
    return [str(getattr(event.type, "value", event.type)) for event in events]


@case
async def messages(url: str) -> Any:
    """Anthropic's format, straight to our endpoint for it."""
    answer = await litellm.anthropic.messages.acreate(
        model="anthropic/demo", messages=STORY, max_tokens=24, api_base=url, api_key="none"
    )
    return answer if isinstance(answer, dict) else answer.model_dump(mode="json")


@case
def embedding(url: str) -> Any:
    place = {"api_base": f"{url}/v1", "api_key": "none"}
    answer = litellm.embedding(model="openai/vectors", input=["The cat sat.", "a"], encoding_format="float", **place)
    return [item["embedding"] for item in answer.data]


@case
def router(url: str) -> Any:
    options = {"model": "openai/demo", "api_base": f"{url}/v1", "api_key": "none"}
    routes = litellm.Router(model_list=[{"model_name": "stories", "litellm_params": options}], num_retries=0)
    answer = routes.completion(model="stories", messages=STORY, max_tokens=24, temperature=0)
    return answer.choices[0].message.content


@case
def errors(url: str) -> Any:
    return [_error(url, temperature=9), _error(url, model="openai/nobody"), _error(url, api_key="sk-millm-wrong")]


def _error(url: str, **options: Any) -> Any:
    try:
        litellm.completion(**short(url, **options))
    except litellm.exceptions.APIError as error:
        return [type(error).__name__, error.status_code]
    except Exception as error:
        return [type(error).__name__, getattr(error, "status_code", None)]
    return None


if __name__ == "__main__":
    main()
