"""Access to the handlers of /v1 from console pages: a session instead of a key, form fields instead of a body."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from core.errors import MillmError
from openai_api.http.endpoint import json_response
from openai_api.http.errors import error_headers, forbidden, method_not_allowed, openai_error

SessionUser = User | AnonymousUser


async def authenticate_session(request: HttpRequest, permission: str, *, act: str) -> SessionUser:
    """Return the user. Raises MillmError 403 without the permission, 405 for anything but a POST."""
    user = await request.auser()
    if not (user.is_active and user.is_staff and await user.ahas_perm(permission)):
        message = f"Sign in as staff with the permission {permission} to {act}."
        raise forbidden(message, code="permission_denied")
    if request.method != "POST":
        raise method_not_allowed(request.method or "", ["POST"])
    return user


def request_for(endpoint: str, fields: Mapping[str, Any]) -> ASGIRequest:
    """Return the request that a client would have sent, with none of the session's headers."""
    body = json.dumps(fields).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {"type": "http", "method": "POST", "path": endpoint, "query_string": b"", "headers": headers}
    return ASGIRequest(scope, BytesIO(body))


def refusal_response(error: MillmError) -> HttpResponseBase:
    response = json_response(openai_error(error), error.status)
    for header, value in error_headers(error).items():
        response.headers[header] = value
    return response
