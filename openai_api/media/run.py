"""A task of the media worker as an HTTP response: collected, or streamed as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import wraps
from typing import Any

from django.http import StreamingHttpResponse
from django.http.response import HttpResponseBase

from core.errors import MillmError
from core.runtime import runtime
from media.backend import MEDIA_CLIENT
from media.client import MediaTask
from media.messages import Done, Event, Task
from openai_api.backend import get_backend
from openai_api.generation.reply import begun, streamed
from openai_api.http.call import Call
from openai_api.http.endpoint import Handler
from openai_api.http.errors import client_error, openai_error, timed_out
from openai_api.http.sse import DONE, PING, EventSource, data_event


def needs_media(handler: Handler) -> Handler:
    """Return the handler behind a check that the packages for media are installed."""

    @wraps(handler)
    async def checked(call: Call, **values: Any) -> HttpResponseBase:
        runtime.get(MEDIA_CLIENT)  # raises MillmError 501
        return await handler(call, **values)

    return checked


class MediaRun:
    """Read the events of a task. :meth:`close` stops it, and deletes the request's files; from any thread.

    ``units`` turns the task's result into what the log and the key's limits count, such as seconds of audio.
    """

    def __init__(
        self, call: Call, task: Task, *, files: ExitStack | None = None, units: Callable[[Any], dict[str, float]]
    ) -> None:
        self.call = call
        self._files = files or ExitStack()
        self._units = units
        self._pending: Event | None = None
        self.result: Any = None
        try:
            self._task: MediaTask = runtime.get(MEDIA_CLIENT).submit(task)
        except BaseException:
            self._files.close()
            raise

    @property
    def is_complete(self) -> bool:
        """Return whether all events have been read, the peeked one included."""
        return self._task.has_ended and self._pending is None

    async def peek(self) -> None:
        """Wait briefly for the first event. Raises MillmError when it is a failure."""
        self._pending = await self.next_event(get_backend().first_event_s)

    async def next_event(self, patience_s: float) -> Event | None:
        """Return the next event, or None after ``patience_s`` without one. Raises MillmError."""
        if self._pending is not None:
            event, self._pending = self._pending, None
            return event
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(min(self.call.deadline, loop.time() + patience_s)):
                event = await anext(self._task)
        except TimeoutError:
            if loop.time() >= self.call.deadline:
                raise timed_out(self.call.timeout_s, self.call.timeout_setting) from None
            return None
        if isinstance(event, Done):
            self.result = event.result
            self.call.outcome = replace(self.call.outcome, media=self._units(event.result))
        return event

    async def events(self) -> AsyncIterator[Event | None]:
        """Yield the events that come before the end, and None where a stream needs a sign of life."""
        while not self.is_complete:
            event = await self.next_event(get_backend().ping_s)
            if not isinstance(event, Done):
                yield event

    async def collect(self) -> list[Event]:
        """Return all events before the end. Raises MillmError; the task stops however this ends."""
        try:
            return [event async for event in self.events() if event is not None]
        finally:
            self.close()

    def close(self) -> None:
        self._task.cancel()
        self._files.close()


async def stream_events(run: MediaRun, chunks: AsyncGenerator[object, None]) -> HttpResponseBase:
    """Return ``chunks`` as server-sent events; None becomes a comment that keeps the connection alive.

    Raises MillmError while the HTTP status can still be set.
    """
    return await streamed(run, _framed(run, chunks))


async def _framed(run: MediaRun, chunks: AsyncGenerator[object, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in chunks:
            yield PING if chunk is None else data_event(chunk)
        yield DONE
    except Exception as error:  # noqa: BLE001 - the status is sent, so the error goes into the stream
        seen = client_error(error, run.call.id)
        run.call.refuse(seen)
        yield data_event(openai_error(seen))


async def stream_bytes(
    run: MediaRun, data: AsyncGenerator[bytes, None], *, content_type: str, headers: dict[str, str]
) -> HttpResponseBase:
    """Return ``data`` as a body without a known length. Raises MillmError while the HTTP status can still be set.

    A later failure ends the body before its last chunk, so that clients notice.
    """
    close = await begun(run)
    return StreamingHttpResponse(EventSource(_noted(run, data), close), content_type=content_type, headers=headers)


async def _noted(run: MediaRun, data: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        async for block in data:
            yield block
    except MillmError as error:
        run.call.refuse(error)
        raise
