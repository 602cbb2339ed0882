"""All routes of the API: one table with each path, its methods and their handlers.

A path is spelled once: the URL pattern and the endpoint's name in the request log are derived from it.
"""

from __future__ import annotations

import re

from django.http.response import HttpResponseBase
from django.urls import URLPattern, re_path

from openai_api.decisions.endpoint import create_decision
from openai_api.endpoints.anthropic_batches import (
    cancel_message_batch,
    create_message_batch,
    delete_message_batch,
    get_message_batch,
    list_message_batches,
    message_batch_results,
)
from openai_api.endpoints.anthropic_messages import count_tokens, create_message
from openai_api.endpoints.batches import cancel_openai_batch, create_openai_batch, get_batch, list_batches
from openai_api.endpoints.chat import create_chat_completion
from openai_api.endpoints.completions import create_completion
from openai_api.endpoints.embeddings import create_embeddings
from openai_api.endpoints.feature_activations import read_activations
from openai_api.endpoints.feature_contrast import contrast_features
from openai_api.endpoints.features import get_feature, search_features
from openai_api.endpoints.files import (
    cancel_file_upload,
    complete_file_upload,
    create_file,
    create_part,
    create_upload,
    delete_file,
    get_file,
    get_file_content,
    list_files,
)
from openai_api.endpoints.models import delete_model, get_model, list_models
from openai_api.endpoints.moderations import create_moderations
from openai_api.endpoints.rerank import rerank, score
from openai_api.endpoints.tokens import detokenize, tokenize, tokenizer_info
from openai_api.endpoints.vector_store_files import (
    attach_file,
    cancel_store_file_batch,
    create_file_batch,
    delete_store_file,
    get_file_batch,
    get_store_file,
    get_store_file_content,
    list_file_batch_files,
    list_store_files,
    update_store_file,
)
from openai_api.endpoints.vector_store_search import search_vector_store
from openai_api.endpoints.vector_stores import (
    create_vector_store,
    delete_vector_store,
    get_vector_store,
    list_vector_stores,
    update_vector_store,
)
from openai_api.http.call import Call
from openai_api.http.endpoint import ErrorBody, Handler, endpoint
from openai_api.http.errors import anthropic_error, openai_error, unknown_url
from openai_api.responses.conversations import (
    add_items,
    create_conversation,
    delete_conversation,
    delete_item,
    get_conversation,
    get_item,
    list_items,
    update_conversation,
)
from openai_api.responses.endpoints import (
    cancel_response,
    compact_response,
    count_input_tokens,
    create_response,
    delete_response,
    get_response,
    list_input_items,
)
from openai_api.stored_chats.endpoints import delete_stored_chat, get_chat, list_chats, list_messages, update_chat

app_name = "openai_api"
_PREFIX = "/v1/"
_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")


async def refuse_url(call: Call) -> HttpResponseBase:
    """Answer 404 for a path that has no route."""
    raise unknown_url(call.request.method or "", call.request.path)


def route(
    path: str, *, log_name: str = "", alias: str = "", error_body: ErrorBody = openai_error, **handlers: Handler
) -> URLPattern:
    """Return the URL pattern of ``path``, below /v1; a trailing slash is accepted.

    ``{id}`` matches up to the next slash, ``{id:path}`` may contain slashes. The log's endpoint name is the path with
    ``{id}`` for every parameter that ends in ``_id``, unless ``log_name`` gives another. ``alias`` is an optional
    prefix under which other servers have the route.
    """
    pattern = _PARAMETER.sub(
        lambda match: f"(?P<{match[1]}>{'.+?' if match[2] else '[^/]+'})", path.removeprefix(_PREFIX)
    )
    name = log_name or _PARAMETER.sub(lambda match: "{id}" if match[1].endswith("_id") else f"{{{match[1]}}}", path)
    prefix = f"(?:{alias}/)?" if alias else ""
    return re_path(rf"^{prefix}{pattern}/?\Z", endpoint(name, error_body=error_body, **handlers), name=_url_name(path))


def _url_name(path: str) -> str:
    return re.sub(r"[^a-z]+", "-", path.removeprefix(_PREFIX)).strip("-")


def anthropic(path: str, **handlers: Handler) -> URLPattern:
    """Return a route whose errors have Anthropic's form."""
    return route(path, log_name="", alias="", error_body=anthropic_error, **handlers)


# Also served without /v1, where clients know them from other servers.
root_urlpatterns = [
    route("/v1/rerank", alias="v2", POST=rerank),
    route("/v1/score", POST=score),
    route("/v1/tokenize", POST=tokenize),
    route("/v1/detokenize", POST=detokenize),
    route("/v1/tokenizer_info", GET=tokenizer_info),
]

_STORE = "/v1/vector_stores/{store_id}"
_CONVERSATION = "/v1/conversations/{conversation_id}"

urlpatterns = [
    route("/v1/chat/completions", GET=list_chats, POST=create_chat_completion),
    route("/v1/chat/completions/{chat_id}", GET=get_chat, POST=update_chat, DELETE=delete_stored_chat),
    route("/v1/chat/completions/{chat_id}/messages", GET=list_messages),
    route("/v1/completions", POST=create_completion),
    route("/v1/embeddings", POST=create_embeddings),
    route("/v1/moderations", POST=create_moderations),
    route("/v1/decisions", POST=create_decision),
    route("/v1/models", GET=list_models),
    route("/v1/models/{name:path}", log_name="/v1/models/{id}", GET=get_model, DELETE=delete_model),
    route("/v1/responses", POST=create_response),
    route("/v1/responses/compact", POST=compact_response),
    route("/v1/responses/input_tokens", POST=count_input_tokens),
    route("/v1/responses/{response_id}", GET=get_response, DELETE=delete_response),
    route("/v1/responses/{response_id}/cancel", POST=cancel_response),
    route("/v1/responses/{response_id}/input_items", GET=list_input_items),
    route("/v1/conversations", POST=create_conversation),
    route(_CONVERSATION, GET=get_conversation, POST=update_conversation, DELETE=delete_conversation),
    route(f"{_CONVERSATION}/items", GET=list_items, POST=add_items),
    route(
        f"{_CONVERSATION}/items/{{item_id}}",
        log_name="/v1/conversations/{id}/items/{item}",
        GET=get_item,
        DELETE=delete_item,
    ),
    route("/v1/features/search", POST=search_features),
    route("/v1/features/activations", POST=read_activations),
    route("/v1/features/contrast", POST=contrast_features),
    route("/v1/features/{sae:path}/{index}", GET=get_feature),
    route("/v1/files", GET=list_files, POST=create_file),
    route("/v1/files/{file_id}", GET=get_file, DELETE=delete_file),
    route("/v1/files/{file_id}/content", GET=get_file_content),
    route("/v1/uploads", POST=create_upload),
    route("/v1/uploads/{upload_id}/parts", POST=create_part),
    route("/v1/uploads/{upload_id}/complete", POST=complete_file_upload),
    route("/v1/uploads/{upload_id}/cancel", POST=cancel_file_upload),
    route("/v1/batches", GET=list_batches, POST=create_openai_batch),
    route("/v1/batches/{batch_id}", GET=get_batch),
    route("/v1/batches/{batch_id}/cancel", POST=cancel_openai_batch),
    route("/v1/vector_stores", GET=list_vector_stores, POST=create_vector_store),
    route(_STORE, GET=get_vector_store, POST=update_vector_store, DELETE=delete_vector_store),
    route(f"{_STORE}/search", POST=search_vector_store),
    route(f"{_STORE}/files", GET=list_store_files, POST=attach_file),
    route(f"{_STORE}/files/{{file_id}}", GET=get_store_file, POST=update_store_file, DELETE=delete_store_file),
    route(f"{_STORE}/files/{{file_id}}/content", GET=get_store_file_content),
    route(f"{_STORE}/file_batches", POST=create_file_batch),
    route(f"{_STORE}/file_batches/{{batch_id}}", GET=get_file_batch),
    route(f"{_STORE}/file_batches/{{batch_id}}/cancel", POST=cancel_store_file_batch),
    route(f"{_STORE}/file_batches/{{batch_id}}/files", GET=list_file_batch_files),
    anthropic("/v1/messages", POST=create_message),
    anthropic("/v1/messages/count_tokens", POST=count_tokens),
    anthropic("/v1/messages/batches", GET=list_message_batches, POST=create_message_batch),
    anthropic("/v1/messages/batches/{batch_id}", GET=get_message_batch, DELETE=delete_message_batch),
    anthropic("/v1/messages/batches/{batch_id}/cancel", POST=cancel_message_batch),
    anthropic("/v1/messages/batches/{batch_id}/results", GET=message_batch_results),
    *root_urlpatterns,
    re_path(r"", endpoint("/v1/*", ANY=refuse_url), name="unknown"),
]
