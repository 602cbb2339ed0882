"""Stored chat completions in the database, always those of one owner. Synchronous: see :func:`in_database`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from core.errors import MillmError, quote
from core.pagination import ByTime
from core.text import clean_json
from inference.client import Event
from openai_api.database import in_database
from openai_api.endpoints.pagination import Page, page_of
from openai_api.generation.chat_chunks import ChatChunks, ChatFold
from openai_api.http.call import Call
from openai_api.schemas.bodies import ChatChunkBody, ChatCompletionBody
from openai_api.schemas.chat import ChatRequest, StoredChatQuery
from openai_api.stored_chats.models import StoredChat


def store_chat(
    *, owner_id: int | None, body: ChatCompletionBody, messages: Sequence[Any], metadata: Mapping[str, str]
) -> StoredChat:
    return StoredChat.objects.create(
        id=body["id"],
        owner_id=owner_id,
        model=body["model"],
        body=clean_json(body),
        messages=clean_json(messages),
        metadata=clean_json(metadata),
    )


def find_chat(*, owner_id: int | None, chat_id: str) -> StoredChat:
    """Return a stored chat. Raises the same MillmError 404 for unknown and for other users' chats."""
    found = _of(owner_id).filter(pk=chat_id).first() if "\0" not in chat_id else None
    if found is None:
        raise chat_not_found(chat_id)
    return found


def find_chats(*, owner_id: int | None, query: StoredChatQuery) -> Page[StoredChat]:
    """Return one page of the owner's chats. Raises MillmError 400 for an unknown cursor."""
    rows = _of(owner_id)
    if query.model is not None:
        rows = rows.filter(model=query.model)
    if query.metadata:
        rows = rows.filter(metadata__contains=query.metadata)
    return page_of(rows, query, id_field="id", order=ByTime("created_at"))


def change_metadata(*, owner_id: int | None, chat_id: str, metadata: Mapping[str, str]) -> StoredChat:
    chat = find_chat(owner_id=owner_id, chat_id=chat_id)
    chat.metadata = clean_json(metadata)
    chat.save(update_fields=["metadata"])
    return chat


def delete_chat(*, owner_id: int | None, chat_id: str) -> None:
    find_chat(owner_id=owner_id, chat_id=chat_id).delete()


def chat_not_found(chat_id: str) -> MillmError:
    message = f"The stored chat completion `{quote(chat_id)}` does not exist."
    return MillmError(message, status=404, code="completion_not_found", param="completion_id")


def _of(owner_id: int | None) -> QuerySet[StoredChat]:
    return StoredChat.objects.filter(owner_id=owner_id)


class RecordedChunks:
    """The same chunks, also collected in ``fold``."""

    def __init__(self, chunks: ChatChunks, fold: ChatFold) -> None:
        self._chunks = chunks
        self._fold = fold

    def start(self) -> Iterator[ChatChunkBody]:
        return self._noted(self._chunks.start())

    def on_event(self, event: Event) -> Iterator[ChatChunkBody]:
        return self._noted(self._chunks.on_event(event))

    def finish(self) -> Iterator[ChatChunkBody]:
        return self._noted(self._chunks.finish())

    def _noted(self, chunks: Iterator[ChatChunkBody]) -> Iterator[ChatChunkBody]:
        for chunk in chunks:
            self._fold.add(chunk)
            yield chunk


async def store_completion(call: Call, request: ChatRequest, body: ChatCompletionBody) -> None:
    """Store the completion. A failure is an error: the client could not find it later."""
    owner_id = call.owner_id
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    await in_database(
        lambda: store_chat(owner_id=owner_id, body=body, messages=messages, metadata=request.metadata or {})
    )


BATCH = 500


def old_chats() -> QuerySet[StoredChat]:
    """Return chats older than MILLM_CHAT_RETENTION_DAYS."""
    days: int = settings.MILLM_CHAT_RETENTION_DAYS
    if not days:
        return StoredChat.objects.none()
    return StoredChat.objects.filter(created_at__lt=timezone.now() - timedelta(days=days))


def prune_chats() -> int:
    """Delete old chats and return how many."""
    count, old = 0, old_chats()
    while pks := list(old.order_by("created_at").values_list("pk", flat=True)[:BATCH]):
        StoredChat.objects.filter(pk__in=pks).delete()
        count += len(pks)
    return count
