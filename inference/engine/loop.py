"""The engine thread: takes requests, steps the models that have work, publishes events.

Other threads talk to it through an inbox only. Every accepted sequence ends with exactly one terminal event, also
when a step raises, its model is unloaded, the engine stops, or the thread dies or hangs (see watchdog.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from itertools import islice

import torch

from inference.engine.attached_models import AttachedModels
from inference.engine.cache.device_memory import MemoryWatch
from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError
from inference.engine.inbox import Attach, Cancel, Detach, EngineCommand, Inbox, Submit, Wake
from inference.engine.lifecycle import EngineLifecycle
from inference.engine.messages import Request
from inference.engine.models.loader import LoadedModel
from inference.engine.outbox import Outbox, Publish
from inference.engine.scheduling.step_isolation import free_unused_memory
from inference.engine.stats import EngineState, EngineStats
from inference.torch_threads import give_back_workers

logger = logging.getLogger(__name__)

IDLE_WAIT_S = 1.0
DRAINING_WAIT_S = 0.05
ATTACH_S = 600.0  # time that attaching a model may take: memory for its KV cache and, on a GPU, its graphs
END_WAIT_S = 10.0  # for the last step, after the drain time is over
COMMANDS_PER_TURN = 64  # further ones wait for a step, so that a burst does not hold up running sequences
STUCK_WAIT_S = 0.02  # after a turn with pending work that made no progress


class StuckError(RuntimeError):
    """The engine thread kept turning without making progress on pending work."""


class EngineLoop:
    """One thread that owns the models. Public methods may be called from any other thread."""

    def __init__(self, config: EngineConfig, publish: Publish, memory: MemoryWatch | None = None) -> None:
        self._config = config
        self._inbox = Inbox()
        here = config.on("cuda" if torch.cuda.is_available() else "cpu")
        self._outbox = Outbox(publish, here.max_batch_size + here.max_waiting_requests)
        self._models = AttachedModels(config)
        self._lifecycle = EngineLifecycle()
        self._memory = memory or MemoryWatch()
        self._steps = 0
        self._heartbeat = 0
        self._turns = 0
        self._is_stuck = False  # the last turn had pending work and made no progress
        self._must_break_off = False
        self._attaching_since: float | None = None  # while the thread attaches a model
        self._current_command: Attach | Detach | None = None
        self._thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # Called from other threads

    @property
    def config(self) -> EngineConfig:
        return self._config

    def start(self) -> None:
        self.accept_requests()
        self._thread.start()

    def accept_requests(self) -> None:
        """Start accepting requests without a thread, for callers that call :meth:`turn` themselves."""
        self._lifecycle.begin()

    def submit(self, requests: Sequence[Request], sink: object) -> None:
        """Accept all requests or none; ``sink``, hashable, gets their events through ``publish``."""
        with self._lifecycle.accepting():
            self._models.require(requests)
            self._outbox.admit(requests, sink)
            self._inbox.put(Submit(tuple(requests), sink, time.monotonic()))

    def cancel(self, sink: object) -> None:
        """Cancel the sink's sequences at the next step. Idempotent."""
        self._inbox.put(Cancel(sink))

    def attach(self, loaded: LoadedModel, kv_bytes: int = 0) -> Future[None]:
        """Attach a model. ``kv_bytes`` is the memory for its KV cache; 0 uses the settings."""
        message = Attach(loaded, kv_bytes)
        self._command(message)
        return message.done

    def detach(self, name: str) -> Future[object]:
        """Detach a model; its sequences fail with ``model_unloaded``.

        The future resolves to the detached engine. Dropping the last reference frees its memory, which takes too long
        for this thread.
        """
        message = Detach(name)
        self._command(message)
        return message.done

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, let the accepted ones run for ``drain_s``, fail the rest, end the thread."""
        deadline = self._lifecycle.drain(drain_s)
        self._inbox.put(Wake())
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._await_end(deadline + END_WAIT_S)

    def _await_end(self, deadline: float) -> None:
        while self._thread.is_alive() and not self._lifecycle.is_abandoned and time.monotonic() < deadline:
            self._thread.join(0.1)

    def stats(self) -> EngineStats:
        accepted, running = self._outbox.counts(), self._models.running_counts()
        return EngineStats(
            state=self._lifecycle.state,
            running=running.all,
            waiting=max(0, accepted.all - running.all),
            background_running=running.background,
            background_waiting=max(0, accepted.background - running.background),
            free_slots=self._models.num_free_slots,
            steps=self._steps,
            models=self._models.names,
            error=self._lifecycle.error,
            restarts=self._lifecycle.restarts,
            by_model=self._models.stats(),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError if accepted and scheduled sequences do not match. Call between two turns only."""
        self._models.check_integrity()
        held = self._models.num_running + self._models.num_waiting
        assert held <= len(self._outbox), "every scheduled sequence has an open sink"
        assert held == len(self._outbox) or not self._inbox.is_empty, (
            "every accepted sequence is scheduled or in the inbox"
        )

    def _command(self, message: Attach | Detach) -> None:
        try:
            with self._lifecycle.accepting():
                self._inbox.put(message)
        except EngineDownError as error:
            message.done.set_exception(error)

    # Called from the watchdog's thread

    @property
    def heartbeat(self) -> int:
        """Counter that grows with every command and step, and while idle, but not with turns without progress."""
        return self._heartbeat

    @property
    def turns(self) -> int:
        """Counter of turns."""
        return self._turns

    def break_off(self) -> None:
        """Make the thread raise StuckError at its next turn. Used when it turns without making progress."""
        self._must_break_off = True
        self._inbox.put(Wake())

    @property
    def has_pending_work(self) -> bool:
        """Whether the thread has work. A model that is being attached counts only after ATTACH_S."""
        if self._attaching_since is not None:
            return time.monotonic() - self._attaching_since > ATTACH_S
        return bool(len(self._outbox) or not self._inbox.is_empty or self._current_command is not None)

    @property
    def has_died(self) -> bool:
        """Whether the thread ended without being stopped."""
        has_begun = self._thread.ident is not None
        return has_begun and not self._thread.is_alive() and self._lifecycle.state != "stopped"

    @property
    def error(self) -> str:
        return self._lifecycle.error

    def abandon(self, error: str) -> None:
        """Fail all pending work without the thread's help, and accept nothing afterwards.

        A hanging thread keeps its models. If it wakes up, its events are discarded and it ends.
        """
        self._lifecycle.abandon(error, hangs=self._thread.is_alive())
        self._models.abandon()
        self._fail_rest("server_error", "The engine failed.")

    def restart(self) -> bool:
        """Start a new thread with the dead thread's models. Return False if that is unsafe or was done too often."""
        if self._thread.is_alive() or not self._lifecycle.may_restart():
            return False
        self._thread = threading.Thread(target=self.run, kwargs={"restarts_dead": True}, name="engine", daemon=True)
        self._thread.start()
        return True

    # The thread

    def run(self, *, restarts_dead: bool = False) -> None:
        """Run the thread: turn until stopped or abandoned. Never raises."""
        try:
            if restarts_dead:
                free_unused_memory()  # the caches of the dead thread's models
                self._models.take_over()
                self.accept_requests()
            while not self._lifecycle.is_over(has_work=bool(len(self._outbox))):
                self.turn(DRAINING_WAIT_S if self._lifecycle.state == "draining" else IDLE_WAIT_S)
            self._end("engine_shutdown", "The server is shutting down.", "stopped")
        except BaseException as error:
            logger.exception("The engine thread crashed.")
            self._lifecycle.note_death(error)
            self._end("server_error", "The engine failed.", "failed")

    def turn(self, wait_s: float = 0.0) -> None:
        """Handle the inbox, waiting up to ``wait_s`` when idle, then run one step."""
        self._turns += 1
        if self._must_break_off:
            self._must_break_off = False
            raise StuckError("The engine thread made no progress on pending work.")
        self._take_messages(wait_s)
        self._step()

    def _take_messages(self, wait_s: float) -> None:
        """Handle up to COMMANDS_PER_TURN commands in the inbox; sleep only when idle."""
        patience_s = self._models.seconds_to_wait()
        if patience_s is None:
            self._lifecycle.note_work(busy=False)
            give_back_workers()
            if self._models.use_idle_time():
                wait_s = 0.0  # there may be more to do, or a request by now
        if patience_s != 0:
            self._heartbeat += 1
        elif self._is_stuck:
            patience_s = STUCK_WAIT_S
        patience_s = wait_s if patience_s is None else min(wait_s, patience_s)
        for message in islice(self._inbox.take(patience_s), COMMANDS_PER_TURN):
            self._handle(message)
            self._heartbeat += 1

    def _handle(self, message: EngineCommand) -> None:
        match message:
            case Submit():
                self._lifecycle.note_work(busy=True)
                self._outbox.deliver(self._models.add(message))
            case Cancel():
                self._outbox.deliver(self._models.cancel(message.sink))
            case Attach():
                self._settle(message, lambda: self._attach(message))
            case Detach():
                self._settle(message, lambda: self._detach(message.name))
            case Wake():
                pass

    def _settle(self, message: Attach | Detach, act: Callable[[], object]) -> None:
        """Run a command and settle its future in every case, also if this thread hangs in it and is abandoned."""
        self._current_command = message
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - the caller waits for it; the thread must go on
            _fail(message, error)
        except BaseException as error:
            _fail(message, EngineDownError(f"The engine thread crashed: {type(error).__name__}."))
            raise
        else:
            with suppress(InvalidStateError):  # it was abandoned meanwhile
                message.done.set_result(result)  # type: ignore[arg-type]
        finally:
            self._current_command = None

    def _attach(self, message: Attach) -> None:
        self._detach(message.loaded.name)
        with self._attaching():
            self._models.attach(message)

    @contextmanager
    def _attaching(self) -> Iterator[None]:
        self._attaching_since = time.monotonic()
        try:
            yield
        finally:
            self._heartbeat += 1
            self._attaching_since = None

    def _detach(self, name: str) -> object:
        left, ends = self._models.detach(name)
        self._outbox.deliver(ends)
        return left

    def _step(self) -> None:
        self._models.limit_growth(self._memory.growth())
        deliveries = self._models.step()
        self._is_stuck = deliveries is None and self._models.seconds_to_wait() == 0
        if deliveries is None:
            return
        self._outbox.deliver(deliveries)
        self._steps += 1
        self._heartbeat += 1

    def _end(self, code: str, text: str, state: EngineState) -> None:
        """Fail all accepted requests, also those still in the inbox, and accept nothing afterwards."""
        if not self._lifecycle.end(state):
            return
        if state == "stopped":
            self._models.forget()  # a dead thread's models are kept for its replacement
        self._models.end_all(code, text, self._outbox.deliver)
        self._fail_rest(code, text)

    def _fail_rest(self, code: str, text: str) -> None:
        """Fail all pending sequences and commands."""
        self._outbox.fail_all(code, text)
        for message in (*self._inbox.take(0), self._current_command):
            if isinstance(message, Attach | Detach):
                _fail(message, EngineDownError(text))


def _fail(message: Attach | Detach, error: BaseException) -> None:
    with suppress(InvalidStateError):
        message.done.set_exception(error)
