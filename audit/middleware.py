"""Middleware that records who makes a request."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from audit.origin import Origin, acting

Answer = HttpResponseBase | Awaitable[HttpResponseBase]
HEADER = "X-Request-Id"


class AuditOriginMiddleware:
    """Sets the logged-in user as the actor. Requests with an API key set theirs later."""

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Answer]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Answer:
        if self._is_async:
            return self._answer(request)
        with acting(_origin(request)):
            return self._get_response(request)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        with acting(_origin(request)):
            answer = self._get_response(request)
            assert isinstance(answer, Awaitable)
            return await answer


def _origin(request: HttpRequest) -> Origin:
    return Origin(username=lambda: _username(request), request_id=f"req_{uuid.uuid4().hex}")


def _username(request: HttpRequest) -> str:
    user = getattr(request, "user", None)
    return user.get_username() if user is not None and user.is_authenticated else ""
