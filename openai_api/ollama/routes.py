"""The routes of Ollama's API, under /ollama and, with MILLM_OLLAMA_PORT, at the root of a port of their own."""

from __future__ import annotations

from functools import partial

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import re_path
from django.views.decorators.csrf import csrf_exempt

from core.errors import MillmError
from openai_api.http.call import Call
from openai_api.http.endpoint import endpoint, json_response
from openai_api.http.errors import error_headers, method_not_allowed, ollama_error, unknown_url
from openai_api.http.route import Route, url_patterns
from openai_api.ollama.endpoints import create_chat, create_embedding, create_embeddings, create_text
from openai_api.ollama.lines import NDJSON
from openai_api.ollama.listing import get_version, list_running, list_tags, show_model
from openai_api.ollama.schemas import (
    OllamaChatBody,
    OllamaChatRequest,
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateBody,
    OllamaGenerateRequest,
    OllamaPsBody,
    OllamaShowBody,
    OllamaShowRequest,
    OllamaTagsBody,
    OllamaVersionBody,
)

_route = partial(Route, tag="Ollama", error_body=ollama_error)
_generation = partial(_route, event_type=NDJSON, errors=(409, 504))
_listing = partial(_route, scope=None)  # every key may list the models it may use

# fmt: off
ROUTES = (
    _generation("POST", "/ollama/api/chat", create_chat, "createOllamaChat", "Answer a chat (Ollama)",
        request=OllamaChatRequest, response=OllamaChatBody, events=OllamaChatBody, is_steered=True),
    _generation("POST", "/ollama/api/generate", create_text, "createOllamaText", "Answer or continue a prompt (Ollama)",
        request=OllamaGenerateRequest, response=OllamaGenerateBody, events=OllamaGenerateBody, is_steered=True),
    _route("POST", "/ollama/api/embed", create_embeddings, "createOllamaEmbeddings", "Create embeddings (Ollama)",
        request=OllamaEmbedRequest, response=OllamaEmbedBody, returns="Vectors of length 1.", errors=(504,)),
    _route("POST", "/ollama/api/embeddings", create_embedding, "createOllamaEmbedding",
        "Create an embedding (Ollama, older form)", request=OllamaEmbeddingsRequest, response=OllamaEmbeddingsBody,
        errors=(504,)),

    _listing("GET", "/ollama/api/tags", list_tags, "listOllamaModels", "List models and their profiles (Ollama)",
        response=OllamaTagsBody),
    _listing("GET", "/ollama/api/ps", list_running, "listRunningOllamaModels", "List loaded models (Ollama)",
        response=OllamaPsBody),
    _listing("POST", "/ollama/api/show", show_model, "showOllamaModel", "Get a model (Ollama)",
        request=OllamaShowRequest, response=OllamaShowBody),
    _listing("GET", "/ollama/api/version", get_version, "getOllamaVersion", "Get the version of the API (Ollama)",
        response=OllamaVersionBody),
)
# fmt: on

MANAGED_HERE = "blobs|copy|create|delete|pull|push"


async def refuse_operation(call: Call) -> HttpResponseBase:
    """Refuse what would change the server's models."""
    raise MillmError(
        "Models of this server cannot be changed through Ollama's API. Add them in the console, with "
        "`manage.py add_model` or through /api/models.",
        code="unsupported_endpoint",
    )


async def refuse_url(call: Call) -> HttpResponseBase:
    """Answer 404 for a path that has no route."""
    raise unknown_url(call.request.method or "", call.request.path)


@csrf_exempt
async def is_running(request: HttpRequest) -> HttpResponse:
    """Answer the question whether a server is there, which clients ask often: without a key and a log row."""
    if request.method in {"GET", "HEAD"}:
        return HttpResponse("Ollama is running", content_type="text/plain; charset=utf-8")
    error = method_not_allowed(request.method or "", ["GET", "HEAD"])
    response = json_response(ollama_error(error), error.status)
    for header, value in error_headers(error).items():
        response.headers[header] = value
    return response


_refusing = partial(endpoint, scope=None, error_body=ollama_error)
urlpatterns = [
    re_path(r"^ollama/?\Z", is_running, name="ollama"),
    *url_patterns(ROUTES),
    re_path(
        rf"^ollama/api/(?:{MANAGED_HERE})(?:/.*)?\Z",
        _refusing("/ollama/api/{operation}", ANY=refuse_operation),
        name="ollama-operation",
    ),
    re_path(r"^ollama/", _refusing("/ollama/*", ANY=refuse_url), name="ollama-unknown"),
]
