"""WebSocket mode of /v1/responses: a connection on which a client creates responses.

A message ``{"type": "response.create", ...}`` has the fields of ``POST /v1/responses``, and the events of the stream
come back as messages. Each message runs as a request of its own through the whole API, so keys, limits, the request log
and errors are those of HTTP. Messages with the same ``stream_id``, or without one, run one after the other, in a lane;
the lanes run at the same time. A response with ``store: false`` can be continued on its connection: the last one of
each lane is kept in memory. So is one with ``generate: false``, which prepares the turn that will continue it: its
prompt is computed, and waits in the prefix cache.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from core.errors import MillmError
from openai_api import V1_ROOTS
from openai_api.http.errors import invalid, openai_error

Scope = dict[str, Any]
Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = frozenset(f"{root}/responses" for root in V1_ROOTS)
MAX_PENDING = 8  # messages of a lane that wait for the response before them
MAX_LANES = 16
MAX_STREAM_ID = 64
MAX_S = 3600.0  # as OpenAI's: an hour for a connection
IDLE_S = 600.0
POLL_S = 1.0
NORMAL, GOING_AWAY, POLICY = 1000, 1001, 1008
ENDED = frozenset({"completed", "incomplete"})
NUM_FIRST = 2  # events before those of the output: `response.created` and `response.in_progress`
STREAM_LIMIT = "websocket_stream_limit_reached"
_OF_THE_HANDSHAKE = (b"connection", b"upgrade", b"content-", b"accept", b"transfer-encoding", b"sec-websocket-")


@dataclass(slots=True)
class Kept:
    """What continues a response that was not stored: ``items`` after those of the stored response ``base``."""

    id: str
    items: list[Any]
    base: str | None


@dataclass(slots=True)
class Turn:
    """One message. ``asked`` is the id that it continues; ``body`` is that of the request that runs.

    ``generates``: False for a message that only prepares, whose output is left out.
    """

    body: dict[str, Any]
    asked: str | None = None
    stream_id: str | None = None
    is_stored: bool = True
    generates: bool = True
    status: int = 200
    is_stream: bool = False
    rest: bytes = b""  # received, but not a whole event yet
    response: dict[str, Any] | None = None  # as the last event had it


class TooManyError(Exception):
    """More messages wait than a connection may send ahead."""


@dataclass(slots=True, eq=False)
class Lane:
    """Messages that run one after the other; None ends the lane. ``kept`` is its last response, if not stored."""

    stream_id: str | None
    pending: asyncio.Queue[dict[str, Any] | MillmError | None] = field(default_factory=asyncio.Queue)
    rests: asyncio.Event = field(default_factory=asyncio.Event)  # no message of it runs
    kept: Kept | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self.rests.is_set() and self.pending.empty()


@dataclass(slots=True, eq=False)
class ResponsesSocket:
    """One connection. ``api`` serves HTTP; ``is_draining`` says whether the server is about to stop."""

    api: Application
    is_draining: Callable[[], bool]
    max_s: float = MAX_S
    idle_s: float = IDLE_S
    _lanes: dict[str | None, Lane] = field(default_factory=dict)  # by stream id, the latest message's last
    _active_at: float = field(default_factory=time.monotonic)
    _is_ending: bool = False  # no further message runs
    _closed: asyncio.Event = field(default_factory=asyncio.Event)
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()  # the handshake
        await send({"type": "websocket.accept"})

        async def send_in_turn(message: Message) -> None:
            async with self._sending:
                await send(message)

        reader = asyncio.create_task(self._read(receive, scope, send_in_turn))
        watch = asyncio.create_task(self._watch(send_in_turn))
        try:
            await asyncio.wait({reader, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                await send({"type": "websocket.close", "code": watch.result()})
            elif isinstance(reader.exception(), TooManyError):
                await send({"type": "websocket.close", "code": POLICY})
        finally:
            self._is_ending = True
            self._closed.set()  # ends responses that are being generated, as when a client of HTTP disconnects
            reader.cancel()
            watch.cancel()
            for lane in self._lanes.values():
                lane.pending.put_nowait(None)
            tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
            await asyncio.gather(reader, watch, *tasks, return_exceptions=True)

    async def _read(self, receive: Receive, scope: Scope, send: Send) -> None:
        """Queue messages until the client disconnects. Raise TooManyError."""
        while (message := await receive())["type"] != "websocket.disconnect":
            self._active_at = time.monotonic()
            stream_id: str | None = None
            found: dict[str, Any] | MillmError
            try:
                found = _body(message.get("text") or "")
                stream_id = _stream_id(found)
            except MillmError as error:
                found = error
            lane = self._lane(stream_id, scope, send)
            if lane is None:
                text = f"A connection runs at most {MAX_LANES} streams at once. Wait for one of them."
                await _send_error(send, invalid(text, param="stream_id", code=STREAM_LIMIT), stream_id)
            elif lane.pending.qsize() >= MAX_PENDING:
                raise TooManyError
            else:
                lane.pending.put_nowait(found)

    def _lane(self, stream_id: str | None, scope: Scope, send: Send) -> Lane | None:
        """Return the lane of a stream. If there are too many, forget the one that has been idle longest; return None
        if there is none.
        """
        lane = self._lanes.pop(stream_id, None)
        if lane is None:
            if len(self._lanes) >= MAX_LANES:
                idle = next((each for each in self._lanes.values() if each.is_idle), None)
                if idle is None:
                    return None
                del self._lanes[idle.stream_id]
                idle.pending.put_nowait(None)
            lane = Lane(stream_id)
            lane.rests.set()
            lane.task = asyncio.create_task(self._run_lane(lane, scope, send))
        self._lanes[stream_id] = lane
        return lane

    async def _watch(self, send: Send) -> int:
        """Return the code with which the connection ends, once it may and no message runs."""
        ends_at = time.monotonic() + self.max_s
        while (code := self._end(ends_at)) is None:
            if self._closed.is_set():  # a cancellation may be lost while the event is set
                return NORMAL
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), max(0.0, min(POLL_S, ends_at - time.monotonic())))
        self._is_ending = True
        await asyncio.gather(*(lane.rests.wait() for lane in self._lanes.values()))
        if code == POLICY:
            message = "The connection was open for an hour, which is the limit. Open another one."
            await _send_error(send, invalid(message, code="websocket_connection_limit_reached"))
        return code

    def _end(self, ends_at: float) -> int | None:
        for lane in self._lanes.values():
            if lane.task is not None and lane.task.done():
                lane.task.result()  # it failed
        now = time.monotonic()
        if now >= ends_at:
            return POLICY
        if self.is_draining():
            return GOING_AWAY
        is_idle = all(lane.is_idle for lane in self._lanes.values()) and now >= self._active_at + self.idle_s
        return NORMAL if is_idle else None

    async def _run_lane(self, lane: Lane, scope: Scope, send: Send) -> None:
        """Run the messages of a lane until it ends."""
        while (found := await lane.pending.get()) is not None:
            if self._is_ending:
                return
            lane.rests.clear()
            try:
                if isinstance(found, MillmError):
                    raise found
                turn = self._turn(found, lane)
                await self._run(turn, lane, scope, send)
            except MillmError as error:
                await _send_error(send, error, lane.stream_id)
            finally:
                self._active_at = time.monotonic()
                lane.rests.set()

    def _turn(self, body: dict[str, Any], lane: Lane) -> Turn:
        """Return what a message asks for. Raise MillmError."""
        if body.pop("type", None) != "response.create":
            raise invalid('`type` must be "response.create".', param="type", code="invalid_event_type")
        if body.get("background"):
            message = "`background` is not supported over WebSocket."
            raise invalid(message, param="background", code="unsupported_parameter")
        body.pop("background", None)
        generates = body.pop("generate", True)
        if not isinstance(generates, bool | None):
            raise invalid("`generate` must be true or false.", param="generate", code="invalid_type")
        asked = body.get("previous_response_id")
        turn = Turn({**body, "stream": True}, asked, lane.stream_id, is_stored=body.get("store") is not False)
        if generates is False:  # the smallest answer, which is left out
            turn.generates = turn.is_stored = False
            turn.body |= {"store": False, "max_output_tokens": 1}
        candidates = [each.kept for each in self._lanes.values() if each.kept is not None]
        kept = next((each for each in candidates if each.id == asked), None)
        if kept is not None:
            turn.body["previous_response_id"] = kept.base
            turn.body["input"] = [*kept.items, *_items(body.get("input"))]
        return turn

    async def _run(self, turn: Turn, lane: Lane, scope: Scope, send: Send) -> None:
        """Run a message as a request."""
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

        keep = partial(self._keep, turn, lane)

        async def forward(message: Message) -> None:
            await _forward(message, turn, keep, send)

        await self.api(request, receive, forward)
        keep()

    def _keep(self, turn: Turn, lane: Lane) -> None:
        """Keep the response for later messages, if it was not stored. Only a lane's last one, none after a failure."""
        body = turn.response or {}
        lane.kept = None
        if not turn.is_stored and body.get("status") in ENDED:
            items = [*_items(turn.body.get("input")), *body.get("output", ())]
            lane.kept = Kept(body["id"], items, turn.body.get("previous_response_id"))


def _body(text: str) -> dict[str, Any]:
    """Read a message. Raise MillmError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid("The message is not valid JSON.", code="invalid_json") from None
    if not isinstance(body, dict):
        raise invalid('`type` must be "response.create".', param="type", code="invalid_event_type")
    return body


def _stream_id(body: dict[str, Any]) -> str | None:
    """Take the stream id out of a message. Raise MillmError."""
    found = body.pop("stream_id", None)
    if found is None or (isinstance(found, str) and 0 < len(found) <= MAX_STREAM_ID):
        return found
    raise invalid(f"`stream_id` must be a string of 1 to {MAX_STREAM_ID} characters.", param="stream_id")


def _items(value: Any) -> list[Any]:
    """Return an input as items."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [{"type": "message", "role": "user", "content": value}]


async def _forward(message: Message, turn: Turn, keep: Callable[[], None], send: Send) -> None:
    """Send what a message of an HTTP response means to the client: each event of a stream, or an error.

    ``keep`` is called before the last event is sent: the client may continue the response at once, in another lane.
    """
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
                if turn.response is not None and turn.response.get("status") in ENDED:
                    keep()
                await _send_text(send, text, turn.stream_id)
    elif not message.get("more_body", False):
        await _send_text(send, json.dumps(_error(turn.status, turn.rest)), turn.stream_id)


def _data(event: bytes, turn: Turn) -> str | None:
    """Return the data of an event, with the id that the client continues; None for comments and the end."""
    lines = [line.removeprefix(b"data: ") for line in event.split(b"\n") if line.startswith(b"data: ")]
    if not lines or lines == [b"[DONE]"]:
        return None
    text = b"\n".join(lines).decode()
    if '"response":' not in text:
        return text if turn.generates else None
    body = json.loads(text)
    if isinstance(response := body.get("response"), dict):
        turn.response = response
        if not turn.generates and response.get("status") in ENDED:
            _leave_out_answer(body)
        response["previous_response_id"] = turn.asked
    return json.dumps(body, ensure_ascii=False)


def _leave_out_answer(event: dict[str, Any]) -> None:
    """Turn the last event of a message that only prepares into that of a response without output."""
    response = event["response"]
    response |= {"status": "completed", "incomplete_details": None, "output": []}
    event |= {"type": "response.completed", "sequence_number": NUM_FIRST}
    if usage := response.get("usage"):
        usage["total_tokens"] -= usage["output_tokens"]
        usage["output_tokens"] = 0


def _error(status: int, body: bytes) -> dict[str, Any]:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        error = {"message": "The request failed.", "type": "server_error", "param": None, "code": None}
    return {"type": "error", "status": status, "error": error}


async def _send_error(send: Send, error: MillmError, stream_id: str | None = None) -> None:
    text = json.dumps({"type": "error", "status": error.status, **openai_error(error)})
    await _send_text(send, text, stream_id)


async def _send_text(send: Send, text: str, stream_id: str | None) -> None:
    """Send an event, which is an object, with the id of its stream."""
    named = text if stream_id is None else f'{{"stream_id": {json.dumps(stream_id)}, {text[1:]}'
    await send({"type": "websocket.send", "text": named})
