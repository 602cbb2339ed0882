"""Django's ASGI handler with safe handling of request bodies, and the lifespan and WebSocket protocols."""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import IO, Any

from channels.security.websocket import AllowedHostsOriginValidator
from django.conf import settings
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, ASGIRequest, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix
from django.utils.deprecation import MiddlewareMixin
from django.utils.module_loading import import_string

from console.live.connection import LIVE_PATH, LiveConnection
from core.errors import MillmError
from millm_site.http.cors import API_ROOTS
from millm_site.http.hosts import host_problem, with_forwarded_scheme
from millm_site.http.refusal import Refusal, disk_full, invalid_host, refusal, too_large
from millm_site.http.spool import CHECK_EVERY, SCOPE_KEY, has_room, new_spool
from millm_site.serving import is_draining, stop
from openai_api.http.file_uploads import accepts_files, body_limit, upload_refusal
from openai_api.responses.websocket import PATHS as SOCKET_PATHS
from openai_api.responses.websocket import ResponsesSocket

logger = logging.getLogger(__name__)
_live_application = AllowedHostsOriginValidator(LiveConnection.as_asgi())

ASYNC_PATHS = re.compile(rf"/({API_ROOTS}|health|metrics)(/|$)")
PAGE_MIDDLEWARE = frozenset(
    {
        "millm_site.http.static_files.StaticFilesMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    }
)
Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BodyTooLargeError(Exception):
    """The body is larger than its route allows."""


class DiskFullError(Exception):
    """There is not enough disk space for the body."""


class ReceivedBody:
    """``receive`` of a request whose ``body`` has been received completely."""

    def __init__(self, receive: Receive, body: IO[bytes]) -> None:
        self._receive = receive
        self.body = body

    async def __call__(self) -> Message:
        return await self._receive()


class BodyHandler(ASGIHandler):
    """Django's handler, with bodies that are spooled to disk and have a length."""

    async def read_body(self, receive: Receive) -> IO[bytes]:
        if isinstance(receive, ReceivedBody):
            await receive()  # its empty message
            return receive.body
        return await spool(receive)

    def create_request(
        self, scope: Message, body_file: IO[bytes]
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponseBase]:
        return super().create_request(with_length(dict(scope), body_file), body_file)


class ApiHandler(BodyHandler):
    """Serves the paths of ``ASYNC_PATHS`` entirely on the event loop: no request holds a thread, however long it lasts.

    Django's handler sends its signals, runs synchronous middleware hooks and closes the response in a thread that it
    keeps for the request until it ends, so each open stream would hold one. These paths need no session, no CSRF token
    and no ORM call in a middleware; their database queries run on separate threads (``openai_api.database``).
    """

    def load_middleware(self, is_async: bool = True) -> None:  # noqa: FBT001, FBT002 - Django's signature
        """Build the chain from settings.MIDDLEWARE, without the middleware that only pages need."""
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        respond: Callable[[HttpRequest], Awaitable[HttpResponseBase]] = getattr(self, "_get_response_async")  # noqa: B009
        handler = convert_exception_to_response(respond)
        for path in reversed([path for path in settings.MIDDLEWARE if path not in PAGE_MIDDLEWARE]):
            middleware = without_threads(import_string(path))(handler)
            if hasattr(middleware, "process_exception"):
                self._exception_middleware.append(middleware.process_exception)
            handler = convert_exception_to_response(middleware)
        self._middleware_chain = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with closing(body):
            set_script_prefix(get_script_prefix(scope))
            request, refused = self.create_request(scope, body)
            if request is not None:
                await self._answer_unless_disconnected(request, receive, send)
            elif refused is not None:
                await self.send_response(refused, send)

    async def _answer_unless_disconnected(self, request: ASGIRequest, receive: Receive, send: Send) -> None:
        """Answer the request. If the client disconnects, cancel the answer and wait until it has ended."""
        answer = asyncio.create_task(self._answer(request, send))
        disconnect = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({answer, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answer.cancel()  # a no-op if it is complete
            disconnect.cancel()
            outcome, _ = await asyncio.gather(answer, disconnect, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _answer(self, request: ASGIRequest, send: Send) -> None:
        response = await self.run_get_response(request)
        try:
            await self.send_response(response, send)
        finally:
            response.close()


def without_threads(middleware: type[Any]) -> type[Any]:
    """Return the middleware with hooks that run on the event loop; Django would call each of them in a thread.

    Only for hooks that just read and set headers, like those of Django's security, common and clickjacking middleware.
    """
    if not issubclass(middleware, MiddlewareMixin):
        return middleware

    class WithoutThreads(middleware):  # type: ignore[misc]
        async def __acall__(self, request: ASGIRequest) -> HttpResponseBase:
            before, after = getattr(self, "process_request", None), getattr(self, "process_response", None)
            response = (before(request) if before else None) or await self.get_response(request)
            answer: HttpResponseBase = after(request, response) if after else response
            return answer

    return WithoutThreads


class SiteHandler(BodyHandler):
    """The whole site: the API on the event loop, pages through Django's own handler and all middleware."""

    def __init__(self) -> None:
        super().__init__()
        self._api = ApiHandler()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
        elif scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
        elif problem := host_problem(scope["headers"], scope.get("http_version", "1.1")):
            logger.warning("Refused a request: %s", problem)
            await send_refusal(invalid_host(problem), send)
        else:
            await self._serve(scope, receive, send)

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the WebSockets of the console, to pages of this site, and of the API; refuse others."""
        if scope["path"] == LIVE_PATH:
            await _live_application(with_forwarded_scheme(scope), receive, send)
        elif scope["path"] in SOCKET_PATHS and not host_problem(scope["headers"], "1.1"):
            await ResponsesSocket(self._api, is_draining)(with_forwarded_scheme(scope), receive, send)
        else:
            await receive()
            await send({"type": "websocket.close"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an HTTP request. The size checks are for other ASGI servers: ours refuses large bodies earlier."""
        limit = body_limit(scope["path"])
        body = scope.get(SCOPE_KEY)
        try:
            if declared_length(scope) > limit:
                raise BodyTooLargeError
            if body is None and (error := file_refusal(scope)) is not None:
                await send_refusal(refusal(error), send)
                return
            received = limited(receive, limit) if body is None else ReceivedBody(receive, body)
            handle = self._api if ASYNC_PATHS.match(scope["path"]) else super().__call__
            await handle(with_forwarded_scheme(scope), received, send)
        except BodyTooLargeError:
            await send_refusal(too_large(limit), send)
        except DiskFullError:
            await send_refusal(disk_full(), send)


def file_refusal(scope: Scope) -> MillmError | None:
    """Return the error if the request sends a file that is not accepted; for ASGI servers that do not check it."""
    if not accepts_files(scope["path"]) or scope["method"] != "POST":
        return None
    peer = scope.get("client")
    return upload_refusal(scope["headers"], peer[0] if peer else "", scope["path"])


async def spool(receive: Receive) -> IO[bytes]:
    """Receive the body into a temporary file. Raise RequestAborted or DiskFullError if that fails."""
    body, size = new_spool(), 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestAborted
            data = message.get("body", b"")
            size += len(data)
            if size % CHECK_EVERY < len(data) and not has_room(CHECK_EVERY):
                raise DiskFullError
            body.write(data)
            if not message.get("more_body", False):
                body.seek(0)
                return body
    except OSError as error:
        body.close()
        raise DiskFullError from error
    except BaseException:
        body.close()
        raise


def declared_length(scope: Scope) -> int:
    """Return the Content-Length; 0 if it is absent or not a number."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(value) if value.isdigit() and len(value) < 20 else 0


def with_length(scope: Scope, body_file: IO[bytes]) -> Scope:
    """Add the Content-Length to a chunked request. Without it, Django's and DRF's parsers treat the body as empty."""
    if any(name == b"content-length" for name, _ in scope["headers"]):
        return scope
    size = body_file.seek(0, os.SEEK_END)
    body_file.seek(0)
    if size == 0:
        return scope
    return {**scope, "headers": [*scope["headers"], (b"content-length", str(size).encode())]}


def limited(receive: Receive, limit: int) -> Receive:
    """Wrap ``receive`` to raise BodyTooLargeError as soon as more than ``limit`` bytes have been received."""
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > limit:
            raise BodyTooLargeError
        return message

    return counted


async def send_refusal(refusal: Refusal, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": refusal.body})


async def live(receive: Receive, send: Send) -> None:
    """Serve the lifespan protocol: stop the engine when the server stops."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await asyncio.to_thread(stop)
    await send({"type": "lifespan.shutdown.complete"})
