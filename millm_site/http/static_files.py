"""Static files (admin, Swagger UI), served by the site itself from the packages that contain them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.contrib.staticfiles import finders
from django.core.exceptions import SuspiciousFileOperation
from django.http import HttpRequest, HttpResponse
from whitenoise import WhiteNoise
from whitenoise.responders import MissingFileError, StaticFile

MAX_AGE_S = 3_600


class StaticFilesMiddleware:
    """Serves static files like whitenoise (headers, conditional and range requests), for async requests too.

    whitenoise's middleware is synchronous: with it, each request to /v1 would hold a thread until its response is
    complete. It also scans all folders at startup; this one searches for a file when it is requested.
    """

    async_capable = True
    sync_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if not request.path_info.startswith(settings.STATIC_URL):
            return self.get_response(request)  # the response, or its coroutine
        return self._serve_async(request) if iscoroutinefunction(self) else self._serve(request)

    def _serve(self, request: HttpRequest) -> Any:
        return static_response(request) or self.get_response(request)

    async def _serve_async(self, request: HttpRequest) -> Any:
        return await asyncio.to_thread(static_response, request) or await self.get_response(request)


def static_response(request: HttpRequest) -> HttpResponse | None:
    """Return the response with the file of the request's URL, or None if there is no such file."""
    find = find_file if settings.DEBUG else find_file_once
    file = find(request.path_info)
    return read_response(file, request) if file is not None else None


def find_file(url: str) -> StaticFile | None:
    if not WhiteNoise.url_is_canonical(url):
        return None
    try:
        path = finders.find(url.removeprefix(settings.STATIC_URL))
        return WhiteNoise(None, max_age=0 if settings.DEBUG else MAX_AGE_S).get_static_file(path, url) if path else None
    except (SuspiciousFileOperation, MissingFileError, IsADirectoryError):
        return None


find_file_once = lru_cache(maxsize=1_024)(find_file)


def read_response(file: StaticFile, request: HttpRequest) -> HttpResponse:
    """Return a response with the whole content. Under ASGI, Django reads file iterators as a whole too, and warns."""
    response: Any = file.get_response(request.method, request.META)
    content = b""
    if response.file is not None:
        with response.file:
            content = response.file.read()
    answer = HttpResponse(content, status=int(response.status))
    del answer.headers["Content-Type"]
    for name, value in response.headers:
        answer.headers[name] = value
    return answer
