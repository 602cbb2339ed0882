"""Responses to requests that no view answered: OpenAI's error JSON for API paths, a short page elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.views.decorators.csrf import csrf_exempt

from core.errors import MillmError
from core.ids import new_id
from openai_api.http.errors import (
    error_headers,
    forbidden,
    method_not_allowed,
    ollama_error,
    openai_error,
    server_error,
    unavailable,
    unknown_url,
)

DATABASE_RETRY_S = 5.0
SAFE_METHODS = ["GET", "HEAD"]
OLLAMA = "/ollama"  # where Ollama's API is


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    error = unknown_url(request.method or "", request.path)
    return _answer(request, error, "Page not found. The console is at /admin/, the API reference at /docs.")


def not_allowed(request: HttpRequest, exception: Exception) -> HttpResponse:
    text = "Your account does not have permission to do this. Ask an administrator of this server for access."
    return _answer(request, forbidden(text, code="permission_denied"), text)


def failed(request: HttpRequest) -> HttpResponse:
    """Return the response for an exception that nothing else has handled."""
    if is_database_unavailable(sys.exc_info()[1]):
        return database_unavailable(request)
    request_id = getattr(request, "request_id", None) or new_id("req_")
    request.request_id = request_id  # type: ignore[attr-defined]  # log.py shows it beside the cause
    return _answer(request, server_error(request_id), f"Internal server error. See the server's log for {request_id}.")


def database_unavailable(request: HttpRequest) -> HttpResponse:
    message = "The database cannot be reached, or all of its connections are in use. Try again in a few seconds."
    error = unavailable(message, code="database_unavailable", retry_after_s=DATABASE_RETRY_S)
    return _answer(request, error, message)


def is_database_unavailable(exception: BaseException | None) -> bool:
    """Return whether the database was down, too busy or out of connections; False for an invalid query."""
    return isinstance(exception, OperationalError | InterfaceError)


def read_only(
    view: Callable[[HttpRequest], Coroutine[Any, Any, HttpResponse]],
) -> Callable[[HttpRequest], Coroutine[Any, Any, HttpResponse]]:
    """Wrap ``view`` to answer GET and HEAD, and to return 405 with OpenAI's error JSON for other methods.

    Exempt from CSRF checks, so that a program that uses a wrong method gets 405 and not a page about cookies.
    """

    @csrf_exempt
    @wraps(view)
    async def answer(request: HttpRequest) -> HttpResponse:
        if request.method in SAFE_METHODS:
            return await view(request)
        error = method_not_allowed(request.method or "", SAFE_METHODS)
        return JsonResponse(openai_error(error), status=error.status, headers=error_headers(error))

    return answer


def is_api(path: str) -> bool:
    roots = ("/v1", "/api", "/openai", OLLAMA)
    return path in roots or path.startswith(tuple(f"{root}/" for root in roots))


def is_ollama(path: str) -> bool:
    """Return whether errors at the path have Ollama's form. OpenAI's API at Ollama's address keeps its own."""
    return path == OLLAMA or (path.startswith(f"{OLLAMA}/") and not path.startswith(f"{OLLAMA}/v1/"))


def _answer(request: HttpRequest, error: MillmError, text: str) -> HttpResponse:
    headers = error_headers(error)
    if is_api(request.path):
        headers["x-request-id"] = getattr(request, "request_id", None) or new_id("req_")
        form = ollama_error if is_ollama(request.path) else openai_error
        return JsonResponse(form(error), status=error.status, headers=headers)
    page = render_to_string("error.html", {"status": error.status, "text": text})
    return HttpResponse(page, status=error.status, headers=headers)
