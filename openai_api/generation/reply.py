"""A generation as an HTTP response: streamed as chunks, or the same chunks folded into one body."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Generic, Protocol, TypeVar, cast

from django.http.response import HttpResponseBase

from inference.client import Event
from openai_api.backend import get_backend
from openai_api.generation.activations import ActivationLog
from openai_api.generation.run import Generation
from openai_api.http.call import Call
from openai_api.http.endpoint import json_response
from openai_api.http.errors import client_error
from openai_api.http.sse import OPENAI, EventSource, Framing, event_response
from openai_api.schemas.bodies import (
    ActivationsBody,
    ChatChunkBody,
    ChatCompletionBody,
    CompletionBody,
    TokenActivationsBody,
)

NOT_STORED = "The response could not be stored: the database is not available."
Chunk = TypeVar("Chunk", covariant=True)


class Chunks(Protocol[Chunk]):
    """An endpoint's response format: the chunks of :meth:`start`, of each event, and of :meth:`finish`."""

    def start(self) -> Iterator[Chunk]: ...

    def on_event(self, event: Event) -> Iterator[Chunk]: ...

    def finish(self) -> Iterator[Chunk]: ...


ChunkT = TypeVar("ChunkT")


async def collect(generation: Generation, chunks: Chunks[ChunkT], take: Callable[[ChunkT], None]) -> None:
    """Pass all chunks to ``take``. Raises MillmError; the engine stops however this ends."""
    ping_s = get_backend().ping_s
    try:
        for chunk in chunks.start():
            take(chunk)
        while not generation.is_complete:
            event = await generation.next_event(ping_s)
            for chunk in chunks.on_event(event) if event is not None else ():
                take(chunk)
        for chunk in chunks.finish():
            take(chunk)
    finally:
        generation.close()


Keep = Callable[[], Awaitable[None]]


async def stream(
    generation: Generation, chunks: Chunks[ChunkT], keep: Keep | None = None, *, framing: Framing = OPENAI
) -> HttpResponseBase:
    """Start the stream. Raises MillmError while the HTTP status can still be set. ``keep`` stores the answer before the
    end is sent.
    """
    return event_response(
        EventSource(_events(generation, chunks, keep, framing), await begun(generation)), framing.media_type
    )


class Streamable(Protocol):
    """A generation, or several that are read as one."""

    @property
    def call(self) -> Call: ...

    @property
    def is_complete(self) -> bool: ...

    async def peek(self) -> None: ...

    def close(self) -> None: ...


async def begun(generation: Streamable) -> Callable[[], None]:
    """Wait briefly for the first event. Return what closes the stream. Raises MillmError when it is a failure."""
    try:
        await generation.peek()
    except BaseException:
        generation.close()
        raise

    def close() -> None:
        if not generation.is_complete and not generation.call.error_code:
            generation.call.leave()
        generation.close()
        generation.call.close()

    return close


async def streamed(generation: Streamable, events: AsyncGenerator[bytes, None]) -> HttpResponseBase:
    """Return ``events`` once the first one has arrived or is late. Raises MillmError when the first is a failure."""
    return event_response(EventSource(events, await begun(generation)))


async def _events(
    generation: Generation, chunks: Chunks[ChunkT], keep: Keep | None, framing: Framing
) -> AsyncGenerator[bytes, None]:
    call, ping_s = generation.call, get_backend().ping_s
    try:
        for chunk in chunks.start():
            yield framing.event(chunk)
        while not generation.is_complete:
            event = await generation.next_event(ping_s)
            if event is None:
                yield framing.ping
                continue
            for chunk in chunks.on_event(event):
                yield framing.event(chunk)
        for chunk in chunks.finish():
            yield framing.event(chunk)
        if keep is not None:
            await keep()
        if framing.done:
            yield framing.done
    except Exception as error:  # noqa: BLE001 - the status is sent, so the error goes into the stream
        seen = client_error(error, call.id, database_away=NOT_STORED)
        call.refuse(seen)
        yield framing.event(framing.error(seen))


ActiveChunkT = TypeVar("ActiveChunkT", ChatChunkBody, CompletionBody)
ActiveBodyT = TypeVar("ActiveBodyT", ChatCompletionBody, CompletionBody)


class ActivationChunks(Generic[ActiveChunkT]):
    """The chunks of ``inner``, each with the activations captured since the previous one."""

    def __init__(self, inner: Chunks[ActiveChunkT], log: ActivationLog) -> None:
        self._inner: Chunks[ActiveChunkT] = inner
        self._log = log
        self._untold: list[TokenActivationsBody] = []

    def start(self) -> Iterator[ActiveChunkT]:
        return self._inner.start()

    def on_event(self, event: Event) -> Iterator[ActiveChunkT]:
        self._untold += self._log.take(event)
        for chunk in self._inner.on_event(event):
            yield self._with_activations(chunk)

    def finish(self) -> Iterator[ActiveChunkT]:
        return self._inner.finish()

    def _with_activations(self, chunk: ActiveChunkT) -> ActiveChunkT:
        if self._untold:
            chunk["millm"] = with_activations(chunk.get("millm"), self._untold)
            self._untold = []
        return chunk


class ActivationFold(Generic[ActiveChunkT]):
    """Remove activations from chunks before passing them to ``take``."""

    def __init__(self, take: Callable[[ActiveChunkT], None]) -> None:
        self._take: Callable[[ActiveChunkT], None] = take
        self._found: list[TokenActivationsBody] = []

    def add(self, chunk: ActiveChunkT) -> None:
        millm = chunk.get("millm")
        if millm is not None:
            self._found += millm.get("activations", [])
            rest = {name: value for name, value in millm.items() if name != "activations"}
            if rest:
                chunk["millm"] = cast("ActivationsBody", rest)
            else:
                del chunk["millm"]
        self._take(chunk)

    def into(self, body: ActiveBodyT) -> ActiveBodyT:
        """Return the body with the collected activations, by choice and position."""
        found = sorted(self._found, key=lambda one: (one["index"], one["place"]))
        body["millm"] = with_activations(body.get("millm"), found)
        return body


def with_activations(millm: object, activations: list[TokenActivationsBody]) -> ActivationsBody:
    """Add the activations to ``millm``, keeping its other fields."""
    return {**cast("ActivationsBody", millm or {}), "activations": activations}


TakenT = TypeVar("TakenT", ChatChunkBody, CompletionBody, contravariant=True)
BodyT = TypeVar("BodyT", ChatCompletionBody, CompletionBody, covariant=True)


class Fold(Protocol[TakenT, BodyT]):
    def add(self, chunk: TakenT) -> None: ...

    def body(self) -> BodyT: ...


async def respond(
    generation: Generation,
    chunks: Chunks[ActiveChunkT],
    fold: Fold[ActiveChunkT, BodyT] | None,
    reading: ActivationLog | None,
    keep: Keep | None = None,
) -> HttpResponseBase:
    """Answer with a stream if ``fold`` is None (``keep`` then stores the answer before its end is sent), else one body.

    Raises MillmError while the HTTP status can still be set.
    """
    if reading is not None:
        chunks = ActivationChunks(chunks, reading)
    if fold is None:
        return await stream(generation, chunks, keep)
    if reading is None:
        await collect(generation, chunks, fold.add)
        return json_response(fold.body())
    activations = ActivationFold(fold.add)
    await collect(generation, chunks, activations.add)
    return json_response(activations.into(fold.body()))
