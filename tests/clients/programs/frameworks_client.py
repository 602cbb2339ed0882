"""LlamaIndex and Langfuse, with the settings of docs/connect.md."""

from __future__ import annotations

import os
from typing import Any

os.environ |= {"LANGFUSE_TRACING_ENABLED": "false", "LANGFUSE_PUBLIC_KEY": "pk-none", "LANGFUSE_SECRET_KEY": "sk-none"}

from cases import case, main
from langfuse.openai import OpenAI
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.llms import ChatMessage
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

STORY = "Tell me a story."


def llama(url: str, **options: Any) -> OpenAILike:
    chosen = {"model": "demo", "context_window": 2048, "is_chat_model": True, "max_tokens": 24, "temperature": 0}
    return OpenAILike(api_base=f"{url}/v1", api_key="none", max_retries=0, **{**chosen, **options})


def embedder(url: str) -> OpenAILikeEmbedding:
    return OpenAILikeEmbedding(model_name="vectors", api_base=f"{url}/v1", api_key="none")


@case
def llamaindex(url: str) -> Any:
    chat = [ChatMessage(role="user", content=STORY)]
    model = llama(url)
    return {
        "chat": model.chat(chat).message.content,
        "stream": "".join(one.delta or "" for one in model.stream_chat(chat)),
        "named": llama(url, model="demo:gloomy").chat(chat).message.content,
        "body": llama(url, additional_kwargs={"extra_body": {"profile": "gloomy"}}).chat(chat).message.content,
    }


@case
def llamaindex_answers_from_documents(url: str) -> Any:
    texts = ["The cat lives in a red house.", "The boat is on the sea."]
    index = VectorStoreIndex.from_documents([Document(text=one) for one in texts], embed_model=embedder(url))
    found = index.as_query_engine(llm=llama(url), similarity_top_k=1).query("Where does the cat live?")
    return {"answer": str(found), "sources": [one.node.get_content() for one in found.source_nodes]}


@case
def langfuse(url: str) -> Any:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": STORY}]
    options: Any = {"model": "demo", "messages": messages, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(name="story", **options)
    chunks = client.chat.completions.create(stream=True, **options)
    steered = client.chat.completions.create(extra_body={"profile": "gloomy"}, **options)
    return {
        "chat": whole.choices[0].message.content,
        "stream": "".join(one.choices[0].delta.content or "" for one in chunks if one.choices),
        "body": steered.choices[0].message.content,
        "usage": whole.usage.completion_tokens,
    }


if __name__ == "__main__":
    main()
