"""The OpenAPI 3.1 document of /v1 and the health checks, built from the request and response schemas."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import models_json_schema

from openai_api.openapi import storage as openapi_storage
from openai_api.openapi import surface as openapi_surface
from openai_api.openapi.operation import ERRORS, GET_ERRORS, OF_FILES, REF, Schema, paths_of
from openai_api.openapi.operation import error as _error
from openai_api.openapi.operation import profile_header as _profile_header
from openai_api.openapi.operation import ref as _ref
from openai_api.openapi.responses import ANSWERS as RESPONSE_ANSWERS
from openai_api.openapi.responses import REQUESTS as RESPONSE_REQUESTS
from openai_api.openapi.responses import response_paths
from openai_api.schemas.bodies import (
    ChatChunkBody,
    ChatCompletionBody,
    CompletionBody,
    EmbeddingsBody,
    ErrorBody,
    ModelBody,
    ModelDeletedBody,
    ModelListBody,
)
from openai_api.schemas.chat import (
    ChatDeletedBody,
    ChatListBody,
    ChatRequest,
    MetadataRequest,
    StoredChatBody,
    StoredMessageListBody,
)
from openai_api.schemas.completions import CompletionRequest
from openai_api.schemas.embeddings import EmbeddingsRequest
from openai_api.schemas.features import (
    FeatureActivationsBody,
    FeatureActivationsRequest,
    FeatureContrastBody,
    FeatureContrastRequest,
    FeatureDetailBody,
    FeatureListBody,
    FeatureSearchRequest,
)

VERSION = "0.1.0"

REQUESTS = (
    ChatRequest,
    CompletionRequest,
    EmbeddingsRequest,
    FeatureSearchRequest,
    MetadataRequest,
    *openapi_storage.REQUESTS,
    *openapi_surface.REQUESTS,
    FeatureActivationsRequest,
    FeatureContrastRequest,
    *RESPONSE_REQUESTS,
)
ANSWERS = (
    ChatCompletionBody,
    ChatChunkBody,
    CompletionBody,
    EmbeddingsBody,
    FeatureListBody,
    FeatureDetailBody,
    ChatListBody,
    StoredChatBody,
    ChatDeletedBody,
    StoredMessageListBody,
    FeatureActivationsBody,
    FeatureContrastBody,
    ModelBody,
    ModelListBody,
    ModelDeletedBody,
    ErrorBody,
    *openapi_storage.ANSWERS,
    *RESPONSE_ANSWERS,
    *openapi_surface.ANSWERS,
)


def document() -> Schema:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "miLLM",
            "version": VERSION,
            "description": "Language models over the OpenAI API, steered per request by the field `profile`.",
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"api-key": []}, {"x-api-key": []}, {}],
        "paths": _paths(),
        "components": {"schemas": _schemas(), "securitySchemes": _security()},
    }


def _paths() -> Schema:
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {
            "get": {
                **_reading("listChatCompletions", "List stored completions", "ChatListBody", tag="Generation"),
                "parameters": _stored_chat_query(),
            },
            "post": _generation("createChatCompletion", "Complete a chat", ChatRequest, "ChatCompletionBody"),
        },
        **_stored_chats(),
        "/v1/completions": {
            "post": _generation("createCompletion", "Continue a text", CompletionRequest, "CompletionBody")
        },
        **response_paths(),
        "/v1/embeddings": {"post": _embedding()},
        "/v1/features/search": {"post": _feature_search()},
        "/v1/features/activations": {"post": _feature_activations()},
        "/v1/features/contrast": {"post": _feature_contrast()},
        "/v1/features/{sae}/{index}": _feature(),
        "/v1/models": {"get": _reading("listModels", "List the models", "ModelListBody")},
        "/v1/models/{model}": {
            "parameters": [name],
            "get": _reading("retrieveModel", "Look up a model", "ModelBody"),
            "delete": _reading("deleteModel", "Unload a model; the next request loads it again", "ModelDeletedBody"),
        },
        **openapi_storage.paths(_error),
        **paths_of(openapi_surface.OPERATIONS, ERRORS),
        "/health/live": {"get": _health("live", "Whether the process runs", failing=False)},
        "/health/ready": {"get": _health("ready", "Whether requests can be served", failing=True)},
    }


def _stored_chats() -> Schema:
    chat_id = {"name": "completion_id", "in": "path", "required": True, "schema": {"type": "string"}}
    change = _reading(
        "updateChatCompletion", "Change a stored completion's metadata", "StoredChatBody", tag="Generation"
    )
    change["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref("MetadataRequest")}}}
    change["responses"] |= {status: _error(status) for status in ("400", "413", "415")}
    return {
        "/v1/chat/completions/{completion_id}": {
            "parameters": [chat_id],
            "get": _reading("getChatCompletion", "Look at a stored completion", "StoredChatBody", tag="Generation"),
            "post": change,
            "delete": _reading("deleteChatCompletion", "Forget a completion", "ChatDeletedBody", tag="Generation"),
        },
        "/v1/chat/completions/{completion_id}/messages": {
            "parameters": [chat_id],
            "get": _reading(
                "getChatCompletionMessages", "List the messages of one", "StoredMessageListBody", tag="Generation"
            ),
        },
    }


def _stored_chat_query() -> list[Schema]:
    schemas = {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
        "after": {"type": "string"},
        "order": {"type": "string", "enum": ["asc", "desc"], "default": "asc"},
        "model": {"type": "string"},
    }
    query: list[Schema] = [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]
    pairs = {"type": "object", "additionalProperties": {"type": "string"}}
    return [*query, {"name": "metadata", "in": "query", "style": "deepObject", "schema": pairs}]


def _generation(operation: str, summary: str, request: type[Any], answer: str) -> Schema:
    streamed = "ChatChunkBody" if answer == "ChatCompletionBody" else answer
    return {
        "operationId": operation,
        "summary": summary,
        "tags": ["Generation"],
        "parameters": [_profile_header()],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(request.__name__)}}},
        "responses": {
            "200": {
                "description": "The completion; with `stream` its chunks as server-sent events.",
                "content": {
                    "application/json": {"schema": _ref(answer)},
                    "text/event-stream": {"schema": _ref(streamed)},
                },
            },
            **{status: _error(status) for status in ERRORS if status not in OF_FILES},
        },
    }


def _embedding() -> Schema:
    return {
        "operationId": "createEmbedding",
        "summary": "Turn texts into vectors",
        "tags": ["Embeddings"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("EmbeddingsRequest")}}},
        "responses": {
            "200": {"description": "The vectors.", "content": {"application/json": {"schema": _ref("EmbeddingsBody")}}},
            **{status: _error(status) for status in ERRORS if status not in OF_FILES | {"409"}},
        },
    }


def _feature_search() -> Schema:
    return {
        "operationId": "searchFeatures",
        "summary": "Find features by their labels",
        "tags": ["Features"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("FeatureSearchRequest")}}},
        "responses": {
            "200": {
                "description": "The best first.",
                "content": {"application/json": {"schema": _ref("FeatureListBody")}},
            },
            **{status: _error(status) for status in ERRORS if status not in OF_FILES | {"409", "504"}},
        },
    }


def _feature_activations() -> Schema:
    return {
        "operationId": "readFeatureActivations",
        "summary": "Read which features are active at the tokens of texts",
        "tags": ["Features"],
        "parameters": [_profile_header()],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("FeatureActivationsRequest")}},
        },
        "responses": {
            "200": {
                "description": "By text and token.",
                "content": {"application/json": {"schema": _ref("FeatureActivationsBody")}},
            },
            **{status: _error(status) for status in ERRORS if status not in OF_FILES},
        },
    }


def _feature_contrast() -> Schema:
    return {
        "operationId": "contrastFeatures",
        "summary": "Find the features that separate two sets of texts",
        "tags": ["Features"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("FeatureContrastRequest")}}},
        "responses": {
            "200": {
                "description": "Those first that the model needs most for their texts.",
                "content": {"application/json": {"schema": _ref("FeatureContrastBody")}},
            },
            **{status: _error(status) for status in ERRORS if status not in OF_FILES},
        },
    }


def _feature() -> Schema:
    reading = _reading("retrieveFeature", "Look at a feature", "FeatureDetailBody", tag="Features")
    for status in ("400", "504"):
        reading["responses"][status] = _error(status)
    lens = {
        "name": "logit_lens",
        "in": "query",
        "description": "Whether to compute the tokens that it promotes and suppresses.",
        "schema": {"type": "boolean", "default": True},
    }
    return {
        "parameters": [
            {"name": "sae", "in": "path", "required": True, "schema": {"type": "string"}},
            {"name": "index", "in": "path", "required": True, "schema": {"type": "integer", "minimum": 0}},
        ],
        "get": {**reading, "parameters": [lens]},
    }


def _reading(operation: str, summary: str, answer: str, *, tag: str = "Models") -> Schema:
    return {
        "operationId": operation,
        "summary": summary,
        "tags": [tag],
        "responses": {
            "200": {"description": "The answer.", "content": {"application/json": {"schema": _ref(answer)}}},
            **{status: _error(status) for status in GET_ERRORS},
        },
    }


def _health(operation: str, summary: str, *, failing: bool) -> Schema:
    responses = {"200": {"description": "Yes."}} | ({"503": {"description": "No."}} if failing else {})
    return {"operationId": operation, "summary": summary, "tags": ["Health"], "security": [], "responses": responses}


def _schemas() -> Schema:
    _, requests = models_json_schema([(schema, "validation") for schema in REQUESTS], ref_template=REF)
    definitions: Schema = dict(requests["$defs"])
    for schema in REQUESTS:
        definitions[schema.__name__]["x-millm-refused"] = sorted(schema.REFUSED)
    adapters = [(answer.__name__, "serialization", TypeAdapter(answer)) for answer in ANSWERS]
    _, answers = TypeAdapter.json_schemas(adapters, ref_template=REF)  # type: ignore[arg-type]  # wants literals
    definitions |= answers["$defs"]
    return dict(sorted(definitions.items()))


def _security() -> Schema:
    headers = {name: {"type": "apiKey", "in": "header", "name": name} for name in ("api-key", "x-api-key")}
    return {"bearer": {"type": "http", "scheme": "bearer"}, **headers}
