"""The interface to the engine: submit requests, read their events, and cancel them by the id of the stream.

The engine is a thread of this process (:class:`LocalEngineClient`), or one process or several
(:class:`inference.engine_process.client.ProcessEngineClient`): only requests, events and ids cross this interface, all
of them plain data. Most callers need an :class:`inference.runs.Run`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
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
from inference.engine.stats import Distribution, EngineState, EngineStats, ModelStats, ReplicaStats
from inference.event_stream import MAX_EVENTS, SPARE_EVENTS, LocalEventStream, OpenStreams
from inference.interventions import FeatureDecoder, Intervention, ReaderEdit
from inference.steering_refs import (
    STEERING_COMPILER,
    CompiledSteering,
    SAERef,
    SteeringRef,
    SteeringSpec,
    UnloadedReader,
)

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
    "ReplicaStats",
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

    def replace_processes(self) -> int:
        """Begin to replace the engine's processes by new ones, one after the other, each once its requests have
        finished. Return their number, or 0 if they cannot be replaced without a pause: there is only one.
        """

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, let running ones finish for ``drain_s``, fail the rest, end the engine."""


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
        self._streams = OpenStreams(self.cancel)
        self.engine = make_loop(self.publish)

    async def submit(self, requests: Sequence[Request]) -> LocalEventStream:
        """Accept all requests or none. See :class:`EngineClient`."""
        requests = [await with_weights(request) for request in requests]
        stream = self._streams.open(requests)
        try:
            self.engine.submit(requests, stream.id)
        except BaseException:
            self._streams.forget(stream)
            raise
        return stream

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        return (await compiled(steering)).ref

    def cancel(self, stream_id: str) -> None:
        self.engine.cancel(stream_id)

    def publish(self, events: list[tuple[object, Event]]) -> None:
        """Hand one step's events to their event loops. Called on the engine thread, never raises."""
        self._streams.publish(events)

    def is_busy(self, model: str) -> bool:
        """Return whether sequences of ``model`` are queued or running."""
        return self._streams.is_busy(model)

    def start(self) -> None:
        self.engine.start()

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def settings(self) -> dict[str, object]:
        return dataclasses.asdict(self.engine.config)

    def replace_processes(self) -> int:
        return 0

    def stop(self, drain_s: float) -> None:
        self.engine.stop(drain_s)


async def compiled(spec: SteeringSpec) -> CompiledSteering:
    """Compile steering in this process, at once if it is compiled already. See :meth:`EngineClient.compile`."""
    compiler = runtime.get(STEERING_COMPILER)
    found = compiler.find(spec)
    return await asyncio.to_thread(compiler.compile, spec) if found is None else found


async def with_weights(request: Request) -> Request:
    """Return the request with the weights that it names. For the engine's side."""
    if isinstance(request, EmbeddingRequest | LensRequest):
        return request
    if isinstance(request, AttributionRequest):
        if isinstance(request.reader, SAERef):
            request = dataclasses.replace(request, reader=await _loaded_reader(request.reader))
        return request
    if request.steering is not None and request.intervention is None:
        found = await compiled(request.steering.spec)
        request = dataclasses.replace(request, intervention=found.intervention)
    elif request.intervention is not None:
        request = dataclasses.replace(request, intervention=await _with_readers(request.intervention))
    if request.captures:
        captures = tuple([await _with_reader(capture) for capture in request.captures])
        request = dataclasses.replace(request, captures=captures)
    return request


async def _with_readers(intervention: Intervention) -> Intervention:
    edits = [
        dataclasses.replace(edit, reader=edit.reader.loaded(await _loaded_reader(edit.reader.sae)))
        if isinstance(edit, ReaderEdit) and isinstance(edit.reader, UnloadedReader)
        else edit
        for edit in intervention.edits
    ]
    return dataclasses.replace(intervention, edits=tuple(edits))


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
