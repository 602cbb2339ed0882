"""Start an engine process, call it, and start it again when it ends. One supervisor has one process at a time."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from inference.engine.errors import EngineDownError
from inference.engine.messages import Event
from inference.engine.stats import EngineStats
from inference.engine_process.channel import Call, CancelStream, Events, Message, Refusal, Reply, Status
from inference.engine_process.launcher import Launched, Launcher, LaunchError, LocalLauncher

logger = logging.getLogger(__name__)
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0  # before a restart; it doubles if the process does not live long
HEALTHY_S = 300.0
POLL_S = 0.1
START_S = 180.0  # that a call waits for the process to start
END_S = 15.0  # for the process to end after its connection is closed
GRACE_S = 5.0  # for a report that is late
SILENT_S = 5.0  # reports come twice a second
OnEvents = Callable[[list[tuple[str, Event]]], None]
OnChange = Callable[[], None]
STARTING = EngineStats(state="starting", error="The engine process is starting.")


class EngineSupervisor:
    """One engine process at a time. Thread-safe. A process that reports nothing for ``stall_s`` is killed."""

    def __init__(
        self,
        launcher: Launcher | None = None,
        *,
        stall_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_events: OnEvents = lambda deliveries: None
        self._on_death: OnChange = lambda: None
        self._on_start: OnChange = lambda: None
        self._launcher = launcher or LocalLauncher()
        self._stall_s = stall_s
        self._clock = clock
        self._lock = threading.Lock()  # guards the process and its calls
        self._running: Launched | None = None
        self._calls: dict[int, Future[Any]] = {}
        self._ids = itertools.count()
        self._stats = STARTING
        self._reported_at = 0.0
        self._restarts = 0
        self._is_up = threading.Event()  # the process has reported
        self._cannot_start = False  # the last process ended before it reported
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="engine-supervisor", daemon=True)

    @property
    def pid(self) -> int | None:
        """The id of the process, or None if there is none."""
        running = self._running
        return None if running is None else running.pid

    @property
    def place(self) -> str:
        """Where the process runs, for people; empty if there is none."""
        running = self._running
        return "" if running is None else running.place

    @property
    def device(self) -> tuple[str, str] | None:
        """The machine and the GPUs that the process sees, or None if there is no process."""
        running = self._running
        return None if running is None else running.device

    @property
    def is_up(self) -> bool:
        """Whether calls reach the engine."""
        return self._is_up.is_set() and not self._is_over.is_set()

    @property
    def is_silent(self) -> bool:
        """Whether the process has not reported lately: it may hang."""
        return self._clock() - self._reported_at > SILENT_S

    @property
    def is_starting(self) -> bool:
        """Whether the process may report for the first time soon: it does not end at each start."""
        return not (self._is_up.is_set() or self._cannot_start or self._is_over.is_set())

    @property
    def restarts(self) -> int:
        """The number of processes that ended and were replaced."""
        return self._restarts

    @property
    def num_calls(self) -> int:
        """The number of calls without an answer."""
        return len(self._calls)

    def listen(self, on_events: OnEvents, on_death: OnChange, on_start: OnChange = lambda: None) -> None:
        """Set what is called, on the supervisor's thread. ``on_death``: after each end of the process; ``on_start``:
        when a process accepts calls.
        """
        self._on_events, self._on_death, self._on_start = on_events, on_death, on_start

    def start(self) -> None:
        """Start the process and return at once."""
        self._thread.start()

    @property
    def reported(self) -> EngineStats:
        """What the engine last reported, about its own process."""
        return self._stats

    def stats(self) -> EngineStats:
        """Return what the engine last reported. Its restarts include those of the process."""
        return replace(self._stats, restarts=self._stats.restarts + self._restarts)

    def call(self, method: str, *arguments: object) -> Future[Any]:
        """Call the engine. The future raises what the method raises, or EngineDownError."""
        done: Future[Any] = Future()
        with self._lock:
            running = self._running
            if running is not None and self._is_up.is_set():
                call = Call(next(self._ids), method, arguments)
                self._calls[call.id] = done
                try:
                    running.channel.send(call)
                except BaseException:
                    del self._calls[call.id]
                    raise
                return done
        done.set_exception(EngineDownError(self._stats.error or f"The engine is {self._stats.state}."))
        return done

    def call_when_up(self, method: str, *arguments: object) -> Any:
        """Wait for the process to start, and for the answer. Raise EngineDownError, at once if it cannot start."""
        deadline = self._clock() + START_S
        while not self._is_up.wait(POLL_S) and not self._cannot_start and self._clock() < deadline:
            pass
        return self.call(method, *arguments).result()

    def cancel(self, stream_id: str) -> None:
        """Cancel the sequences of a stream."""
        with self._lock:
            if self._running is not None:
                self._running.channel.send(CancelStream(stream_id))

    def stop(self, drain_s: float) -> None:
        """Let running sequences finish for ``drain_s``, then end the process. Idempotent."""
        self._is_over.set()
        self._launcher.close()
        drained = self.call("stop", drain_s)
        try:
            drained.result(drain_s + END_S)
        except (EngineDownError, TimeoutError) as error:
            logger.debug("The engine process was not drained: %s", error)
        with self._lock:
            if self._running is not None:
                self._running.channel.close()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(2 * END_S)
        self._stats = EngineStats(state="stopped")

    def _run(self) -> None:
        """Run one process after another until stopped."""
        pause_s = FIRST_PAUSE_S / 2
        while not self._is_over.is_set():
            begun_at = self._clock()
            how = self._run_once()
            if self._is_over.is_set():
                return
            lived_s = self._clock() - begun_at
            pause_s = FIRST_PAUSE_S if lived_s > HEALTHY_S else min(2 * pause_s, LONGEST_PAUSE_S)
            self._restarts += 1
            logger.error("The engine process ended with %s. It starts again in %g s.", how, pause_s)
            self._is_over.wait(pause_s)

    def _run_once(self) -> str:
        """Run a process until it ends. Return how it ended."""
        try:
            running = self._launcher.launch()
        except LaunchError as error:
            self._note_end(str(error))
            return str(error)
        with self._lock:
            self._running = running
            if self._is_over.is_set():  # stop() has not seen it
                running.channel.close()
        self._read(running)
        return self._end(running)

    def _read(self, running: Launched) -> None:
        """Handle messages until the process ends. Kill it if it is silent for too long."""
        is_late = False
        while True:
            patience_s = self._stall_s if self._is_up.is_set() else max(START_S, self._stall_s)
            try:
                message = running.channel.receive(GRACE_S if is_late else patience_s)
            except EOFError:
                return
            except TimeoutError:
                if is_late:
                    logger.error("The engine process has been silent for %g s and is killed.", patience_s)
                    running.kill()
                    running.channel.close()  # a machine that is gone does not
                is_late = True  # it may only be late, if this process was itself suspended
                continue
            except Exception:
                logger.exception("A message of the engine process cannot be read; the process is killed.")
                running.kill()
                running.channel.close()
                continue
            is_late = False
            try:
                self._handle(message)
            except Exception:
                logger.exception("A message of the engine process could not be handled.")

    def _handle(self, message: Message) -> None:
        match message:
            case Events():
                self._on_events(message.deliveries)
            case Status():
                self._stats = message.stats
                self._reported_at = self._clock()
                self._cannot_start = False
                if not self._is_up.is_set():
                    self._is_up.set()
                    self._on_start()
            case Reply():
                self._settle(message.id, lambda done: done.set_result(message.value))
            case Refusal():
                self._settle(message.id, lambda done: done.set_exception(message.error()))

    def _settle(self, call_id: int, act: Callable[[Future[Any]], None]) -> None:
        with self._lock:
            done = self._calls.pop(call_id, None)
        if done is not None and done.set_running_or_notify_cancel():
            act(done)

    def _end(self, running: Launched) -> str:
        """Reap the process, and fail its calls. Return how it ended."""
        running.channel.close()
        how = running.wait(END_S)
        if how is None:
            running.kill()
            how = running.wait(None) or "an unknown end"
        self._note_end(how)
        return how

    def _note_end(self, how: str) -> None:
        with self._lock:
            self._cannot_start = not self._is_up.is_set()
            self._is_up.clear()
            self._running = None
            self._stats = EngineStats(state="failed", error=f"The engine process ended with {how}.")
            calls, self._calls = self._calls, {}
        _fail(calls.values(), EngineDownError("The engine process ended. Try again."))
        if not self._is_over.is_set():
            self._stats = EngineStats(state="starting", error=f"The engine process ended with {how} and starts again.")
        self._on_death()


def _fail(calls: Iterable[Future[Any]], error: EngineDownError) -> None:
    for done in calls:
        if done.set_running_or_notify_cancel():
            done.set_exception(error)
