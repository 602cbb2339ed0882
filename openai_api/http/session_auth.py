"""Access to the handlers of /v1 from console pages: a session instead of a key, form fields instead of a body."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any

from django.contrib.auth.models import AnonymousUser, User
from django.core.files.uploadedfile import UploadedFile
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from core.errors import MillmError
from openai_api.http.endpoint import json_response
from openai_api.http.errors import error_headers, forbidden, method_not_allowed, openai_error

SessionUser = User | AnonymousUser


async def authenticate_session(request: HttpRequest, permission: str, *, act: str, method: str = "POST") -> SessionUser:
    """Return the user. Raises MillmError 403 without the permission, 405 for another method."""
    user = await request.auser()
    if not (user.is_active and user.is_staff and await user.ahas_perm(permission)):
        message = f"Sign in as staff with the permission {permission} to {act}."
        raise forbidden(message, code="permission_denied")
    if request.method != method:
        raise method_not_allowed(request.method or "", [method])
    return user


def request_for(endpoint: str, fields: Mapping[str, Any]) -> ASGIRequest:
    """Return the request that a client would have sent, with none of the session's headers."""
    return _request(endpoint, BytesIO(json.dumps(fields).encode()), "application/json")


def form_request_for(
    endpoint: str, fields: Mapping[str, str], files: Mapping[str, UploadedFile[Any]], body: IO[bytes]
) -> ASGIRequest:
    """Like :func:`request_for`, for a multipart form, which is written into ``body``. Reads files."""
    boundary = secrets.token_hex(16)
    for name, value in fields.items():
        body.write(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode())
    for name, file in files.items():
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="upload"\r\n'
        body.write(f"{head}Content-Type: application/octet-stream\r\n\r\n".encode())
        for block in file.chunks():
            body.write(block)
        body.write(b"\r\n")
    body.write(f"--{boundary}--\r\n".encode())
    return _request(endpoint, body, f"multipart/form-data; boundary={boundary}")


def _request(endpoint: str, body: IO[bytes], content_type: str) -> ASGIRequest:
    length = body.seek(0, 2)
    body.seek(0)
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(length).encode())]
    scope = {"type": "http", "method": "POST", "path": endpoint, "query_string": b"", "headers": headers}
    return ASGIRequest(scope, body)


def download_request_for(endpoint: str, request: HttpRequest) -> ASGIRequest:
    """Return the request of a client for the same range of a file."""
    names = ("range", "if-range")
    headers = [(name.encode(), request.headers[name].encode()) for name in names if name in request.headers]
    scope = {"type": "http", "method": "GET", "path": endpoint, "query_string": b"", "headers": headers}
    return ASGIRequest(scope, BytesIO())


def refusal_response(error: MillmError) -> HttpResponseBase:
    response = json_response(openai_error(error), error.status)
    for header, value in error_headers(error).items():
        response.headers[header] = value
    return response
