"""Messages between the server and the engine's process, over a socket pair that only they have.

Both ends run the same code as the same user, so messages are pickled, except for new tokens: they are nearly all
events, and a step's are one msgpack array, which costs a third (decision 52 has the figures).
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import queue
import socket
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import msgpack

from inference.engine.errors import EngineError
from inference.engine.messages import Event, TokenLogprob, TokensEvent
from inference.engine.stats import EngineStats

logger = logging.getLogger(__name__)
EVENTS, OTHER = b"E", b"O"  # the first byte of a message
PICKLED = 1  # the extension type of an event without tokens


@dataclass(frozen=True, slots=True)
class Call:
    """A call of the engine. A :class:`Reply` or a :class:`Refusal` with the same id answers it."""

    id: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class CancelStream:
    """Cancel the sequences of a stream, also while their submission is pending. Without an answer."""

    stream_id: str


@dataclass(frozen=True, slots=True)
class Reply:
    id: int
    value: Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """The exception that a call raised: its class, its arguments and its attributes."""

    id: int
    error_class: type[BaseException]
    arguments: tuple[Any, ...]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, call_id: int, error: BaseException) -> Refusal:
        """Carry an exception, or an EngineError with its message if it cannot be pickled."""
        refusal = cls(call_id, type(error), error.args, dict(vars(error)))
        try:
            pickle.loads(pickle.dumps(refusal))  # noqa: S301 - our own bytes
        except Exception:  # noqa: BLE001 - whatever pickle cannot carry
            return cls.of(call_id, EngineError(f"{type(error).__name__}: {error}"))
        return refusal

    def error(self) -> BaseException:
        error = self.error_class.__new__(self.error_class, *self.arguments)
        vars(error).update(self.attributes)
        return error


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a step, each with the id of its stream."""

    deliveries: list[tuple[str, Event]]


@dataclass(frozen=True, slots=True)
class Status:
    """Sent twice a second, soon after sequences begin or end, and before the answer of a call that changes it."""

    stats: EngineStats


Message = Call | CancelStream | Reply | Refusal | Events | Status


def packed(message: Message) -> bytes:
    if isinstance(message, Events):
        return EVENTS + _packed_events(message.deliveries)
    return OTHER + pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def unpacked(data: bytes) -> Message:
    if data[:1] == EVENTS:
        return Events(_unpacked_events(memoryview(data)[1:]))
    message: Message = pickle.loads(memoryview(data)[1:])  # noqa: S301 - from our own process
    return message


def _packed_events(deliveries: Iterable[tuple[str, Event]]) -> bytes:
    rows: list[tuple[object, ...]] = []
    for stream_id, event in deliveries:
        if type(event) is TokensEvent:
            logprobs = [(each.token_id, each.logprob, each.top, each.rank) for each in event.logprobs]
            rows.append((stream_id, event.index, event.token_ids, event.text, logprobs))
        else:
            content = pickle.dumps(event, pickle.HIGHEST_PROTOCOL)
            rows.append((stream_id, msgpack.ExtType(PICKLED, content)))
    data: bytes = msgpack.packb(rows, unicode_errors="surrogatepass")
    return data


def _unpacked_events(data: memoryview) -> list[tuple[str, Event]]:
    rows = msgpack.unpackb(data, use_list=False, ext_hook=_unpickled, unicode_errors="surrogatepass")
    return [(row[0], row[1] if len(row) == 2 else _tokens(*row[1:])) for row in rows]


def _tokens(index: int, token_ids: tuple[int, ...], text: str, logprobs: tuple[tuple[Any, ...], ...]) -> TokensEvent:
    return TokensEvent(index, token_ids, text, tuple([TokenLogprob(*each) for each in logprobs]))


def _unpickled(code: int, data: bytes) -> Event:
    event: Event = pickle.loads(data)  # noqa: S301 - from our own process
    return event


class Channel:
    """One end of the socket pair. A thread writes, so that no sender waits for the other process."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._connection = Connection(os.dup(end.fileno()))
        self._outgoing: queue.SimpleQueue[bytes | Events | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="engine-channel", daemon=True)
        self._writer.start()

    def send(self, message: Message) -> None:
        """Send a message, in order. Nothing is raised if the other process is gone: :meth:`receive` notices."""
        self._outgoing.put(message if isinstance(message, Events) else packed(message))

    def receive(self, patience_s: float | None = None) -> Message:
        """Wait for the next message. Raise EOFError when the other end is closed, TimeoutError after ``patience_s``."""
        try:
            if patience_s is not None and not self._connection.poll(patience_s):
                raise TimeoutError
            return unpacked(self._connection.recv_bytes())
        except TimeoutError:
            raise
        except OSError as error:
            raise EOFError from error

    def flush(self, timeout_s: float) -> None:
        """Wait until everything is sent. The channel sends nothing afterwards."""
        self._outgoing.put(None)
        self._writer.join(timeout_s)

    def close(self) -> None:
        """Close both directions. A thread that receives gets EOFError. Idempotent."""
        self._outgoing.put(None)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _write(self) -> None:
        while (message := self._outgoing.get()) is not None:
            data = packed(message) if isinstance(message, Events) else message
            try:
                self._connection.send_bytes(data)
            except OSError:  # the other end is gone
                return
