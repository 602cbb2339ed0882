"""/v1/conversations: create, retrieve, update and delete conversations and their items."""

from __future__ import annotations

from django.http.response import HttpResponseBase

from core.ids import new_id
from core.text import clean_json
from openai_api.database import in_database
from openai_api.endpoints.pagination import page_of_items
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.responses import store
from openai_api.responses.errors import item_not_found
from openai_api.responses.models import Conversation
from openai_api.responses.planning import own_items
from openai_api.responses.schemas.bodies import ConversationBody, ConversationDeletedBody
from openai_api.responses.schemas.request import (
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdate,
)
from openai_api.schemas.base import ListQuery


async def create_conversation(call: Call) -> HttpResponseBase:
    request = call.read(ConversationRequest)
    items, owner_id = await own_items(call, request.items, param="items"), call.owner_id
    made = await in_database(
        lambda: store.create_conversation(
            conversation_id=new_id("conv_"), owner_id=owner_id, metadata=dict(request.metadata or {}), items=items
        )
    )
    return json_response(conversation_body(made))


async def get_conversation(call: Call, conversation_id: str) -> HttpResponseBase:
    owner_id = call.owner_id
    found = await in_database(lambda: store.find_conversation(conversation_id, owner_id))
    return json_response(conversation_body(found))


async def update_conversation(call: Call, conversation_id: str) -> HttpResponseBase:
    request, owner_id = call.read(ConversationUpdate), call.owner_id

    def change() -> Conversation:
        conversation = store.find_conversation(conversation_id, owner_id)
        conversation.metadata = clean_json(dict(request.metadata or {}))
        conversation.save(update_fields=("metadata",))
        return conversation

    return json_response(conversation_body(await in_database(change)))


async def delete_conversation(call: Call, conversation_id: str) -> HttpResponseBase:
    """Delete a conversation with its items; its responses keep their own."""
    owner_id = call.owner_id
    await in_database(lambda: store.find_conversation(conversation_id, owner_id).delete())
    body: ConversationDeletedBody = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
    return json_response(body)


async def add_items(call: Call, conversation_id: str) -> HttpResponseBase:
    request, owner_id = call.read(ConversationItemsRequest), call.owner_id
    items = await own_items(call, request.items, param="items")
    await in_database(
        lambda: store.append_items(conversation=store.find_conversation(conversation_id, owner_id), items=items),
    )
    return json_response(page_of_items(items, ListQuery(order="asc", limit=len(items))))


async def list_items(call: Call, conversation_id: str) -> HttpResponseBase:
    query, owner_id = ListQuery.parse(call.request.GET), call.owner_id
    items = await in_database(lambda: store.conversation_items(conversation_id, owner_id))
    return json_response(page_of_items(items, query))


async def get_item(call: Call, conversation_id: str, item_id: str) -> HttpResponseBase:
    owner_id = call.owner_id
    items = await in_database(lambda: store.conversation_items(conversation_id, owner_id, item_id))
    if not items:
        raise item_not_found(item_id)
    return json_response(items[0])


async def delete_item(call: Call, conversation_id: str, item_id: str) -> HttpResponseBase:
    owner_id = call.owner_id

    def remove() -> tuple[Conversation, int]:
        conversation = store.find_conversation(conversation_id, owner_id)
        return conversation, store.delete_item(conversation=conversation, item_id=item_id)

    conversation, count = await in_database(remove)
    if not count:
        raise item_not_found(item_id)
    return json_response(conversation_body(conversation))


def conversation_body(conversation: Conversation) -> ConversationBody:
    return {
        "id": conversation.pk,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
    }
