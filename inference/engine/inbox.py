"""Commands from other threads to the engine thread, in order of arrival."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from inference.engine.messages import Request
from inference.engine.models.loader import LoadedModel


@dataclass(frozen=True, slots=True)
class Submit:
    requests: tuple[Request, ...]
    sink: object
    submitted_at: float


@dataclass(frozen=True, slots=True)
class Cancel:
    sink: object


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach a model. ``kv_bytes`` 0 uses the engine's settings."""

    loaded: LoadedModel
    kv_bytes: int = 0
    done: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Detach:
    name: str
    done: Future[object] = field(default_factory=Future)


class Wake:
    """Make the thread check its state."""


EngineCommand = Submit | Cancel | Attach | Detach | Wake


class Inbox:
    """Unbounded queue of commands.

    :class:`inference.engine.outbox.Outbox` bounds the submitted sequences, each sequence is cancelled at most once, and
    the registry's loader thread attaches and detaches one model at a time.
    """

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()

    @property
    def is_empty(self) -> bool:
        return self._messages.empty()

    def put(self, message: EngineCommand) -> None:
        self._messages.put(message)

    def take(self, wait_s: float) -> Iterator[EngineCommand]:
        """Yield all commands in the queue. If it is empty, wait up to ``wait_s`` for the first one."""
        if wait_s > 0:
            try:
                yield self._messages.get(timeout=wait_s)
            except queue.Empty:
                return
        while True:
            try:
                message = self._messages.get_nowait()
            except queue.Empty:
                return
            yield message
