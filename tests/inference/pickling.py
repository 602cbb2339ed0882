"""A client as a remote one would be: every request and every event passes through pickle.

An SAE passes as its key, as the engine's side has the weights itself.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, Self

from inference.client import EngineClient, EngineStats, Event, EventStream, Request
from inference.interventions import FeatureReader

MAX_BYTES = 16 * 1024 * 1024  # of one message; a larger one carries weights


class Wire:
    """Copies messages by pickling them."""

    def __init__(self) -> None:
        self._readers: dict[str, FeatureReader] = {}

    def copied(self, message: Any) -> Any:
        file = io.BytesIO()
        _Pickler(file, self._readers).dump(message)
        assert file.tell() < MAX_BYTES
        file.seek(0)
        return _Unpickler(file, self._readers).load()


class PicklingClient:
    """Passes copies of everything to ``client`` and back."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._wire = Wire()

    async def submit(self, requests: Sequence[Request]) -> EventStream:
        copies = [self._wire.copied(request) for request in requests]
        return PicklingStream(await self._client.submit(copies), self._wire)

    def cancel(self, stream_id: str) -> None:
        self._client.cancel(self._wire.copied(stream_id))

    def stats(self) -> EngineStats:
        stats: EngineStats = self._wire.copied(self._client.stats())
        return stats

    def settings(self) -> dict[str, object]:
        settings: dict[str, object] = self._wire.copied(self._client.settings())
        return settings

    def stop(self, drain_s: float) -> None:
        self._client.stop(drain_s)


class PicklingStream:
    def __init__(self, stream: EventStream, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    @property
    def id(self) -> str:
        return self._stream.id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event: Event = self._wire.copied(await anext(self._stream))
        return event

    def close(self) -> None:
        self._stream.close()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, readers: dict[str, FeatureReader]) -> None:
        super().__init__(file)
        self._readers = readers

    def persistent_id(self, value: Any) -> str | None:
        if not callable(getattr(type(value), "activations", None)):
            return None
        self._readers[value.key] = value
        return str(value.key)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, readers: dict[str, FeatureReader]) -> None:
        super().__init__(file)
        self._readers = readers

    def persistent_load(self, pid: Any) -> FeatureReader:
        return self._readers[pid]
