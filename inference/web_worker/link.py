"""The connection of a web worker and the main process: each end calls methods of the other."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from inference.engine.errors import EngineDownError
from inference.engine.stats import EngineStats
from inference.engine_process.channel import Call, CancelStream, Channel, Events, Message, Refusal, Reply, Status

__all__ = ["GONE", "Call", "Link", "Message"]

logger = logging.getLogger(__name__)
NOTICE = -1  # the id of calls that nobody answers
GONE = "The server is shutting down."
FLUSH_S = 2.0


class Link:
    """One end. Thread-safe. Messages arrive in order on the thread that runs :meth:`run`."""

    def __init__(self, end: socket.socket) -> None:
        self._channel = Channel(end)
        self._lock = threading.Lock()
        self._ids = itertools.count()
        self._calls: dict[int, Future[Any]] = {}
        self._is_open = True

    def call(self, method: str, *arguments: object) -> Future[Any]:
        """Call the other end. The future raises what the method raises, or EngineDownError if the end is gone."""
        done: Future[Any] = Future()
        call = Call(next(self._ids), method, arguments)
        with self._lock:
            is_open = self._is_open
            if is_open:
                self._calls[call.id] = done
        if not is_open:
            done.set_exception(EngineDownError(GONE))
            return done
        try:
            self._channel.send(call)
        except BaseException:  # it cannot be pickled
            with self._lock:
                self._calls.pop(call.id, None)
            raise
        return done

    def notify(self, method: str, *arguments: object) -> None:
        """Call the other end without waiting for an answer."""
        self._channel.send(Call(NOTICE, method, arguments))

    def send(self, message: CancelStream | Events | Status) -> None:
        self._channel.send(message)

    def report(self, stats: EngineStats) -> None:
        """Report the engine's numbers to a worker."""
        self.send(Status(stats))

    def answer(self, call: Call, act: Callable[..., object]) -> None:
        """Run ``act`` with the arguments of a call, and answer it."""
        try:
            value = act(*call.arguments)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.refuse(call, error)
        else:
            self.reply(call, value)

    def reply(self, call: Call, value: object) -> None:
        if call.id == NOTICE:
            return
        try:
            self._channel.send(Reply(call.id, value))
        except Exception as error:  # noqa: BLE001 - the value cannot be pickled
            self.refuse(call, error)

    def refuse(self, call: Call, error: BaseException) -> None:
        if call.id != NOTICE:
            self._channel.send(Refusal.of(call.id, error))

    def answer_when(self, call: Call, done: Future[Any]) -> None:
        """Answer a call with the outcome of a future, which may be cancelled."""
        if done.cancelled():
            self.refuse(call, EngineDownError(GONE))
        elif (error := done.exception()) is not None:
            self.refuse(call, error)
        else:
            self.reply(call, done.result())

    def run(self, handle: Callable[[Message], None]) -> None:
        """Receive until the other end is closed, then fail the open calls. ``handle`` gets all messages but answers."""
        while True:
            try:
                message = self._channel.receive()
            except EOFError:
                break
            try:
                self._take(message, handle)
            except Exception:
                logger.exception("A message between the main process and a web worker could not be handled.")
        with self._lock:
            self._is_open = False
            calls, self._calls = self._calls, {}
        for done in calls.values():
            if done.set_running_or_notify_cancel():
                done.set_exception(EngineDownError(GONE))

    def close(self) -> None:
        """Close the connection; both ends notice."""
        self._channel.close()

    def flush(self) -> None:
        """Wait until everything is sent. Nothing can be sent afterwards."""
        self._channel.flush(FLUSH_S)

    def _take(self, message: Message, handle: Callable[[Message], None]) -> None:
        match message:
            case Reply():
                self._settle(message.id, lambda done: done.set_result(message.value))
            case Refusal():
                error = message.error()
                self._settle(message.id, lambda done: done.set_exception(error))
            case _:
                handle(message)

    def _settle(self, call_id: int, act: Callable[[Future[Any]], None]) -> None:
        with self._lock:
            done = self._calls.pop(call_id, None)
        if done is not None and done.set_running_or_notify_cancel():
            act(done)
