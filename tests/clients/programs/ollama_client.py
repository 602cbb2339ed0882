"""Ollama's own client, and LangChain's models for Ollama. The second argument is the address of Ollama's own port."""

from __future__ import annotations

import sys
from typing import Any, Literal

from cases import case, main
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_ollama import ChatOllama, OllamaEmbeddings, OllamaLLM
from ollama import AsyncClient, Client, ResponseError
from pydantic import BaseModel

STORY = [{"role": "user", "content": "Tell me a story."}]
QUESTION = "What is the weather in Paris?"
SHORT = {"num_predict": 24, "temperature": 0, "num_ctx": 2048}
SEEDED = {"num_predict": 24, "temperature": 1, "seed": 11}


class Animal(BaseModel):
    kind: Literal["cat", "dog"]
    is_tame: bool


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: The name of the city.
    """
    return f"sunny, 20 degrees in {city}"


def client(url: str, **headers: str) -> Client:
    return Client(host=f"{url}/ollama", headers=headers)


@case
def models(url: str) -> Any:
    return {
        "names": [one.model for one in client(url).list().models],
        "running": [[one.model, one.context_length] for one in client(url).ps().models],
        "shown": client(url).show("demo:gloomy").model_dump(mode="json"),
    }


@case
def chat(url: str) -> Any:
    return client(url).chat("demo", STORY, options=SHORT).model_dump(mode="json")


@case
def chat_with_a_tag(url: str) -> Any:
    return client(url).chat("demo:latest", STORY, options=SHORT).message.content


@case
def stream(url: str) -> Any:
    chunks = list(client(url).chat("demo", STORY, options=SHORT, stream=True))
    return {"texts": [one.message.content for one in chunks], "last": chunks[-1].model_dump(mode="json")}


@case
def seeded(url: str) -> Any:
    """Streams and whole answers of some seeds."""
    pairs = []
    for seed in range(3):
        options = {**SEEDED, "seed": seed}
        pieces = client(url).chat("demo", STORY, options=options, stream=True)
        whole = client(url).chat("demo", STORY, options=options).message.content
        pairs.append(["".join(one.message.content or "" for one in pieces), whole])
        prompts = client(url).generate("demo", "Once", options=options, stream=True, raw=True)
        text = client(url).generate("demo", "Once", options=options, raw=True).response
        pairs.append(["".join(one.response or "" for one in prompts), text])
    return pairs


@case
async def asynchronous(url: str) -> Any:
    found = AsyncClient(host=f"{url}/ollama")
    answer = await found.chat("demo", STORY, options=SHORT)
    chunks = [one.message.content async for one in await found.chat("demo", STORY, options=SHORT, stream=True)]
    return {"text": answer.message.content, "streamed": "".join(chunks)}


@case
def on_its_own_port(url: str) -> Any:
    own = Client(host=sys.argv[2])
    return {
        "text": own.chat("demo", STORY, options=SHORT).message.content,
        "names": [m.model for m in own.list().models],
    }


@case
def prompt(url: str) -> Any:
    first = client(url).generate("demo", "My name is Zorvik.", options=SHORT)
    second = client(url).generate("demo", "What is my name?", options=SHORT, context=first.context)
    messages = [
        {"role": "user", "content": "My name is Zorvik."},
        {"role": "assistant", "content": first.response},
        {"role": "user", "content": "What is my name?"},
    ]
    return {"second": second.response, "as_chat": client(url).chat("demo", messages, options=SHORT).message.content}


@case
def profiles(url: str) -> Any:
    named = client(url).chat("demo:gloomy", STORY, options=SHORT).message.content
    option = client(url).chat("demo", STORY, options={**SHORT, "profile": "gloomy"}).message.content
    header = client(url, **{"x-millm-profile": "gloomy"}).chat("demo", STORY, options=SHORT).message.content
    return {"named": named, "option": option, "header": header}


@case
def tool_loop(url: str) -> Any:
    """The model calls the tool, is given the result, and answers."""
    options = {"num_predict": 80, "temperature": 0}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    first = client(url).chat("demo", messages, tools=[get_weather], options=options)
    calls = [one.function for one in first.message.tool_calls or ()]
    messages.append(first.message)
    messages += [{"role": "tool", "tool_name": one.name, "content": get_weather(**one.arguments)} for one in calls]
    answer = client(url).chat("demo", messages, tools=[get_weather], options=options)
    return {"calls": [one.model_dump() for one in calls], "answer": answer.message.content}


@case
def structured(url: str) -> Any:
    options = {"num_predict": 60, "temperature": 0}
    found = client(url).chat("demo", STORY, format=Animal.model_json_schema(), options=options)
    return Animal.model_validate_json(found.message.content or "").model_dump()


@case
def logprobs(url: str) -> Any:
    found = client(url).chat("demo", STORY, logprobs=True, top_logprobs=2, options={**SHORT, "num_predict": 3})
    return [one.model_dump() for one in found.logprobs or ()]


@case
def embeddings(url: str) -> Any:
    found = client(url)
    return {
        "several": [list(one) for one in found.embed("vectors", ["The cat sat.", "a"]).embeddings],
        "one": list(found.embeddings("vectors", "The cat sat.").embedding),
    }


@case
def loading(url: str) -> Any:
    return client(url).generate("demo").done_reason


@case
def errors(url: str) -> Any:
    found = client(url)
    return [
        _error(lambda: found.chat("nobody", STORY)),
        _error(lambda: found.chat("demo", STORY, options={"temperature": 9})),
        _error(lambda: found.chat("demo:nobody", STORY)),
        _error(lambda: list(found.chat("demo", STORY, think=True, stream=True))),
        _error(lambda: found.pull("llama3")),
        _error(lambda: found.delete("demo")),
        _error(lambda: client(url, Authorization="Bearer sk-millm-wrong").list()),
    ]


def _error(act: Any) -> Any:
    try:
        act()
    except ResponseError as error:
        return [error.status_code, error.error]
    return None


@tool
def weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny, 20 degrees in {city}"


def langchain(url: str, **options: Any) -> ChatOllama:
    chosen = {"num_predict": 24, "temperature": 0, "validate_model_on_init": True, **options}
    return ChatOllama(base_url=f"{url}/ollama", **{"model": "demo", **chosen})


@case
def langchain_chat(url: str) -> Any:
    answer = langchain(url).invoke("Tell me a story.")
    streamed = "".join(chunk.text for chunk in langchain(url).stream("Tell me a story."))
    return {"text": answer.text, "streamed": streamed, "usage": answer.usage_metadata}


@case
def langchain_profile(url: str) -> Any:
    return langchain(url, model="demo:gloomy").invoke("Tell me a story.").text


@case
def langchain_tools(url: str) -> Any:
    bound = langchain(url, num_predict=80).bind_tools([weather])
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]
    first = bound.invoke(messages)
    messages.append(first)
    messages += [ToolMessage(weather.invoke(one["args"]), tool_call_id=one["id"]) for one in first.tool_calls]
    return {"calls": first.tool_calls, "answer": bound.invoke(messages).text}


@case
def langchain_structured(url: str) -> Any:
    found = langchain(url, num_predict=60).with_structured_output(Animal, method="json_schema").invoke("A story.")
    assert isinstance(found, Animal)
    return found.model_dump()


@case
def langchain_text(url: str) -> Any:
    model = OllamaLLM(base_url=f"{url}/ollama", model="demo", num_predict=12, temperature=0)
    return [model.invoke("Tell me a story."), "".join(model.stream("Tell me a story."))]


@case
def langchain_embeddings(url: str) -> Any:
    return OllamaEmbeddings(base_url=f"{url}/ollama", model="vectors").embed_documents(["The cat sat.", "a"])


if __name__ == "__main__":
    main()
