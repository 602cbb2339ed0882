"""WebSocket mode of /v1/responses: a connection on which a client creates one response after the other.

A message ``{"type": "response.create", ...}`` has the fields of ``POST /v1/responses``, and the events of the stream
come back as messages. Each message runs as a request of its own through the whole API, so keys, limits, the request log
and errors are those of HTTP. A response with ``store: false`` can be continued on its connection: the last one is kept
in memory.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import MillmError
from openai_api.http.errors import invalid, openai_error

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = frozenset({"/v1/responses", "/openai/v1/responses"})
MAX_PENDING = 8  # messages that wait for the response before them
MAX_S = 3600.0  # as OpenAI's: an hour for a connection
IDLE_S = 600.0
POLL_S = 1.0
NORMAL, GOING_AWAY, POLICY = 1000, 1001, 1008
_OF_THE_HANDSHAKE = (b"connection", b"upgrade", b"content-", b"accept", b"transfer-encoding", b"sec-websocket-")


@dataclass(slots=True)
class Kept:
    """What continues a response that was not stored: ``items`` after those of the stored response ``base``."""

    id: str
    items: list[Any]
    base: str | None


@dataclass(slots=True)
class Turn:
    """One message. ``asked`` is the id that it continues; ``body`` is that of the request that runs."""

    body: dict[str, Any]
    asked: str | None = None
    is_stored: bool = True
    status: int = 200
    is_stream: bool = False
    rest: bytes = b""  # received, but not a whole event yet
    response: dict[str, Any] | None = None  # as the last event had it


class TooManyError(Exception):
    """More messages wait than a connection may send ahead."""


@dataclass(slots=True, eq=False)
class ResponsesSocket:
    """One connection. ``api`` serves HTTP; ``is_draining`` says whether the server is about to stop."""

    api: Application
    is_draining: Callable[[], bool]
    max_s: float = MAX_S
    idle_s: float = IDLE_S
    _kept: Kept | None = None
    _pending: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(MAX_PENDING))
    _closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        await send({"type": "websocket.accept"})
        reader = asyncio.create_task(self._read(receive))
        turns = asyncio.create_task(self._run_turns(scope, send))
        try:
            await asyncio.wait({reader, turns}, return_when=asyncio.FIRST_COMPLETED)
            if turns.done():
                await send({"type": "websocket.close", "code": turns.result()})
            elif isinstance(reader.exception(), TooManyError):
                await send({"type": "websocket.close", "code": POLICY})
        finally:
            self._closed.set()  # ends a response that is being generated, as when a client of HTTP disconnects
            reader.cancel()
            await asyncio.gather(reader, turns, return_exceptions=True)

    async def _read(self, receive: Receive) -> None:
        """Queue messages until the client disconnects. Raise TooManyError."""
        while (message := await receive())["type"] != "websocket.disconnect":
            try:
                self._pending.put_nowait(message.get("text") or "")
            except asyncio.QueueFull:
                raise TooManyError from None

    async def _run_turns(self, scope: Scope, send: Send) -> int:
        """Run one message after the other, and return the code with which the connection ends."""
        ends_at = time.monotonic() + self.max_s
        while not self._closed.is_set():
            text, code = await self._next(ends_at)
            if text is None:
                if code == POLICY:
                    message = "The connection was open for an hour, which is the limit. Open another one."
                    await _send_error(send, 400, invalid(message, code="websocket_connection_limit_reached"))
                return code
            try:
                turn = self._turn(text)
            except MillmError as error:
                await _send_error(send, error.status, error)
                continue
            await self._run(turn, scope, send)
        return NORMAL

    async def _next(self, ends_at: float) -> tuple[str | None, int]:
        """Return the next message, or None and the code with which the connection ends."""
        idle_until = time.monotonic() + self.idle_s
        while True:
            now = time.monotonic()
            if now >= ends_at:
                return None, POLICY
            if self.is_draining():
                return None, GOING_AWAY
            if now >= idle_until:
                return None, NORMAL
            try:
                return await asyncio.wait_for(self._pending.get(), min(POLL_S, ends_at - now)), NORMAL
            except TimeoutError:
                continue

    def _turn(self, text: str) -> Turn:
        """Read a message. Raise MillmError."""
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            raise invalid("The message is not valid JSON.", code="invalid_json") from None
        if not isinstance(body, dict) or body.pop("type", None) != "response.create":
            raise invalid('`type` must be "response.create".', param="type", code="invalid_event_type")
        for name in ("background", "stream_id"):
            if body.get(name):
                raise invalid(f"`{name}` is not supported over WebSocket.", param=name, code="unsupported_parameter")
        if body.get("generate") is False:
            message = "`generate: false` is not supported: prefixes of earlier requests are reused without it."
            raise invalid(message, param="generate", code="unsupported_parameter")
        for name in ("background", "stream_id", "generate"):
            body.pop(name, None)
        asked = body.get("previous_response_id")
        turn = Turn({**body, "stream": True}, asked, is_stored=body.get("store") is not False)
        if self._kept is not None and asked == self._kept.id:
            turn.body["previous_response_id"] = self._kept.base
            turn.body["input"] = [*self._kept.items, *_items(body.get("input"))]
        return turn

    async def _run(self, turn: Turn, scope: Scope, send: Send) -> None:
        """Run a message as a request, and keep what continues its response."""
        data = json.dumps(turn.body).encode()
        headers = [(name, value) for name, value in scope["headers"] if not name.startswith(_OF_THE_HANDSHAKE)]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        scheme = "https" if scope.get("scheme") in {"wss", "https"} else "http"
        request = {**scope, "type": "http", "method": "POST", "scheme": scheme, "headers": headers}
        request.pop("subprotocols", None)
        is_read = False

        async def receive() -> Message:
            nonlocal is_read
            if not is_read:
                is_read = True
                return {"type": "http.request", "body": data, "more_body": False}
            await self._closed.wait()
            return {"type": "http.disconnect"}

        async def forward(message: Message) -> None:
            await _forward(message, turn, send)

        await self.api(request, receive, forward)
        self._keep(turn)

    def _keep(self, turn: Turn) -> None:
        """Keep the response for the next message, if it was not stored. Only the last one, and none after a failure."""
        body = turn.response or {}
        self._kept = None
        if not turn.is_stored and body.get("status") in {"completed", "incomplete"}:
            items = [*_items(turn.body.get("input")), *body.get("output", ())]
            self._kept = Kept(body["id"], items, turn.body.get("previous_response_id"))


def _items(value: Any) -> list[Any]:
    """Return an input as items."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [{"type": "message", "role": "user", "content": value}]


async def _forward(message: Message, turn: Turn, send: Send) -> None:
    """Send what a message of an HTTP response means to the client: each event of a stream, or an error."""
    if message["type"] == "http.response.start":
        turn.status = message["status"]
        kinds = [value for name, value in message["headers"] if name.lower() == b"content-type"]
        turn.is_stream = any(value.startswith(b"text/event-stream") for value in kinds)
        return
    turn.rest += message.get("body", b"")
    if turn.is_stream:
        *events, turn.rest = turn.rest.split(b"\n\n")
        for event in events:
            if (text := _data(event, turn)) is not None:
                await send({"type": "websocket.send", "text": text})
    elif not message.get("more_body", False):
        await send({"type": "websocket.send", "text": json.dumps(_error(turn.status, turn.rest))})


def _data(event: bytes, turn: Turn) -> str | None:
    """Return the data of an event, with the id that the client continues; None for comments and the end."""
    lines = [line.removeprefix(b"data: ") for line in event.split(b"\n") if line.startswith(b"data: ")]
    if not lines or lines == [b"[DONE]"]:
        return None
    text = b"\n".join(lines).decode()
    if '"response":' not in text:
        return text
    body = json.loads(text)
    if isinstance(response := body.get("response"), dict):
        turn.response = response
        response["previous_response_id"] = turn.asked
    return json.dumps(body, ensure_ascii=False)


def _error(status: int, body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": "The request failed.", "type": "server_error", "param": None, "code": None}
    return {"type": "error", "status": status, "error": error}


async def _send_error(send: Send, status: int, error: MillmError) -> None:
    text = json.dumps({"type": "error", "status": status, **openai_error(error)})
    await send({"type": "websocket.send", "text": text})
