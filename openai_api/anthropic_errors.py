"""Refusals and failures in Anthropic's form, and which requests expect it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from openai_api.errors import ApiError

VERSION_HEADER = "anthropic-version"  # every client of Anthropic's API sends it
MESSAGES = "/v1/messages"

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def speaks_anthropic(request: HttpRequest) -> bool:
    """Whether the client is one of Anthropic's API, on any path."""
    path = request.path.rstrip("/")
    return VERSION_HEADER in request.headers or path == MESSAGES or path.startswith(f"{MESSAGES}/")


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """``param`` and ``code`` are ours: Anthropic's clients pass over them."""
    kind = TYPES.get(error.status, "invalid_request_error")
    detail = {"type": kind, "message": error.message, "param": error.param, "code": error.code}
    return {"type": "error", "error": detail}
