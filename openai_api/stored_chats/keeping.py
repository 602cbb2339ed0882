"""Keeps a chat completion while it is answered: folded from the chunks that the client gets."""

from __future__ import annotations

from collections.abc import Iterator

from inference.client import Event
from openai_api.call import Call
from openai_api.database import in_database
from openai_api.schemas.bodies import ChatChunkBody, ChatCompletionBody
from openai_api.schemas.chat import ChatRequest
from openai_api.services.chat_chunks import ChatChunks
from openai_api.services.chat_fold import ChatFold
from openai_api.stored_chats.store import keep_chat


class KeptChunks:
    """The same chunks, remembered in ``fold``."""

    def __init__(self, chunks: ChatChunks, fold: ChatFold) -> None:
        self._chunks = chunks
        self._fold = fold

    def opening(self) -> Iterator[ChatChunkBody]:
        return self._noted(self._chunks.opening())

    def of(self, event: Event) -> Iterator[ChatChunkBody]:
        return self._noted(self._chunks.of(event))

    def closing(self) -> Iterator[ChatChunkBody]:
        return self._noted(self._chunks.closing())

    def _noted(self, chunks: Iterator[ChatChunkBody]) -> Iterator[ChatChunkBody]:
        for chunk in chunks:
            self._fold.add(chunk)
            yield chunk


async def keep_completion(call: Call, wanted: ChatRequest, body: ChatCompletionBody) -> None:
    """An answer that cannot be kept is an error: the client would look for it in vain."""
    owner_id = call.key.owner_id if call.key is not None else None
    messages = [message.model_dump(exclude_none=True) for message in wanted.messages]
    await in_database(
        lambda: keep_chat(owner_id=owner_id, body=body, messages=messages, metadata=wanted.metadata or {})
    )
