"""Django's ASGI handler with the traps of request bodies closed, and the two protocols that Django refuses."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import IO, Any

from channels.security.websocket import AllowedHostsOriginValidator
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.http.response import HttpResponseBase

from console.live.connection import LIVE_PATH, LiveConnection
from millm_site.forwarding import with_forwarded_scheme
from millm_site.hosts import host_problem
from millm_site.refusal import Refusal, disk_full, invalid_host, refusal, too_large
from millm_site.serving import stop
from millm_site.spool import CHECK_EVERY, SCOPE_KEY, has_room, new_spool
from openai_api.errors import ApiError
from openai_api.upload_gate import upload_refusal
from openai_api.upload_paths import body_limit, takes_files

logger = logging.getLogger(__name__)
_live_application = AllowedHostsOriginValidator(LiveConnection.as_asgi())

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class BodyTooLargeError(Exception):
    """The body has more bytes than its route takes."""


class DiskFullError(Exception):
    """There is no room for the body."""


class ReceivedBody:
    """``receive`` of a request whose complete ``body`` is at hand."""

    def __init__(self, receive: Receive, body: IO[bytes]) -> None:
        self._receive = receive
        self.body = body

    async def __call__(self) -> Message:
        return await self._receive()


class SiteHandler(ASGIHandler):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
        elif scope["type"] == "websocket":
            await live_socket(scope, receive, send)
        elif problem := host_problem(scope["headers"], scope.get("http_version", "1.1")):
            logger.warning("Refused a request: %s", problem)
            await send_refusal(invalid_host(problem), send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Our own server refuses what is too large earlier; this is for the other servers."""
        limit = body_limit(scope["path"])
        body = scope.get(SCOPE_KEY)
        try:
            if declared_length(scope) > limit:
                raise BodyTooLargeError
            if body is None and (error := file_refusal(scope)) is not None:
                await send_refusal(refusal(error), send)
                return
            received = limited(receive, limit) if body is None else ReceivedBody(receive, body)
            await super().__call__(with_forwarded_scheme(scope), received, send)
        except BodyTooLargeError:
            await send_refusal(too_large(limit), send)
        except DiskFullError:
            await send_refusal(disk_full(), send)

    async def read_body(self, receive: Receive) -> IO[bytes]:
        if isinstance(receive, ReceivedBody):
            await receive()  # its empty message
            return receive.body
        return await spooled(receive)

    def create_request(
        self, scope: Message, body_file: IO[bytes]
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponseBase]:
        return super().create_request(with_length(dict(scope), body_file), body_file)


def file_refusal(scope: Scope) -> ApiError | None:
    """Why a file is not received, if it is one; our own server has asked before."""
    if not takes_files(scope["path"]) or scope["method"] != "POST":
        return None
    peer = scope.get("client")
    return upload_refusal(scope["headers"], peer[0] if peer else "")


async def spooled(receive: Receive) -> IO[bytes]:
    """The body that comes in messages; raises RequestAborted and DiskFullError."""
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
    """The Content-Length; 0 where there is none, or none that is a number."""
    value = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(value) if value.isdigit() and len(value) < 20 else 0


def with_length(scope: Scope, body_file: IO[bytes]) -> Scope:
    """A chunked body has no Content-Length, and without one Django's and DRF's parsers take it for empty."""
    if any(name == b"content-length" for name, _ in scope["headers"]):
        return scope
    size = body_file.seek(0, os.SEEK_END)
    body_file.seek(0)
    if size == 0:
        return scope
    return {**scope, "headers": [*scope["headers"], (b"content-length", str(size).encode())]}


def limited(receive: Receive, limit: int) -> Receive:
    """``receive``, raising BodyTooLargeError as soon as more than ``limit`` bytes have come."""
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


async def live_socket(scope: Scope, receive: Receive, send: Send) -> None:
    """The console's connection, from pages of this site; other WebSockets are refused."""
    if scope["path"] == LIVE_PATH:
        await _live_application(with_forwarded_scheme(scope), receive, send)
    else:
        await receive()
        await send({"type": "websocket.close"})


async def live(receive: Receive, send: Send) -> None:
    """The lifespan protocol, for the servers that speak it: stop the engine when the server stops."""
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await asyncio.to_thread(stop)
    await send({"type": "lifespan.shutdown.complete"})
