"""Strict parsing of the request body as a JSON object.

Of duplicate keys the last one counts, and nothing else reads the body. The parser limits nesting to 200 levels.
"""

from __future__ import annotations

from typing import Any

import pydantic_core
from django.conf import settings
from django.http import HttpRequest

from core.errors import quote
from openai_api.http.errors import invalid_json, request_too_large, unsupported_media_type

_UNICODE_MARKS = ("surrogate", "hex escape", "unicode")


def read_json_object(request: HttpRequest, *, limit: int | None = None, is_declared: bool = True) -> dict[str, Any]:
    """Return the body. ``limit``: bytes, by default MILLM_MAX_BODY_BYTES.

    ``is_declared``: Content-Type must say that it is JSON. Raises MillmError 400 (`invalid_json`, `invalid_unicode`),
    413 or 415.
    """
    check_encoding(request)
    if is_declared:
        check_media_type(request)
    value = parse_json(read_body(request, limit=limit))
    if not isinstance(value, dict):
        raise invalid_json(f"The body must be a JSON object, got {_kind(value)}.")
    return value


def check_encoding(request: HttpRequest) -> None:
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        raise unsupported_media_type(
            f"Content-Encoding `{quote(encoding)}` is not supported. Send the body uncompressed.",
            code="unsupported_content_encoding",
        )


def check_media_type(request: HttpRequest) -> None:
    """Require JSON, also on loopback: a page of another site can post text/plain, but not application/json."""
    media_type = (request.content_type or "").strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        raise unsupported_media_type(
            f"Content-Type must be application/json, got `{quote(media_type)}`."
            if media_type
            else "Content-Type must be application/json, got none."
        )


def read_body(request: HttpRequest, *, limit: int | None = None) -> bytes:
    limit = settings.MILLM_MAX_BODY_BYTES if limit is None else limit
    declared = request.headers.get("Content-Length") or "0"
    if declared.isdecimal() and int(declared[:20]) > limit:
        raise request_too_large(limit)
    body = request.read(limit + 1)
    if len(body) > limit:
        raise request_too_large(limit)
    return body


def parse_json(body: bytes) -> Any:
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        problem = quote(str(error))
        if any(mark in problem for mark in _UNICODE_MARKS):
            raise invalid_json(f"The body is not valid Unicode: {problem}.", code="invalid_unicode") from None
        raise invalid_json(f"The body is not valid JSON in UTF-8: {problem}.") from None


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
