"""Handlers of stored chat completions under /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict
from django.http.response import HttpResponseBase

from core.errors import quote
from openai_api.database import in_database
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import invalid
from openai_api.schemas.chat import (
    MAX_LIMIT,
    ChatDeletedBody,
    ChatListBody,
    MetadataRequest,
    StoredMessageBody,
    StoredMessageListBody,
)
from openai_api.schemas.messages import text_of_raw
from openai_api.stored_chats.models import StoredChat
from openai_api.stored_chats.store import ChatQuery, change_metadata, delete_chat, find_chat, find_chats


def owner_of(call: Call) -> int | None:
    return call.key.owner_id if call.key is not None else None


async def list_chats(call: Call) -> HttpResponseBase:
    query, owner_id = read_query(call.request.GET), owner_of(call)
    found = await in_database(lambda: find_chats(owner_id=owner_id, query=query))
    shown = found[: query.limit]
    body: ChatListBody = {
        "object": "list",
        "data": [chat_body(chat) for chat in shown],
        "first_id": shown[0].id if shown else None,
        "last_id": shown[-1].id if shown else None,
        "has_more": len(found) > query.limit,
    }
    return json_response(body)


async def get_chat(call: Call, completion_id: str) -> HttpResponseBase:
    owner_id = owner_of(call)
    return json_response(chat_body(await in_database(lambda: find_chat(owner_id=owner_id, chat_id=completion_id))))


async def update_chat(call: Call, completion_id: str) -> HttpResponseBase:
    metadata, owner_id = call.read(MetadataRequest).metadata or {}, owner_of(call)
    chat = await in_database(lambda: change_metadata(owner_id=owner_id, chat_id=completion_id, metadata=metadata))
    return json_response(chat_body(chat))


async def delete_stored_chat(call: Call, completion_id: str) -> HttpResponseBase:
    owner_id = owner_of(call)
    await in_database(lambda: delete_chat(owner_id=owner_id, chat_id=completion_id))
    body: ChatDeletedBody = {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}
    return json_response(body)


async def list_messages(call: Call, completion_id: str) -> HttpResponseBase:
    """List the messages that the completion answers."""
    query, owner_id = read_query(call.request.GET), owner_of(call)
    chat = await in_database(lambda: find_chat(owner_id=owner_id, chat_id=completion_id))
    messages = [message_body(completion_id, place, message) for place, message in enumerate(chat.messages)]
    if not query.is_ascending:
        messages.reverse()
    start = _place_after(messages, query.after)
    shown = messages[start : start + query.limit]
    body: StoredMessageListBody = {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": start + query.limit < len(messages),
    }
    return json_response(body)


def chat_body(chat: StoredChat) -> dict[str, Any]:
    return {**chat.body, "metadata": chat.metadata}


def message_body(chat_id: str, place: int, message: Mapping[str, Any]) -> StoredMessageBody:
    """Return the message with an id; content in parts is also in ``content_parts``."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {**message, "id": f"{chat_id}-{place}", "content": text_of_raw(content), "content_parts": parts}  # type: ignore[typeddict-item]


def read_query(query: QueryDict) -> ChatQuery:
    """Parse the query string. Raises MillmError 400."""
    order, limit = query.get("order", "asc"), query.get("limit", "20")
    if order not in {"asc", "desc"}:
        raise invalid(f"order must be asc or desc, not “{quote(order)}”.", param="order")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 5 and 1 <= int(limit) <= MAX_LIMIT):
        raise invalid(f"limit must be a number from 1 to {MAX_LIMIT}, not “{quote(limit)}”.", param="limit")
    for name, value in query.items():
        if "\0" in name or "\0" in str(value):
            raise invalid("A query cannot have the character NUL.", param=quote(name.replace("\0", "")))
    metadata = {name[9:-1]: value for name, value in query.items() if name.startswith("metadata[") and name[-1] == "]"}
    return ChatQuery(int(limit), order == "asc", query.get("after") or None, query.get("model"), metadata)  # type: ignore[arg-type]


def _place_after(messages: list[StoredMessageBody], after: str | None) -> int:
    if after is None:
        return 0
    for place, message in enumerate(messages):
        if message["id"] == after:
            return place + 1
    raise invalid(f"after: there is no message “{quote(after)}”.", param="after")
