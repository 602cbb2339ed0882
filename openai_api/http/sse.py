"""Server-sent events, and a streaming response whose end is always noticed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Self

import pydantic_core
from django.http import StreamingHttpResponse

from core.errors import MillmError
from openai_api.http.errors import openai_error

EVENT_STREAM = "text/event-stream"
PING = b": ping\n\n"
DONE = b"data: [DONE]\n\n"


def data_event(body: object) -> bytes:
    return b"data: " + pydantic_core.to_json(body) + b"\n\n"


def named_event(name: str, body: object) -> bytes:
    return b"event: " + name.encode() + b"\n" + data_event(body)


@dataclass(frozen=True, slots=True)
class Framing:
    """How an API writes its streams: events, keep-alive comments, the end, and errors."""

    event: Callable[[Any], bytes]
    ping: bytes
    done: bytes
    error: Callable[[MillmError], object]
    media_type: str = EVENT_STREAM


OPENAI = Framing(data_event, PING, DONE, openai_error)


class EventSource:
    """The body of a streamed response.

    ``on_close`` runs once: when the events end, fail or are cancelled, or when Django closes the response, in another
    thread. The latter is the only signal when a client disconnects while the stream waits.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], on_close: Callable[[], None]) -> None:
        self._events = events
        self._on_close = on_close
        self._is_open = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._is_open:
            raise StopAsyncIteration
        try:
            return await anext(self._events)
        except BaseException:
            self.close()
            raise

    async def aclose(self) -> None:
        self.close()
        await self._events.aclose()

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._on_close()

    def __del__(self) -> None:
        self.close()  # cancelled between the view and the server: no other signal arrives


def event_response(source: EventSource, media_type: str = EVENT_STREAM) -> StreamingHttpResponse:
    response = StreamingHttpResponse(source, content_type=media_type)
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    return response
