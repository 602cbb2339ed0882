"""The engine thread: takes requests, steps the models that have work, publishes events.

Other threads talk to it through an inbox only. Every accepted sequence ends with exactly one terminal event, also
when a step raises, its model goes, the engine stops, or the thread dies or hangs (see watchdog.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress

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
INTAKE_S = 600.0  # that taking in a model may last: memory for its keys and values, and on a GPU its graphs
END_WAIT_S = 10.0  # for the last step, after the time to drain is up
STUCK_WAIT_S = 0.02  # after a turn that should have done something and could not


class StuckError(RuntimeError):
    """The engine thread turned for too long without doing anything for those who wait."""


class EngineLoop:
    """One thread that owns the models. Public methods may be called from any other thread."""

    def __init__(self, config: EngineConfig, publish: Publish) -> None:
        self._config = config
        self._inbox = Inbox()
        self._outbox = Outbox(publish, config.max_batch_size + config.max_waiting_requests)
        self._models = AttachedModels(config)
        self._lifecycle = EngineLifecycle()
        self._memory = MemoryWatch()
        self._steps = 0
        self._heartbeat = 0
        self._turns = 0
        self._is_stuck = False  # the last turn could do nothing, though something was due
        self._must_break_off = False
        self._takes_in_since: float | None = None  # while the thread takes in a model
        self._in_hand: Attach | Detach | None = None
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
        self._lifecycle.begin()

    def submit(self, requests: Sequence[Request], sink: object) -> None:
        """Accept all requests or none; ``sink``, hashable, gets their events through ``publish``."""
        with self._lifecycle.accepting():
            self._models.require(requests)
            self._outbox.admit(requests, sink)
            self._inbox.put(Submit(tuple(requests), sink, time.monotonic()))

    def cancel(self, sink: object) -> None:
        """End the sink's sequences at the next step. Idempotent."""
        self._inbox.put(Cancel(sink))

    def attach(self, loaded: LoadedModel, kv_bytes: int = 0) -> Future[None]:
        """Take a model in, with so much memory for keys and values; 0: as the settings say."""
        message = Attach(loaded, kv_bytes)
        self._command(message)
        return message.done

    def detach(self, name: str) -> Future[object]:
        """Forget a model; what it runs fails with ``model_unloaded``.

        Resolves to what is left of it: who drops that last frees its memory, which takes too long for this thread.
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
        running = self._models.num_running
        return EngineStats(
            state=self._lifecycle.state,
            running=running,
            waiting=max(0, len(self._outbox) - running),
            free_slots=self._models.num_free_slots,
            steps=self._steps,
            models=self._models.names,
            error=self._lifecycle.error,
            restarts=self._lifecycle.restarts,
            by_model=self._models.stats(),
        )

    def check_integrity(self) -> None:
        """Raise AssertionError where accepted sequences and scheduled ones do not add up. Between two turns only."""
        self._models.check_integrity()
        held = self._models.num_running + self._models.num_waiting
        assert held <= len(self._outbox), "a sequence is scheduled whose reader has its terminal event"
        assert held == len(self._outbox) or not self._inbox.is_empty, "an accepted sequence is lost"

    def _command(self, message: Attach | Detach) -> None:
        try:
            with self._lifecycle.accepting():
                self._inbox.put(message)
        except EngineDownError as error:
            message.done.set_exception(error)

    # Called from the watchdog's thread

    @property
    def heartbeat(self) -> int:
        """Grows with every message and step, and while nothing is due: not with a turn that does nothing."""
        return self._heartbeat

    @property
    def turns(self) -> int:
        """Grows with every turn."""
        return self._turns

    def break_off(self) -> None:
        """End the thread at its next turn, as if it had died: it turns, but does nothing."""
        self._must_break_off = True
        self._inbox.put(Wake())

    @property
    def has_pending_work(self) -> bool:
        """Whether someone waits for the thread. Taking in a model may last: that counts after INTAKE_S only."""
        if self._takes_in_since is not None:
            return time.monotonic() - self._takes_in_since > INTAKE_S
        return bool(len(self._outbox) or not self._inbox.is_empty or self._in_hand is not None)

    @property
    def has_died(self) -> bool:
        """The thread ended, and nobody asked it to."""
        has_begun = self._thread.ident is not None
        return has_begun and not self._thread.is_alive() and self._lifecycle.state != "stopped"

    @property
    def error(self) -> str:
        return self._lifecycle.error

    def abandon(self, error: str) -> None:
        """Fail all who wait, without the thread's help; nothing is accepted afterwards. A thread that hangs is left
        alone with its models: should it wake up, its events go nowhere and it ends.
        """
        self._lifecycle.abandon(error, hangs=self._thread.is_alive())
        self._models.abandon()
        self._fail_rest("server_error", "The engine failed.")

    def restart(self) -> bool:
        """Start a new thread with the models of the dead one. False where that is not safe, or was done too often."""
        if self._thread.is_alive() or not self._lifecycle.may_restart():
            return False
        self._thread = threading.Thread(target=self.run, kwargs={"takes_over": True}, name="engine", daemon=True)
        self._thread.start()
        return True

    # The thread

    def run(self, *, takes_over: bool = False) -> None:
        """The thread's body: turns until it is told to stop or given up. Raises nothing."""
        try:
            if takes_over:
                free_unused_memory()  # the caches of the dead one's models
                self._models.take_over()
                self.accept_requests()
            while not self._lifecycle.is_over(has_work=bool(len(self._outbox))):
                self.turn(DRAINING_WAIT_S if self._lifecycle.state == "draining" else IDLE_WAIT_S)
            self._end("engine_shutdown", "The server is shutting down.", "stopped")
        except BaseException as error:
            logger.exception("The engine thread died.")
            self._lifecycle.note_death(error)
            self._end("server_error", "The engine failed.", "failed")

    def turn(self, wait_s: float = 0.0) -> None:
        """Handle what is in the inbox, waiting ``wait_s`` for it when nothing else is to do; then make one step."""
        self._turns += 1
        if self._must_break_off:
            self._must_break_off = False
            raise StuckError("Turns did nothing for those who wait.")
        self._take_messages(wait_s)
        self._step()

    def _take_messages(self, wait_s: float) -> None:
        """Handle all that is in the inbox; sleep only when there is nothing to do."""
        patience_s = self._models.seconds_to_wait()
        if patience_s is None:
            self._lifecycle.note_work(busy=False)
            give_back_workers()
        if patience_s != 0:
            self._heartbeat += 1
        elif self._is_stuck:
            patience_s = STUCK_WAIT_S
        for message in self._inbox.take(wait_s if patience_s is None else min(wait_s, patience_s)):
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
        """Run a command and settle its future in every case, also if this thread hangs in it and is given up."""
        self._in_hand = message
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - the caller waits for it; the thread must go on
            _fail(message, error)
        except BaseException as error:
            _fail(message, EngineDownError(f"The engine died: {type(error).__name__}."))
            raise
        else:
            with suppress(InvalidStateError):  # it was given up meanwhile
                message.done.set_result(result)  # type: ignore[arg-type]
        finally:
            self._in_hand = None

    def _attach(self, message: Attach) -> None:
        self._detach(message.loaded.name)
        with self._taking_in_a_model():
            self._models.attach(message)

    @contextmanager
    def _taking_in_a_model(self) -> Iterator[None]:
        self._takes_in_since = time.monotonic()
        try:
            yield
        finally:
            self._heartbeat += 1
            self._takes_in_since = None

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
        """Fail all that was accepted, waiting in the inbox included; nothing is accepted afterwards."""
        if not self._lifecycle.end(state):
            return
        if state == "stopped":
            self._models.forget()  # a dead thread's are kept for the one that takes over
        self._models.end_all(code, text, self._outbox.deliver)
        self._fail_rest(code, text)

    def _fail_rest(self, code: str, text: str) -> None:
        """Whoever still waits: for a sequence or for a command."""
        self._outbox.fail_all(code, text)
        for message in (*self._inbox.take(0), self._in_hand):
            if isinstance(message, Attach | Detach):
                _fail(message, EngineDownError(text))


def _fail(message: Attach | Detach, error: BaseException) -> None:
    with suppress(InvalidStateError):
        message.done.set_exception(error)
