"""The interface to the engine: submit requests, read their events, and cancel them by the id of the stream.

The engine thread of this process is one implementation of :class:`EngineClient`. A remote one could follow, because
only requests, events and ids cross this interface, all of them plain data. Most callers need an
:class:`inference.runs.Run`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from core.runtime import Service, runtime
from inference.analyses import AttributionEvent, AttributionRequest, LensEvent, LensRequest
from inference.captures import CaptureSpec, Projections, Residuals
from inference.engine.config import EngineConfig
from inference.engine.errors import (
    EngineDownError,
    EngineError,
    ModelNotAttachedError,
    NotEnoughMemoryError,
    QueueFullError,
)
from inference.engine.messages import (
    BACKGROUND_PRIORITY,
    TERMINAL_EVENTS,
    CaptureEvent,
    DivergenceEvent,
    EmbeddingEvent,
    EmbeddingRequest,
    Event,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    PromptLogprobsEvent,
    Request,
    SamplingParams,
    ScoresEvent,
    Scoring,
    SiteEffect,
    SteeringReceipt,
    ThinkingBudget,
    Timings,
    TokenLogprob,
    TokensEvent,
    Usage,
)
from inference.engine.stats import Distribution, EngineState, EngineStats, ModelStats
from inference.event_stream import MAX_EVENTS, SPARE_EVENTS, LocalEventStream, post
from inference.interventions import FeatureDecoder
from inference.steering_refs import STEERING_COMPILER, CompiledSteering, SAERef, SteeringRef, SteeringSpec

__all__ = [
    "BACKGROUND_PRIORITY",
    "ENGINE_CLIENT",
    "MAX_EVENTS",
    "SPARE_EVENTS",
    "AttributionEvent",
    "AttributionRequest",
    "CaptureEvent",
    "Distribution",
    "DivergenceEvent",
    "EmbeddingEvent",
    "EmbeddingRequest",
    "EngineClient",
    "EngineDownError",
    "EngineError",
    "EngineState",
    "EngineStats",
    "Event",
    "EventStream",
    "FailedEvent",
    "FinishedEvent",
    "GenerationRequest",
    "LensEvent",
    "LensRequest",
    "LocalEngineClient",
    "ModelNotAttachedError",
    "ModelStats",
    "NotEnoughMemoryError",
    "PromptLogprobsEvent",
    "QueueFullError",
    "Request",
    "SamplingParams",
    "ScoresEvent",
    "Scoring",
    "SiteEffect",
    "SteeringReceipt",
    "ThinkingBudget",
    "Timings",
    "TokenLogprob",
    "TokensEvent",
    "Usage",
    "get_client",
]

Publish = Callable[[list[tuple[object, Event]]], None]


class EventStream(Protocol):
    """Events of the sequences submitted together, in order per index; ends after each has had a terminal event."""

    @property
    def id(self) -> str:
        """The id of the sequences in the engine; see :meth:`EngineClient.cancel`."""

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def __anext__(self) -> Event: ...

    def close(self) -> None:
        """Cancel the sequences that are still running. Idempotent, callable from any thread."""


class EngineClient(Protocol):
    async def submit(self, requests: Sequence[Request]) -> EventStream:
        """Accept all requests, of one model and one type, or none.

        Raise EngineDownError, ModelNotAttachedError or QueueFullError, and what :meth:`compile` raises. Nothing runs on
        when the call is cancelled.
        """

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        """Compile steering for later requests, at once if it is compiled already.

        Raise MillmError if it cannot be compiled, such as SAEUnavailableError.
        """

    def cancel(self, stream_id: str) -> None:
        """Cancel a stream's sequences. Idempotent, callable from any thread; unknown ids are ignored."""

    def stats(self) -> EngineStats: ...

    def settings(self) -> dict[str, object]:
        """The engine's settings in effect, by the names of EngineConfig."""

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, let running ones finish for ``drain_s``, fail the rest, end the thread."""


class RunningLoop(Protocol):
    """The part of the engine's loop that the client uses."""

    @property
    def config(self) -> EngineConfig: ...

    def start(self) -> None: ...

    def submit(self, requests: Sequence[Request], sink: object) -> None: ...

    def cancel(self, sink: object) -> None: ...

    def stats(self) -> EngineStats: ...

    def stop(self, drain_s: float) -> None: ...


L = TypeVar("L", bound=RunningLoop)


class LocalEngineClient(Generic[L]):
    """The engine in this process. ``make_loop`` receives the function through which the loop publishes events."""

    def __init__(self, make_loop: Callable[[Publish], L]) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, LocalEventStream] = {}  # with sequences that are queued or running, by id
        self._num_open: Counter[str] = Counter()  # their sequences, by the stream's id
        self._sequences: Counter[str] = Counter()  # queued or running, by model
        self.engine = make_loop(self.publish)

    async def submit(self, requests: Sequence[Request]) -> LocalEventStream:
        """Accept all requests or none. See :class:`EngineClient`."""
        requests = [await _with_weights(request) for request in requests]
        stream = LocalEventStream(
            loop=asyncio.get_running_loop(),
            model=requests[0].model,
            indices=(request.index for request in requests),
            cancel=self.cancel,
            max_events=sum(request.max_events for request in requests),
        )
        with self._lock:
            self._streams[stream.id] = stream
        self._count(stream, len(requests))
        try:
            self.engine.submit(requests, stream.id)
        except BaseException:
            self._count(stream, -len(requests))
            raise
        return stream

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        return await compile_steering(steering)

    def cancel(self, stream_id: str) -> None:
        self.engine.cancel(stream_id)

    def publish(self, events: list[tuple[object, Event]]) -> None:
        """Hand one step's events to their event loops: one wake-up each. Called on the engine thread, never raises."""
        by_loop: dict[asyncio.AbstractEventLoop, dict[LocalEventStream, list[Event]]] = {}
        for stream_id, event in events:
            assert isinstance(stream_id, str)
            stream = self._streams.get(stream_id)
            if stream is None:
                continue
            by_loop.setdefault(stream.loop, {}).setdefault(stream, []).append(event)
            if isinstance(event, TERMINAL_EVENTS):
                self._count(stream, -1)
        for loop, by_stream in by_loop.items():
            if not post(loop, _deliver, by_stream):
                self._abandon(by_stream)

    def is_busy(self, model: str) -> bool:
        """Return whether sequences of ``model`` are queued or running."""
        with self._lock:
            return self._sequences[model] > 0

    def kv_unwritten(self, model: str) -> int:
        """Return the bytes of KV cache that a model has not allocated yet; 0 if it is not attached."""
        return sum(each.kv_unwritten_bytes for each in self.stats().by_model if each.name == model)

    def start(self) -> None:
        self.engine.start()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def settings(self) -> dict[str, object]:
        return dataclasses.asdict(self.engine.config)

    def stop(self, drain_s: float) -> None:
        self.engine.stop(drain_s)

    def _abandon(self, streams: Iterable[LocalEventStream]) -> None:
        """Cancel streams whose event loop is closed, because nobody reads them."""
        for stream in streams:
            self.cancel(stream.id)

    def _count(self, stream: LocalEventStream, change: int) -> None:
        """Count sequences, and forget the stream after its last one."""
        with self._lock:
            self._sequences[stream.model] += change
            self._num_open[stream.id] += change
            if self._num_open[stream.id] == 0:
                del self._num_open[stream.id], self._streams[stream.id]


def _deliver(by_stream: dict[LocalEventStream, list[Event]]) -> None:
    for stream, events in by_stream.items():
        stream.deliver(events)


async def compile_steering(spec: SteeringSpec) -> SteeringRef:
    """Compile steering in this process. See :meth:`EngineClient.compile`."""
    return (await _compiled(spec)).ref


async def _compiled(spec: SteeringSpec) -> CompiledSteering:
    compiler = runtime.get(STEERING_COMPILER)
    found = compiler.find(spec)
    return await asyncio.to_thread(compiler.compile, spec) if found is None else found


async def _with_weights(request: Request) -> Request:
    """Return the request with the weights that it names."""
    if isinstance(request, EmbeddingRequest | LensRequest):
        return request
    if isinstance(request, AttributionRequest):
        if isinstance(request.reader, SAERef):
            request = dataclasses.replace(request, reader=await _loaded_reader(request.reader))
        return request
    if request.steering is not None and request.intervention is None:
        compiled = await _compiled(request.steering.spec)
        request = dataclasses.replace(request, intervention=compiled.intervention)
    if request.captures:
        captures = tuple([await _with_reader(capture) for capture in request.captures])
        request = dataclasses.replace(request, captures=captures)
    return request


async def _with_reader(capture: CaptureSpec) -> CaptureSpec:
    probe = capture.probe
    if isinstance(probe, Residuals | Projections) or not isinstance(probe.reader, SAERef):
        return capture
    reader = await _loaded_reader(probe.reader)
    return dataclasses.replace(capture, probe=dataclasses.replace(probe, reader=reader))


async def _loaded_reader(ref: SAERef) -> FeatureDecoder:
    compiler = runtime.get(STEERING_COMPILER)
    reader = compiler.find_reader(ref)
    return await asyncio.to_thread(compiler.reader, ref) if reader is None else reader


def _no_engine() -> EngineClient:
    raise EngineDownError("No engine runs in this process; start the server to generate text.")


ENGINE_CLIENT = Service(_no_engine)


def get_client() -> EngineClient:
    """Return the client of this process's engine. Raise EngineDownError outside serving processes."""
    return runtime.get(ENGINE_CLIENT)
