"""The events of one submission as an event loop reads them, and their metrics. Part of :mod:`inference.client`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from typing import Any, Self
from uuid import uuid4

from prometheus_client import Histogram

from inference.engine.messages import (
    TERMINAL_EVENTS,
    Event,
    FailedEvent,
    FinishedEvent,
    Request,
    Timings,
    TokensEvent,
    Usage,
)
from inference.metrics import (
    CACHED_TOKENS,
    E2E_LATENCY,
    FAILURES,
    GENERATION_TOKENS,
    INTER_TOKEN_LATENCY,
    PROMPT_TOKENS,
    QUEUE_TIME,
    REQUEST_GENERATION_TOKENS,
    REQUEST_PROMPT_TOKENS,
    SUCCESSES,
    TIME_TO_FIRST_TOKEN,
)

SPARE_EVENTS = 64  # beyond one event per token: prompt logprobs and terminal events
MAX_EVENTS = 16_384  # in any case: with 20 alternatives to each token that is some 40 MB
SLOW_READER = "slow_reader"


class LocalEventStream:
    """An async iterator of events for the event loop that created it.

    The buffer holds ``max_events`` (one per token) and some more, at most MAX_EVENTS. A reader that is further behind
    is disconnected with a FailedEvent (code SLOW_READER) per open sequence. :meth:`close` cancels running sequences and
    may be called from any thread, any number of times. Only the owning loop uses the buffer, so there is no lock.
    """

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        model: str,
        indices: Iterable[int],
        cancel: Callable[[str], None],
        max_events: int,
    ) -> None:
        self.id = uuid4().hex
        self.loop = loop
        self.model = model
        self._cancel = cancel
        self._max_events = min(max_events + SPARE_EVENTS, MAX_EVENTS)
        self._unread = set(indices)  # sequences whose terminal event the reader has not seen
        self._running = set(self._unread)  # sequences whose terminal event has not arrived
        self._buffer: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._meter = StreamMeter(model)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._buffer:
            if self._closed or not self._unread:
                raise StopAsyncIteration
            await self._wait()
        event = self._buffer.popleft()
        if isinstance(event, TERMINAL_EVENTS):
            self._unread.discard(event.index)
        return event

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("An event stream can only have one reader, and another one is waiting.")
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def deliver(self, events: Iterable[Event]) -> None:
        """Add the events of one engine step; called in the owning loop."""
        now = time.monotonic()
        for event in events:
            if event.index in self._running:
                self._meter.note(event, now)
                self._take(event)
        self._wake()

    def close(self) -> None:
        """Cancel running sequences and end the iteration. Idempotent, callable from any thread."""
        if self._closed:
            return
        self._closed = True
        if self._running:
            self._cancel(self.id)
        post(self.loop, self._drop)

    def move_to(self, cancel: Callable[[str], None]) -> None:
        """Set what cancels the sequences: another engine has them now."""
        self._cancel = cancel

    @property
    def is_closed(self) -> bool:
        return self._closed

    def _take(self, event: Event) -> None:
        if self._closed:
            return
        if isinstance(event, TERMINAL_EVENTS):
            self._running.discard(event.index)
        elif len(self._buffer) >= self._max_events:
            self._cut()
            return
        self._buffer.append(event)

    def _cut(self) -> None:
        """Keep the buffered events and fail the running sequences, because the reader is too far behind."""
        self._cancel(self.id)
        message = (
            f"The reader was more than {self._max_events} events behind and was disconnected; read the stream faster."
        )
        for index in sorted(self._running):
            self._buffer.append(FailedEvent(index, SLOW_READER, message, Usage(), Timings()))
            self._meter.note_failure(SLOW_READER)
        self._running.clear()

    def _drop(self) -> None:
        self._buffer.clear()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class RelayedStream(LocalEventStream):
    """A stream whose events go on to another process, which buffers and counts them. ``relay`` gets them in the
    owning loop.
    """

    def __init__(self, *, relay: Callable[[list[Event]], None], **options: Any) -> None:
        super().__init__(**options)
        self._relay = relay

    def deliver(self, events: Iterable[Event]) -> None:
        if not self._closed:
            fresh = [event for event in events if event.index in self._running]
            self._running.difference_update(event.index for event in fresh if isinstance(event, TERMINAL_EVENTS))
            self._relay(fresh)


# Makes the streams of submissions; a process that submits for another one sets it for its task.
STREAM_FACTORY: ContextVar[Callable[..., LocalEventStream]] = ContextVar("STREAM_FACTORY", default=LocalEventStream)


class OpenStreams:
    """The streams of a client with sequences that are queued or running. Thread-safe."""

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._lock = threading.Lock()
        self._streams: dict[str, LocalEventStream] = {}  # by id
        self._num_sequences = 0
        self._requests: dict[str, dict[int, Request]] = {}  # without a terminal event, by index, of each stream

    def open(self, requests: Sequence[Request]) -> LocalEventStream:
        """Return the stream for the events of ``requests``, which are submitted next. Called in its event loop."""
        stream = STREAM_FACTORY.get()(
            loop=asyncio.get_running_loop(),
            model=requests[0].model,
            indices=(request.index for request in requests),
            cancel=self._cancel,
            max_events=sum(request.max_events for request in requests),
        )
        with self._lock:
            self._add(stream, requests)
        return stream

    @property
    def num_sequences(self) -> int:
        """The number of sequences that are queued or running, those of submissions in progress included."""
        return self._num_sequences

    def __contains__(self, stream_id: str) -> bool:
        return stream_id in self._streams

    def forget(self, stream: LocalEventStream) -> None:
        """Remove a stream whose requests were refused."""
        with self._lock:
            self._end(stream, list(self._requests.get(stream.id, ())))

    def ids(self) -> list[str]:
        """Return the ids of the streams."""
        with self._lock:
            return list(self._streams)

    def is_busy(self, model: str) -> bool:
        """Return whether sequences of ``model`` are queued or running."""
        with self._lock:
            return any(stream.model == model for stream in self._streams.values())

    def publish(self, events: Sequence[tuple[object, Event]]) -> None:
        """Hand one step's events to their event loops: one wake-up each. Never raises.

        The streams of a loop that is closed are cancelled, because nobody reads them.
        """
        by_loop: dict[asyncio.AbstractEventLoop, dict[LocalEventStream, list[Event]]] = {}
        for stream_id, event in events:
            assert isinstance(stream_id, str)
            stream = self._streams.get(stream_id)
            if stream is None:
                continue
            by_loop.setdefault(stream.loop, {}).setdefault(stream, []).append(event)
            if isinstance(event, TERMINAL_EVENTS):
                with self._lock:
                    self._end(stream, [event.index])
        for loop, by_stream in by_loop.items():
            if not post(loop, _deliver, by_stream):
                for stream in by_stream:
                    self._cancel(stream.id)

    def fail_all(self, code: str, message: str, *, besides: Collection[str] = ()) -> None:
        """Fail every sequence that has had no terminal event, but not those of the streams ``besides``."""
        with self._lock:
            failures = [
                (stream_id, FailedEvent.before_start(request, code, message))
                for stream_id, requests in self._requests.items()
                if stream_id not in besides
                for request in requests.values()
            ]
        self.publish(failures)

    def _add(self, stream: LocalEventStream, requests: Sequence[Request]) -> None:
        """Add a stream. Called with the lock held."""
        self._streams[stream.id] = stream
        self._requests[stream.id] = {request.index: request for request in requests}
        self._num_sequences += len(self._requests[stream.id])

    def _end(self, stream: LocalEventStream, indices: Iterable[int]) -> None:
        """Remove sequences, and the stream after its last one. Called with the lock held."""
        requests = self._requests.get(stream.id, {})
        for index in indices:
            self._num_sequences -= requests.pop(index, None) is not None
        if not requests:
            self._requests.pop(stream.id, None)
            self._streams.pop(stream.id, None)


def _deliver(by_stream: dict[LocalEventStream, list[Event]]) -> None:
    for stream, events in by_stream.items():
        stream.deliver(events)


def post(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: object) -> bool:
    """Call ``call_soon_threadsafe``. Return False if the loop is closed, even if it is closed during the call."""
    try:
        loop.call_soon_threadsafe(callback, *args)
    except RuntimeError:  # "Event loop is closed"
        return False
    return True


class StreamMeter:
    """Counts the events of one stream. Used by the event loop that reads the stream."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._gaps = _gaps_of(model)
        self._token_at: dict[int, float] = {}  # by sequence: time of its last token

    def note(self, event: Event, now: float) -> None:
        """Count an event. ``now``: seconds of a monotonic clock."""
        if isinstance(event, TokensEvent):
            before = self._token_at.get(event.index)
            if before is not None:
                self._gaps.observe(now - before)
            self._token_at[event.index] = now
        elif isinstance(event, FinishedEvent):
            SUCCESSES.labels(self._model, event.reason).inc()
            self._note_end(event)
        elif isinstance(event, FailedEvent):
            self.note_failure(event.code)
            self._note_end(event)

    def note_failure(self, code: str) -> None:
        FAILURES.labels(self._model, code).inc()

    def _note_end(self, event: FinishedEvent | FailedEvent) -> None:
        model, usage, timings = self._model, event.usage, event.timings
        PROMPT_TOKENS.labels(model).inc(usage.prompt_tokens)
        CACHED_TOKENS.labels(model).inc(usage.cached_tokens)
        GENERATION_TOKENS.labels(model).inc(usage.completion_tokens)
        REQUEST_PROMPT_TOKENS.labels(model).observe(usage.prompt_tokens)
        REQUEST_GENERATION_TOKENS.labels(model).observe(usage.completion_tokens)
        if timings.first_token_s is not None:
            TIME_TO_FIRST_TOKEN.labels(model).observe(timings.first_token_s)
        if timings.total_s > 0:  # not for a sequence that never reached the engine
            QUEUE_TIME.labels(model).observe(timings.queue_s)
            E2E_LATENCY.labels(model).observe(timings.total_s)


@cache
def _gaps_of(model: str) -> Histogram:
    """Return the histogram of a model. Cached: there are few loaded models."""
    return INTER_TOKEN_LATENCY.labels(model)
