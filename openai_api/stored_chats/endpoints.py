"""Handlers of stored chat completions under /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http.response import HttpResponseBase

from openai_api.database import in_database
from openai_api.endpoints.pagination import items_between
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.schemas.chat import (
    ChatDeletedBody,
    MetadataRequest,
    StoredChatQuery,
    StoredMessageBody,
    StoredMessageListBody,
    StoredMessageQuery,
)
from openai_api.schemas.messages import text_of_raw
from openai_api.stored_chats.models import StoredChat
from openai_api.stored_chats.store import change_metadata, delete_chat, find_chat, find_chats


async def list_chats(call: Call) -> HttpResponseBase:
    query, owner_id = StoredChatQuery.parse(call.request.GET), call.owner_id
    page = await in_database(lambda: find_chats(owner_id=owner_id, query=query))
    return json_response(page.body(chat_body))


async def get_chat(call: Call, completion_id: str) -> HttpResponseBase:
    owner_id = call.owner_id
    return json_response(chat_body(await in_database(lambda: find_chat(owner_id=owner_id, chat_id=completion_id))))


async def update_chat(call: Call, completion_id: str) -> HttpResponseBase:
    metadata, owner_id = call.read(MetadataRequest).metadata or {}, call.owner_id
    chat = await in_database(lambda: change_metadata(owner_id=owner_id, chat_id=completion_id, metadata=metadata))
    return json_response(chat_body(chat))


async def delete_stored_chat(call: Call, completion_id: str) -> HttpResponseBase:
    owner_id = call.owner_id
    await in_database(lambda: delete_chat(owner_id=owner_id, chat_id=completion_id))
    body: ChatDeletedBody = {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}
    return json_response(body)


async def list_messages(call: Call, completion_id: str) -> HttpResponseBase:
    """List the messages that the completion answers."""
    query, owner_id = StoredMessageQuery.parse(call.request.GET), call.owner_id
    chat = await in_database(lambda: find_chat(owner_id=owner_id, chat_id=completion_id))
    messages = [message_body(completion_id, place, message) for place, message in enumerate(chat.messages)]
    shown, has_more = items_between(messages, query, noun="message")
    body: StoredMessageListBody = {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": has_more,
    }
    return json_response(body)


def chat_body(chat: StoredChat) -> dict[str, Any]:
    return {**chat.body, "metadata": chat.metadata}


def message_body(chat_id: str, place: int, message: Mapping[str, Any]) -> StoredMessageBody:
    """Return the message with an id; content in parts is also in ``content_parts``."""
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return {**message, "id": f"{chat_id}-{place}", "content": text_of_raw(content), "content_parts": parts}  # type: ignore[typeddict-item]
