"""LangChain's models for OpenAI, on chat completions and on responses, and its embeddings."""

from __future__ import annotations

from typing import Any, Literal

from cases import case, main
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

STORY = "Tell me a story."
QUESTION = "What is the weather in Paris?"


class Animal(BaseModel):
    """An animal."""

    kind: Literal["cat", "dog"]
    is_tame: bool


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny, 20 degrees in {city}"


def model_of(url: str, **options: Any) -> ChatOpenAI:
    chosen = {"max_tokens": 24, "temperature": 0, **options}
    return ChatOpenAI(model="demo", base_url=f"{url}/v1", api_key="none", max_retries=0, **chosen)


@case
def invoke(url: str) -> Any:
    answer = model_of(url).invoke([SystemMessage("Be brief."), HumanMessage(STORY)])
    return {"text": answer.text, "usage": answer.usage_metadata, "metadata": answer.response_metadata}


@case
def stream(url: str) -> Any:
    chunks = list(model_of(url, stream_usage=True).stream(STORY))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    reason = whole.response_metadata["finish_reason"]
    return {"count": len(chunks), "text": whole.text, "usage": whole.usage_metadata, "reason": reason}


@case
async def astream(url: str) -> Any:
    return "".join([chunk.text async for chunk in model_of(url).astream(STORY)])


@case
async def abatch(url: str) -> Any:
    return [answer.text for answer in await model_of(url).abatch([STORY] * 4)]


@case
def chain(url: str) -> Any:
    prompt = ChatPromptTemplate.from_messages([("system", "Be brief."), ("human", "Tell me about {what}.")])
    return (prompt | model_of(url)).invoke({"what": "the sea"}).text


@case
def tool_loop(url: str) -> Any:
    return _tool_loop(model_of(url, max_tokens=80))


@case
def tool_loop_on_responses(url: str) -> Any:
    return _tool_loop(model_of(url, max_tokens=80, use_responses_api=True))


def _tool_loop(model: ChatOpenAI) -> Any:
    """The model calls the tool, is given the result, and answers."""
    bound = model.bind_tools([get_weather])
    messages: list[BaseMessage] = [HumanMessage(QUESTION)]
    first = bound.invoke(messages)
    messages.append(first)
    for call in first.tool_calls:
        messages.append(ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]))
    return {"calls": first.tool_calls, "answer": bound.invoke(messages).text}


@case
def demanded_tool_in_a_stream(url: str) -> Any:
    bound = model_of(url, max_tokens=80).bind_tools([get_weather], tool_choice="any")
    chunks = list(bound.stream(STORY))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert isinstance(whole, AIMessage)
    return {"chunks": sum(bool(chunk.tool_call_chunks) for chunk in chunks), "calls": whole.tool_calls}


@case
def structured_by_schema(url: str) -> Any:
    return _structured(url, "json_schema")


@case
def structured_by_tool(url: str) -> Any:
    return _structured(url, "function_calling")


@case
def structured_on_responses(url: str) -> Any:
    return _structured(url, "json_schema", use_responses_api=True)


def _structured(url: str, method: str, **options: Any) -> Any:
    found = model_of(url, max_tokens=60, **options).with_structured_output(Animal, method=method).invoke(STORY)
    assert isinstance(found, Animal)
    return found.model_dump()


@case
def responses(url: str) -> Any:
    answer = model_of(url, use_responses_api=True).invoke(STORY)
    return {"text": answer.text, "usage": answer.usage_metadata}


@case
def responses_stream(url: str) -> Any:
    return "".join(chunk.text for chunk in model_of(url, use_responses_api=True).stream(STORY))


@case
def responses_continue(url: str) -> Any:
    """With ``use_previous_response_id`` only the new message is sent: the server knows the ones before."""
    model = model_of(url, use_responses_api=True, use_previous_response_id=True)
    first = model.invoke(STORY)
    second = model.invoke([HumanMessage(STORY), first, HumanMessage("And then?")])
    return {"first": first.usage_metadata, "second": second.usage_metadata}


@case
def logprobs(url: str) -> Any:
    answer = model_of(url, logprobs=True, top_logprobs=2).invoke(STORY)
    return {"text": answer.text, "content": answer.response_metadata["logprobs"]["content"]}


@case
def profile(url: str) -> Any:
    model = model_of(url, extra_body={"profile": "gloomy"}, include_response_headers=True)
    return model.invoke(STORY).response_metadata["headers"]["x-millm-profile"]


@case
def completion(url: str) -> Any:
    model = OpenAI(model="demo", base_url=f"{url}/v1", api_key="none", max_retries=0, max_tokens=12, temperature=0)
    return {"text": model.invoke("Once upon a time"), "stream": "".join(model.stream("Once upon a time"))}


@case
async def embeddings(url: str) -> Any:
    """Texts go as texts: LangChain would cut them with a tokenizer of OpenAI's else."""
    model = OpenAIEmbeddings(
        model="vectors", base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False, max_retries=0
    )
    asynchronous = await model.aembed_documents(["The cat sat."])
    documents = model.embed_documents(["The cat sat.", "a"])
    return {"documents": documents, "query": model.embed_query("The cat sat."), "async": asynchronous}


if __name__ == "__main__":
    main()
