"""The engine thread: takes requests, steps the models that have work, publishes events.

Other threads talk to it through an inbox only. Every accepted sequence ends with exactly one terminal event, also
when a step raises, its model goes, the engine stops or the thread dies.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError, ModelNotAttachedError, QueueFullError
from inference.engine.loader import LoadedModel
from inference.engine.messages import TERMINAL_EVENTS, FailedEvent, Request
from inference.engine.model_engine import Delivery
from inference.engine.rotation import Rotation
from inference.engine.stats import EngineState, EngineStats
from inference.engine.stepped_model import SteppedModel, stepped_model
from inference.engine.throughput import CompletionRate

logger = logging.getLogger(__name__)

Publish = Callable[[list[Delivery]], None]
IDLE_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class _Submit:
    requests: tuple[Request, ...]
    sink: object
    submitted_at: float


@dataclass(frozen=True, slots=True)
class _Cancel:
    sink: object


@dataclass(frozen=True, slots=True)
class _Attach:
    loaded: LoadedModel
    done: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _Detach:
    name: str
    done: Future[object] = field(default_factory=Future)


class _Wake:
    """Makes the thread look at its state."""


_Message = _Submit | _Cancel | _Attach | _Detach | _Wake


class EngineLoop:
    """One thread that owns the models. Public methods may be called from any other thread."""

    def __init__(self, config: EngineConfig, publish: Publish) -> None:
        self._config = config
        self._publish = publish
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._engines: dict[str, SteppedModel] = {}
        self._lock = threading.Lock()  # guards _open, _state and the order of submissions against the end
        self._open = 0  # sequences accepted and not yet ended
        self._state: EngineState = "stopped"
        self._error = ""
        self._deadline: float | None = None
        self._steps = 0
        self._rate = CompletionRate()
        self._rotation = Rotation()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # Called from other threads

    @property
    def config(self) -> EngineConfig:
        return self._config

    def start(self) -> None:
        with self._lock:
            self._state = "idle"
        self._thread.start()

    def submit(self, requests: Sequence[Request], sink: object) -> None:
        """Accept all requests or none; ``sink`` gets their events through ``publish``."""
        with self._lock:
            if self._state not in {"idle", "running"}:
                raise EngineDownError(self._error or f"The engine is {self._state}.")
            for name in {request.model for request in requests}:
                if name not in self._engines:
                    raise ModelNotAttachedError(f"The model {name!r} is not loaded.")
            capacity = self._config.max_batch_size + self._config.max_waiting_requests
            if self._open + len(requests) > capacity:
                retry = self._rate.seconds_for(self._open + len(requests) - capacity)
                raise QueueFullError(f"{self._open} requests run or wait already, {capacity} at most.", retry)
            self._open += len(requests)
            self._inbox.put(_Submit(tuple(requests), sink, time.monotonic()))

    def cancel(self, sink: object) -> None:
        """End the sink's sequences at the next step. Idempotent."""
        self._inbox.put(_Cancel(sink))

    def attach(self, loaded: LoadedModel) -> Future[None]:
        message = _Attach(loaded)
        self._command(message)
        return message.done

    def detach(self, name: str) -> Future[object]:
        """Forget a model; what it runs fails with ``model_unloaded``.

        Resolves to what is left of it: who drops that last frees its memory, which takes too long for this thread.
        """
        message = _Detach(name)
        self._command(message)
        return message.done

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, let the accepted ones run for ``drain_s``, fail the rest, end the thread."""
        with self._lock:
            if self._state in {"idle", "running"}:
                self._state = "draining"
            deadline = time.monotonic() + drain_s
            self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)
        self._inbox.put(_Wake())
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(drain_s + 10)

    def stats(self) -> EngineStats:
        engines = tuple(self._engines.values())
        return EngineStats(
            state=self._state,
            running=sum(e.num_running for e in engines),
            waiting=max(0, self._open - sum(e.num_running for e in engines)),
            free_slots=sum(e.num_free_slots for e in engines),
            steps=self._steps,
            models=tuple(self._engines),
            error=self._error,
        )

    def _command(self, message: _Attach | _Detach) -> None:
        with self._lock:
            if self._state not in {"idle", "running"}:
                message.done.set_exception(EngineDownError(self._error or f"The engine is {self._state}."))
            else:
                self._inbox.put(message)

    # The thread

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._take_messages()
                self._step()
            self._end("engine_shutdown", "The server is shutting down.", "stopped")
        except BaseException as error:
            logger.exception("The engine thread died.")
            self._error = f"The engine died: {type(error).__name__}."
            self._end("server_error", "The engine failed.", "failed")

    def _is_over(self) -> bool:
        if self._state != "draining":
            return False
        return self._open == 0 or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _take_messages(self) -> None:
        """Handle all that is in the inbox; sleep only when there is nothing to do."""
        if not any(e.has_work for e in self._engines.values()):
            self._set_busy(busy=False)
            wait = 0.05 if self._state == "draining" else IDLE_WAIT_S
            try:
                self._handle(self._inbox.get(timeout=wait))
            except queue.Empty:
                return
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._handle(message)

    def _handle(self, message: _Message) -> None:
        match message:
            case _Submit():
                self._accept(message)
            case _Cancel():
                self._deliver([d for e in self._engines.values() for d in e.cancel(message.sink)])
            case _Attach():
                self._settle(message.done, lambda: self._attach(message.loaded))
            case _Detach():
                self._settle(message.done, lambda: self._detach(message.name))
            case _Wake():
                pass

    def _accept(self, message: _Submit) -> None:
        self._set_busy(busy=True)
        deliveries: list[Delivery] = []
        for request in message.requests:
            engine = self._engines.get(request.model)
            if engine is None:
                text = f"The model {request.model!r} was unloaded."
                deliveries.append((message.sink, FailedEvent.before_start(request, "model_unloaded", text)))
            elif not isinstance(request, engine.takes):
                text = f"The model {request.model!r} is not made for this kind of request."
                deliveries.append((message.sink, FailedEvent.before_start(request, "wrong_model_kind", text)))
            else:
                deliveries.extend(engine.add(request, message.sink, message.submitted_at))
        self._deliver(deliveries)

    def _attach(self, loaded: LoadedModel) -> None:
        if loaded.name in self._engines:
            self._detach(loaded.name)
        engines = {**self._engines, loaded.name: stepped_model(loaded, self._config)}
        self._engines = engines  # replaced, not changed: other threads iterate over it

    def _detach(self, name: str) -> object:
        engine = self._engines.get(name)
        if engine is None:
            return None
        self._engines = {n: e for n, e in self._engines.items() if n != name}
        self._deliver(engine.fail_all("model_unloaded", f"The model {name!r} was unloaded."))
        engine.close()
        return engine

    @staticmethod
    def _settle(done: Future[Any], act: Callable[[], object]) -> None:
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - the caller waits for it; the thread must go on
            done.set_exception(error)
        else:
            done.set_result(result)

    def _step(self) -> None:
        """One step of the model whose turn it is."""
        with_work = [name for name, engine in self._engines.items() if engine.has_work]
        if not with_work:
            return
        name = self._rotation.next(with_work)
        started_at = time.perf_counter()
        self._deliver(self._engines[name].step())
        self._rotation.note(name, time.perf_counter() - started_at)
        self._steps += 1

    def _deliver(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            return
        ended = sum(isinstance(event, TERMINAL_EVENTS) for _, event in deliveries)
        if ended:
            with self._lock:
                self._open -= ended
            self._rate.note(ended)
        try:
            self._publish(deliveries)
        except Exception:
            # A broken reader must not take the others with it.
            logger.exception("Events could not be delivered.")

    def _set_busy(self, *, busy: bool) -> None:
        with self._lock:
            if self._state in {"idle", "running"}:
                self._state = "running" if busy else "idle"

    def _end(self, code: str, text: str, state: EngineState) -> None:
        """Fail all that was accepted, waiting in the inbox included; nothing is accepted afterwards."""
        with self._lock:
            self._state = state
        for engine in self._engines.values():
            self._deliver(engine.fail_all(code, text))
            engine.close()
        self._engines = {}
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Submit):
                self._deliver(
                    [(message.sink, FailedEvent.before_start(request, code, text)) for request in message.requests]
                )
            elif isinstance(message, _Attach | _Detach):
                message.done.set_exception(EngineDownError(text))
