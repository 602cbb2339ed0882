"""A client as a remote one would be: every request and every event passes through pickle.

What a caller sends must be plain data: a request with weights, such as a tensor, a module, an SAE, or a compiled
intervention, raises AssertionError. Events bring arrays of values.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np
import torch

from inference.client import EngineClient, EngineStats, Event, EventStream, Request
from inference.interventions import Edit, Intervention
from inference.steering_refs import SteeringRef, SteeringSpec

MAX_BYTES = 1024 * 1024  # of a request; one of this size carries weights
WEIGHTS = (torch.Tensor, torch.nn.Module, np.ndarray, Intervention, *Edit.__args__)
T = TypeVar("T")


def copied(message: T) -> T:
    """Return what arrives at the other end."""
    copy: T = pickle.loads(pickle.dumps(message))  # noqa: S301 - our own bytes
    return copy


def sent(message: T) -> T:
    """Like :func:`copied`, for what may not carry weights."""
    file = io.BytesIO()
    _PlainPickler(file).dump(message)
    assert file.tell() < MAX_BYTES, "the request is as large as weights"
    copy: T = pickle.loads(file.getvalue())  # noqa: S301 - our own bytes
    return copy


class PicklingClient:
    """Passes copies of everything to ``client`` and back."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def submit(self, requests: Sequence[Request]) -> EventStream:
        return PicklingStream(await self._client.submit([sent(request) for request in requests]))

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        return sent(await self._client.compile(sent(steering)))

    def cancel(self, stream_id: str) -> None:
        self._client.cancel(sent(stream_id))

    def stats(self) -> EngineStats:
        return copied(self._client.stats())

    def settings(self) -> dict[str, object]:
        return copied(self._client.settings())

    def replace_processes(self) -> int:
        return self._client.replace_processes()

    def stop(self, drain_s: float) -> None:
        self._client.stop(drain_s)


class PicklingStream:
    def __init__(self, stream: EventStream) -> None:
        self._stream = stream

    @property
    def id(self) -> str:
        return self._stream.id

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return copied(await anext(self._stream))

    def close(self) -> None:
        self._stream.close()


class _PlainPickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> None:
        """Called with every object of the message."""
        is_plain = not isinstance(value, WEIGHTS) and not hasattr(type(value), "activations")
        assert is_plain, f"a request carries a {type(value).__name__}"
