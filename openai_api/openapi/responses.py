"""Operations of /v1/responses and /v1/conversations."""

from __future__ import annotations

from typing import Any

from openai_api.openapi.operation import ERRORS, GET_ERRORS, OF_FILES, Schema, error, profile_header, ref
from openai_api.responses.schemas.bodies import (
    CompactionBody,
    ConversationBody,
    ConversationDeletedBody,
    InputTokensBody,
    ItemListBody,
    ResponseBody,
    ResponseDeletedBody,
)
from openai_api.responses.schemas.request import (
    CompactionRequest,
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdate,
    ResponseRequest,
    TokenCountRequest,
)

REQUESTS = (
    ResponseRequest,
    CompactionRequest,
    TokenCountRequest,
    ConversationRequest,
    ConversationUpdate,
    ConversationItemsRequest,
)
ANSWERS = (
    ResponseBody,
    ResponseDeletedBody,
    InputTokensBody,
    CompactionBody,
    ItemListBody,
    ConversationBody,
    ConversationDeletedBody,
)
STORED_ERRORS = (*GET_ERRORS, "400")


def response_paths() -> Schema:
    response, conversation = _id("response_id"), _id("conversation_id")
    create = _writing("createResponse", "Respond to an input", ResponseRequest, "ResponseBody", streams=True)
    return {
        "/v1/responses": {"post": {**create, "parameters": [profile_header()]}},
        "/v1/responses/compact": {
            "post": _writing("compactResponse", "Summarise a conversation", CompactionRequest, "CompactionBody")
        },
        "/v1/responses/input_tokens": {
            "post": _writing("countInputTokens", "Count an input's tokens", TokenCountRequest, "InputTokensBody")
        },
        "/v1/responses/{response_id}": {
            "parameters": [response],
            "get": {**_reading("getResponse", "Look up a response", "ResponseBody"), "parameters": _stream_query()},
            "delete": _reading("deleteResponse", "Delete a response", "ResponseDeletedBody"),
        },
        "/v1/responses/{response_id}/cancel": {
            "parameters": [response],
            "post": _reading("cancelResponse", "Cancel a background response", "ResponseBody"),
        },
        "/v1/responses/{response_id}/input_items": {
            "parameters": [response],
            "get": {
                **_reading("listInputItems", "What a response was made from", "ItemListBody"),
                "parameters": _page(),
            },
        },
        "/v1/conversations": {
            "post": _writing("createConversation", "Begin a conversation", ConversationRequest, "ConversationBody")
        },
        "/v1/conversations/{conversation_id}": {
            "parameters": [conversation],
            "get": _reading("getConversation", "Look up a conversation", "ConversationBody"),
            "post": _writing("updateConversation", "Change its metadata", ConversationUpdate, "ConversationBody"),
            "delete": _reading("deleteConversation", "Delete a conversation", "ConversationDeletedBody"),
        },
        "/v1/conversations/{conversation_id}/items": {
            "parameters": [conversation],
            "get": {**_reading("listConversationItems", "List its items", "ItemListBody"), "parameters": _page()},
            "post": _writing("createConversationItems", "Add items", ConversationItemsRequest, "ItemListBody"),
        },
        "/v1/conversations/{conversation_id}/items/{item_id}": {
            "parameters": [conversation, _id("item_id")],
            "get": _reading("getConversationItem", "Look up an item", None),
            "delete": _reading("deleteConversationItem", "Delete an item", "ConversationBody"),
        },
    }


def _writing(operation: str, summary: str, request: type[Any], answer: str, *, streams: bool = False) -> Schema:
    generates = request in {ResponseRequest, CompactionRequest, TokenCountRequest}
    errors = [*(set(ERRORS) - OF_FILES)] if generates else [*STORED_ERRORS, "413", "415"]
    reading = _reading(operation, summary, answer, errors=tuple(sorted(errors)))
    reading["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(request.__name__)}}}
    if streams:
        reading["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "object"}}
    return reading


def _reading(operation: str, summary: str, answer: str | None, *, errors: tuple[str, ...] = STORED_ERRORS) -> Schema:
    """Return an operation without a body; ``answer`` None: an item."""
    schema = {"type": "object"} if answer is None else ref(answer)
    return {
        "operationId": operation,
        "summary": summary,
        "tags": ["Responses"],
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": schema}}},
            **{status: error(status) for status in sorted(errors)},
        },
    }


def _id(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _stream_query() -> list[Schema]:
    number = {"type": "integer", "minimum": 0}
    return [_query("stream", {"type": "boolean", "default": False}), _query("starting_after", number)]


def _page() -> list[Schema]:
    return [
        _query("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
        _query("order", {"type": "string", "enum": ["asc", "desc"], "default": "desc"}),
        _query("after", {"type": "string"}),
        _query("before", {"type": "string"}),
    ]


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "schema": schema}
