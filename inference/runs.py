"""Run sequences in the engine to their end: the only way to generate, score, embed or capture.

A :class:`Run` submits its requests, waits while the queue is full, and yields their events. It raises
SequenceFailedError if a sequence fails, is cancelled by the engine, or was not steered as compiled.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Self

from django.conf import settings

from inference.client import (
    EmbeddingEvent,
    EngineClient,
    EngineError,
    Event,
    EventStream,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    QueueFullError,
    Request,
)

JOB_PRIORITY = -100  # with MILLM_SCHEDULER_POLICY=priority, requests of clients come first
SMALLEST_BATCH = 16  # the default of a CPU
MAX_PAUSE_S = 1.0  # between attempts to submit while the queue is full


# Codes of failures with a status other than 500: status, Retry-After and the field that caused it.
_FAILURES: dict[str, tuple[int, float | None, str | None]] = {
    "engine_shutdown": (503, 5.0, None),
    "model_unloaded": (503, 1.0, None),
    "out_of_memory": (503, 10.0, None),
    "reading_too_large": (400, None, "return_activations"),
    "no_token_allowed": (400, None, None),
    "grammar_failed": (400, None, None),
    "sae_mismatch": (409, None, "profile"),
    "model_not_differentiable": (400, None, "model"),
    "not_finite": (400, None, None),
}


class SequenceFailedError(EngineError):
    """A sequence failed, was cancelled, or was not steered as compiled. ``code`` is the engine's."""

    retry_after_s = None

    def __init__(self, code: str, message: str) -> None:
        status, retry_after_s, param = _FAILURES.get(code, (500, None, None))
        can_retry = code == "server_error" if status == 500 else None
        super().__init__(
            message, status=status, code=code, param=param, retry_after_s=retry_after_s, can_retry=can_retry
        )


def batch_size(client: EngineClient) -> int:
    """Return how many sequences of a model run at once on one engine: ``MILLM_MAX_BATCH_SIZE``, or what the loaded
    models' devices allow.
    """
    chosen = max((each.limits.max_batch_size for each in client.stats().by_model), default=0)
    return int(settings.MILLM_MAX_BATCH_SIZE) or chosen or SMALLEST_BATCH


def total_batch_size(client: EngineClient) -> int:
    """Return how many sequences of a model run at once on all engines together."""
    return batch_size(client) * max((each.replicas for each in client.stats().by_model), default=1)


class Run:
    """Sequences of one model and their events, as an async iterator.

    Nothing is submitted before :meth:`start`, which ``async with`` and :meth:`collect` call. ``group_size`` requests
    are submitted together, all by default; the next group follows when one has ended. If the queue is full, the first
    group is refused with QueueFullError, unless the run ``waits``; later groups always wait. With ``halves``, a waiting
    group is split until a part is accepted. ``observe`` is called with every event, also with one that raises. Failures
    with a code in ``tolerated`` are events like others.
    """

    def __init__(
        self,
        client: EngineClient,
        requests: Sequence[Request],
        *,
        group_size: int | None = None,
        waits: bool = False,
        halves: bool = False,
        tolerated: Collection[str] = (),
        observe: Callable[[Event], None] | None = None,
    ) -> None:
        self._client = client
        self._requests = {request.index: request for request in requests}
        self._pending = list(requests)
        self._unfinished = set(self._requests)
        self._group_size = group_size or len(requests)
        self._waits = waits
        self._halves = halves
        self._tolerated = tolerated
        self._observe = observe
        self._stream: EventStream | None = None
        self._closed = threading.Event()

    async def start(self) -> None:
        """Submit the first group. Raise QueueFullError, EngineDownError or ModelNotAttachedError."""
        if self._pending:
            await self._submit(waits=self._waits)

    async def collect(self) -> list[list[Event]]:
        """Run to the end and return the events of each request, in the order of the requests."""
        events: dict[int, list[Event]] = {index: [] for index in self._requests}
        async with self:
            async for event in self:
                events[event.index].append(event)
        if self._unfinished:
            raise _ended_early()
        return list(events.values())

    def close(self) -> None:
        """Cancel running sequences, and submit no more. Idempotent, callable from any thread."""
        self._closed.set()
        if self._stream is not None:
            self._stream.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Return the next event. It may be abandoned by a timeout and called again."""
        while self._stream is not None:
            try:
                event = await anext(self._stream)
            except StopAsyncIteration:
                if self._closed.is_set() or not self._unfinished:
                    raise
                if not self._pending:
                    raise _ended_early() from None
            else:
                self._check(event)
                return event
            await self._submit(waits=True)
        raise StopAsyncIteration

    async def _submit(self, *, waits: bool) -> None:
        size = self._group_size
        while not self._closed.is_set():
            group = self._pending[:size]
            try:
                stream = await self._client.submit(group)
            except QueueFullError as error:
                if not waits:
                    raise
                if self._halves and size > 1:
                    size //= 2
                else:
                    await asyncio.sleep(min(error.retry_after_s, MAX_PAUSE_S))
            else:
                self._stream = stream
                del self._pending[: len(group)]
                if self._closed.is_set():  # meanwhile, by another thread
                    stream.close()
                return

    def _check(self, event: Event) -> None:
        """Note the event. Raise SequenceFailedError if it breaks a rule."""
        if self._observe is not None:
            self._observe(event)
        match event:
            case FailedEvent():
                self._unfinished.discard(event.index)
                if event.code not in self._tolerated:
                    raise SequenceFailedError(event.code, event.message)
            case FinishedEvent():
                self._unfinished.discard(event.index)
                if event.reason == "cancelled":
                    raise SequenceFailedError("engine_shutdown", "The engine cancelled the request.")
                if not _is_steered(self._requests[event.index], event):
                    message = "The profile was not applied as compiled; the output was withheld."
                    raise SequenceFailedError("steering_not_applied", message)


def vectors_of(collected: Iterable[Iterable[Event]]) -> list[bytes]:
    """Return the vectors among the events of :meth:`Run.collect`, one for each text."""
    return [event.values for events in collected for event in events if isinstance(event, EmbeddingEvent)]


def _is_steered(request: Request, event: FinishedEvent) -> bool:
    """Return whether the request's steering was applied exactly as compiled, at every expected site."""
    if not isinstance(request, GenerationRequest) or request.fingerprint is None:
        return True
    receipt = event.receipt
    if receipt is None or receipt.fingerprint != request.fingerprint:
        return False
    return receipt.applied == receipt.expected


def _ended_early() -> SequenceFailedError:
    return SequenceFailedError("engine_shutdown", "The engine ended the request early.")
