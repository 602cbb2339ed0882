"""The engine thread: takes requests, steps the models that have work, publishes events.

Other threads talk to it through an inbox only. Every accepted sequence ends with exactly one terminal event, also
when a step raises, its model goes, the engine stops, or the thread dies or hangs (see watchdog.py).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError, ModelNotAttachedError, QueueFullError
from inference.engine.loader import LoadedModel
from inference.engine.messages import FailedEvent, Request
from inference.engine.model_engine import Delivery
from inference.engine.open_sequences import OpenSequences
from inference.engine.rotation import Rotation
from inference.engine.stats import EngineState, EngineStats
from inference.engine.step_isolation import free_unused_memory
from inference.engine.stepped_model import SteppedModel, stepped_model
from inference.engine.throughput import CompletionRate

logger = logging.getLogger(__name__)

Publish = Callable[[list[Delivery]], None]
IDLE_WAIT_S = 1.0
DRAINING_WAIT_S = 0.05
END_WAIT_S = 10.0  # for the last step, after the time to drain is up
MAX_RESTARTS = 1


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
        self._engines: dict[str, SteppedModel] = {}  # replaced, not changed: other threads iterate over it
        self._loaded: dict[str, LoadedModel] = {}  # the same models, for a thread that takes over from a dead one
        self._lock = threading.Lock()  # guards _state and the order of submissions against the end
        self._open = OpenSequences()
        self._state: EngineState = "stopped"
        self._error = ""
        self._deadline: float | None = None
        self._steps = 0
        self._beats = 0
        self._restarts = 0
        self._is_taking_in_a_model = False
        self._is_given_up = False  # the thread hangs; should it wake up, it ends
        self._is_device_lost = False
        self._rate = CompletionRate()
        self._rotation = Rotation()
        self._thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # Called from other threads

    @property
    def config(self) -> EngineConfig:
        return self._config

    def start(self) -> None:
        self.accept_requests()
        self._thread.start()

    def accept_requests(self) -> None:
        """The part of :meth:`start` without the thread, for callers that make the :meth:`turn` themselves."""
        with self._lock:
            self._error = ""
            self._state = "idle" if self._deadline is None else "draining"

    def submit(self, requests: Sequence[Request], sink: object) -> None:
        """Accept all requests or none; ``sink``, hashable, gets their events through ``publish``."""
        with self._lock:
            if self._state not in {"idle", "running"}:
                raise EngineDownError(self._error or f"The engine is {self._state}.")
            for name in {request.model for request in requests}:
                if name not in self._engines:
                    raise ModelNotAttachedError(f"The model {name!r} is not loaded.")
            num_open, capacity = len(self._open), self._config.max_batch_size + self._config.max_waiting_requests
            if num_open + len(requests) > capacity:
                retry = self._rate.seconds_for(num_open + len(requests) - capacity)
                raise QueueFullError(f"{num_open} requests run or wait already, {capacity} at most.", retry)
            self._open.add(requests, sink)
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
            self._await_end(deadline + END_WAIT_S)

    def _await_end(self, deadline: float) -> None:
        while self._thread.is_alive() and not self._is_given_up and time.monotonic() < deadline:
            self._thread.join(0.1)

    def stats(self) -> EngineStats:
        engines = self._engines
        running = sum(e.num_running for e in engines.values())
        return EngineStats(
            state=self._state,
            running=running,
            waiting=max(0, len(self._open) - running),
            free_slots=sum(e.num_free_slots for e in engines.values()),
            steps=self._steps,
            models=tuple(engines),
            error=self._error,
            restarts=self._restarts,
            by_model=tuple(engine.stats() for engine in engines.values()),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where accepted sequences and scheduled ones do not add up. Between two turns only."""
        for engine in self._engines.values():
            engine.check_integrity()
        held = sum(e.num_running + e.num_waiting for e in self._engines.values())
        assert held <= len(self._open), "a sequence is scheduled whose reader has its terminal event"
        assert held == len(self._open) or not self._inbox.empty(), "an accepted sequence is lost"

    def _command(self, message: _Attach | _Detach) -> None:
        with self._lock:
            if self._state not in {"idle", "running"}:
                message.done.set_exception(EngineDownError(self._error or f"The engine is {self._state}."))
            else:
                self._inbox.put(message)

    # Called from the watchdog's thread

    @property
    def beats(self) -> int:
        """Grows with every turn and step."""
        return self._beats

    @property
    def owes_work(self) -> bool:
        """Whether someone waits for the thread. Taking in a model may last and does not count."""
        return bool(len(self._open) or not self._inbox.empty()) and not self._is_taking_in_a_model

    @property
    def has_died(self) -> bool:
        """The thread ended, and nobody asked it to."""
        has_begun = self._thread.ident is not None
        return has_begun and not self._thread.is_alive() and self._state != "stopped"

    @property
    def error(self) -> str:
        return self._error

    def give_up(self, error: str) -> None:
        """Fail all who wait, without the thread's help; nothing is accepted afterwards. A thread that hangs is left
        alone with its models: should it wake up, its events go nowhere and it ends.
        """
        with self._lock:
            self._state, self._error = "failed", error
            self._is_given_up = self._thread.is_alive()
        self._engines = {}
        self._fail_rest("server_error", "The engine failed.")

    def restart(self) -> bool:
        """Start a new thread with the models of the dead one, once. False where that is not safe."""
        with self._lock:
            is_lost = self._is_given_up or self._is_device_lost or self._thread.is_alive()
            if is_lost or self._deadline is not None or self._restarts >= MAX_RESTARTS:
                return False
            self._restarts += 1
        self._thread = threading.Thread(target=self.run, kwargs={"takes_over": True}, name="engine", daemon=True)
        self._thread.start()
        return True

    # The thread

    def run(self, *, takes_over: bool = False) -> None:
        """The thread's body: turns until it is told to stop or given up. Raises nothing."""
        try:
            if takes_over:
                free_unused_memory()  # the caches of the dead one's models
                self._engines = {name: stepped_model(loaded, self._config) for name, loaded in self._loaded.items()}
                self.accept_requests()
            while not self._is_over():
                self.turn(DRAINING_WAIT_S if self._state == "draining" else IDLE_WAIT_S)
            self._end("engine_shutdown", "The server is shutting down.", "stopped")
        except BaseException as error:
            logger.exception("The engine thread died.")
            self._is_device_lost = isinstance(error, torch.AcceleratorError)
            self._error = f"The engine died: {type(error).__name__}."
            self._end("server_error", "The engine failed.", "failed")

    def turn(self, wait_s: float = 0.0) -> None:
        """Handle what is in the inbox, waiting ``wait_s`` for it when nothing else is to do; then step each model."""
        self._beats += 1
        self._take_messages(wait_s)
        self._step()

    def _is_over(self) -> bool:
        if self._is_given_up:
            return True
        if self._state != "draining":
            return False
        return not len(self._open) or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _take_messages(self, wait_s: float) -> None:
        """Handle all that is in the inbox; sleep only when there is nothing to do."""
        working = [e for e in self._engines.values() if e.has_work]
        if not working:
            self._set_busy(busy=False)
        patience_s = min([wait_s, *(e.seconds_to_wait() for e in working)])
        if patience_s > 0:
            try:
                self._handle(self._inbox.get(timeout=patience_s))
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
        with self._taking_in_a_model():
            self._engines = {**self._engines, loaded.name: stepped_model(loaded, self._config)}
        self._loaded[loaded.name] = loaded

    @contextmanager
    def _taking_in_a_model(self) -> Iterator[None]:
        self._is_taking_in_a_model = True
        try:
            yield
        finally:
            self._beats += 1
            self._is_taking_in_a_model = False

    def _detach(self, name: str) -> object:
        engine = self._engines.get(name)
        if engine is None:
            return None
        self._engines = {n: e for n, e in self._engines.items() if n != name}
        del self._loaded[name]
        self._deliver(engine.fail_all("model_unloaded", f"The model {name!r} was unloaded."))
        engine.close()
        return engine

    @staticmethod
    def _settle(done: Future[Any], act: Callable[[], object]) -> None:
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - the caller waits for it; the thread must go on
            done.set_exception(error)
        except BaseException as error:
            done.set_exception(EngineDownError(f"The engine died: {type(error).__name__}."))
            raise
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
        self._beats += 1

    def _deliver(self, deliveries: Sequence[Delivery]) -> None:
        """To those who still wait; also called by the watchdog's thread."""
        passed, num_ended = self._open.let_through(deliveries)
        if num_ended:
            self._rate.note(num_ended)
        if not passed:
            return
        try:
            self._publish(passed)
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
            if self._is_given_up:
                return
            self._state = state
        if state == "stopped":
            self._loaded = {}  # a dead thread's are kept for the one that takes over
        engines, self._engines = self._engines, {}
        for name, engine in engines.items():
            try:
                self._deliver(engine.fail_all(code, text))
                engine.close()
            except Exception:
                # After a thread's death a model's books may not be in order; _fail_rest keeps its own.
                logger.exception("The model %s did not end in order.", name)
        self._fail_rest(code, text)

    def _fail_rest(self, code: str, text: str) -> None:
        """Whoever still waits: for a sequence or for a command."""
        self._deliver(self._open.failures(code, text))
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Attach | _Detach):
                message.done.set_exception(EngineDownError(text))
