"""The server's side of the media worker: start the process, send it requests, and receive their events.

One process serves all media models. It starts with the first load. If it dies, open requests fail with
``media_worker_died``, its models count as unloaded, and the next load starts another one, after a pause that grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from core.errors import MillmError
from media import metrics
from media.messages import (
    Cancel,
    Done,
    Event,
    Failed,
    GenerateImages,
    GenerateVideo,
    Load,
    ModelFacts,
    ModelSpec,
    Progress,
    Task,
    Unload,
)

logger = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[1]
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
HEALTHY_S = 300.0  # a worker that lived so long was not broken from the start
STOP_S = 5.0
MAX_OPEN = 64  # requests that run or wait
RETRY_S = 5.0

ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",  # no progress bars in the log
    "TRANSFORMERS_VERBOSITY": "error",  # its advice is for users of the library
    "DIFFUSERS_VERBOSITY": "error",
    "OMP_WAIT_POLICY": "passive",  # threads that spin would take the engine's cores
    "SVT_LOG": "1",  # only errors of the AV1 encoder
}

Sink = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class _OpenTask:
    """A request that has not ended, the model that it uses, and where its events go."""

    sink: Sink
    model: str | None = None
    is_load: bool = False
    has_steps: bool = False


@dataclass(frozen=True, slots=True)
class _Running:
    """A worker process, and both ends of our side of its socket."""

    process: subprocess.Popen[bytes]
    connection: Connection
    socket: socket.socket
    started_at: float


class WorkerDiedError(MillmError):
    """The worker process died while it ran the request."""

    status = 502
    code = "media_worker_died"


class WorkerBusyError(MillmError):
    """Too many requests are waiting, or the worker is about to be restarted."""

    status = 503
    code = "overloaded"


def error_of(event: Failed) -> MillmError:
    return MillmError(event.message, status=event.status, code=event.code, param=event.param)


class MediaTask:
    """The events of a request, up to and including :class:`Done`. A failure is raised as MillmError.

    Waiting for an event may be cancelled and repeated. A consumer that stops early calls :meth:`cancel`.
    """

    def __init__(self, events: asyncio.Queue[Event], cancel: Callable[[], None]) -> None:
        self._events = events
        self._cancel = cancel
        self.has_ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if self.has_ended:
            raise StopAsyncIteration
        event = await self._events.get()
        self.has_ended = isinstance(event, Done | Failed)
        if isinstance(event, Failed):
            raise error_of(event)
        return event

    def cancel(self) -> None:
        """Stop the task if it has not ended. Callable from any thread."""
        if not self.has_ended:
            self.has_ended = True
            self._cancel()


class MediaClient:
    """Thread-safe. ``on_death`` is called on the reader's thread with the models that were loaded."""

    def __init__(
        self,
        *,
        on_death: Callable[[frozenset[str]], None] = lambda names: None,
        command: tuple[str, ...] = (sys.executable, "-m", "media.worker.process"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_death = on_death
        self._command = command
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._worker: _Running | None = None
        self._tasks: dict[str, _OpenTask] = {}
        self._models: set[str] = set()
        self._pause_s = FIRST_PAUSE_S
        self._not_before = 0.0
        self._numbers = itertools.count(1)
        self._is_stopped = False
        metrics.OPEN.set_function(lambda: self.num_open)

    @property
    def pid(self) -> int | None:
        """Return the process id of the worker; None if it does not run."""
        worker = self._worker
        return None if worker is None else worker.process.pid

    @property
    def num_open(self) -> int:
        """Return the number of requests that run or wait."""
        return len(self._tasks)

    def is_busy(self, model: str) -> bool:
        """Return whether requests for the model run or wait."""
        with self._lock:
            return any(task.model == model for task in self._tasks.values())

    def load(self, spec: ModelSpec) -> Future[ModelFacts]:
        """Start the worker if necessary, and load a model."""
        done: Future[ModelFacts] = Future()
        done.add_done_callback(lambda ended: self._note_load(spec.name, ended))
        self._call(Load(self._new_task(), spec), done, starts=True)
        return done

    def unload(self, name: str) -> Future[None]:
        """Unload a model. A worker without models ends, so that its memory is free."""
        done: Future[None] = Future()
        with self._lock:
            self._models.discard(name)
            is_last = not self._models and not any(task.is_load for task in self._tasks.values())
        if is_last:
            self._stop_process()
            done.set_result(None)
        else:
            self._call(Unload(self._new_task(), name), done)
        return done

    def submit(self, request: Task) -> MediaTask:
        """Send a request, whose task gets an id, and return its events. Raise MillmError if it cannot be sent."""
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Event] = asyncio.Queue()

        def sink(event: Event) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(events.put_nowait, event)

        return MediaTask(events, partial(self.cancel, self.send(request, sink)))

    def send(self, request: Task, sink: Sink) -> str:
        """Send a request whose events go to ``sink``, on the reader's thread. Return the id that the task gets."""
        request = replace(request, task=self._new_task())
        self._send(request, sink)
        return request.task

    def cancel(self, task: str) -> None:
        """Stop a task; its events are dropped from now on."""
        with self._lock:
            if task in self._tasks and self._worker is not None:
                self._tasks[task] = replace(self._tasks[task], sink=lambda event: None)
                self._write(Cancel(task))

    def stop(self) -> None:
        """End the worker and fail its requests. Nothing can be loaded any more."""
        with self._lock:
            self._is_stopped = True
        self._stop_process()

    def _new_task(self) -> str:
        return f"t{next(self._numbers)}"

    def _call(self, request: Load | Unload, done: Future[Any], *, starts: bool = False) -> None:
        done.set_running_or_notify_cancel()  # cannot be cancelled from now on

        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                done.set_exception(error_of(event))
            elif isinstance(event, Done):
                done.set_result(event.result)

        try:
            self._send(request, sink, starts=starts)
        except MillmError as error:
            done.set_exception(error)

    def _send(self, request: Any, sink: Sink, *, starts: bool = False) -> None:
        with self._lock:
            if self._worker is None:
                if not starts:
                    raise WorkerDiedError("The media worker is not running; load the model again.")
                self._start()
            if len(self._tasks) >= MAX_OPEN:
                raise WorkerBusyError(f"{MAX_OPEN} media requests are waiting. Try again later.", retry_after_s=RETRY_S)
            self._tasks[request.task] = _OpenTask(
                sink,
                getattr(request, "model", None),
                is_load=isinstance(request, Load),
                has_steps=isinstance(request, GenerateImages | GenerateVideo),
            )
            self._write(request)

    def _start(self) -> None:
        """Start the process. Called with the lock held. Raise WorkerBusyError during a pause."""
        now = self._clock()
        if self._is_stopped:
            raise WorkerDiedError("The server is shutting down.", status=503, code="engine_unavailable")
        if now < self._not_before:
            wait_s = self._not_before - now
            raise WorkerBusyError(f"The media worker crashed; it restarts in {wait_s:.0f} s.", retry_after_s=wait_s)
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **ENVIRONMENT}
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [*self._command, str(theirs.fileno())],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # Ctrl-C is for the server; in its session, or niceness would not count between them
            )
        self._worker = _Running(process, Connection(os.dup(ours.fileno())), ours, now)
        threading.Thread(target=self._read, args=(self._worker,), name="media-client", daemon=True).start()

    def _write(self, message: Any) -> None:
        """Send a message. Called with the lock held. If the worker is gone, its reader fails the requests."""
        assert self._worker is not None
        try:
            self._worker.connection.send(message)
        except (OSError, ValueError):
            logger.debug("A message could not be sent to the media worker.")

    def _read(self, worker: _Running) -> None:
        """Hand events to their sinks until the worker ends."""
        while True:
            try:
                event: Event = worker.connection.recv()
            except (EOFError, OSError):
                break
            with self._lock:
                is_last = isinstance(event, Done | Failed)
                task = self._tasks.pop(event.task, None) if is_last else self._tasks.get(event.task)
            if task is not None:
                _count(task, event)
                task.sink(event)
        self._end(worker)

    def _end(self, worker: _Running) -> None:
        """Reap the process. If nobody stopped it, fail the open requests and plan the restart."""
        worker.socket.close()
        try:
            code = worker.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            code = worker.process.wait()
        with self._lock:
            worker.connection.close()
            if self._worker is not worker:
                return
            self._worker = None
            tasks, self._tasks = self._tasks, {}
            models, self._models = frozenset(self._models), set()
            now = self._clock()
            was_healthy = now - worker.started_at > HEALTHY_S
            self._pause_s = FIRST_PAUSE_S if was_healthy else min(2 * self._pause_s, LONGEST_PAUSE_S)
            self._not_before = now + self._pause_s
        metrics.DEATHS.inc()
        logger.error("The media worker ended with %d; %d requests failed.", code, len(tasks))
        _fail(tasks, WorkerDiedError("The media worker crashed. Try again."))
        self._on_death(models)

    def _stop_process(self) -> None:
        """Close the connection, which ends the process. Its reader waits for it."""
        with self._lock:
            worker, self._worker = self._worker, None
            tasks, self._tasks = self._tasks, {}
            self._models.clear()
        if worker is not None:
            with contextlib.suppress(OSError):  # its reader closed the socket already
                worker.socket.shutdown(socket.SHUT_RDWR)
            _fail(tasks, WorkerDiedError("The model was unloaded.", status=503, code="model_unloaded"))
            worker.process.wait()

    def _note_load(self, name: str, ended: Future[ModelFacts]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            with self._lock:
                self._models.add(name)


def _count(task: _OpenTask, event: Event) -> None:
    """Count what the task has done, for the metrics."""
    if task.model is None:
        return
    if isinstance(event, Progress) and task.has_steps:
        metrics.STEPS.labels(task.model).inc()
    elif isinstance(event, Done):
        metrics.BUSY.labels(task.model).inc(event.busy_s)
        if isinstance(event.result, dict) and "seconds" in event.result:
            metrics.AUDIO.labels(task.model).inc(event.result["seconds"])


def _fail(tasks: Mapping[str, _OpenTask], error: MillmError) -> None:
    for name, task in tasks.items():
        task.sink(Failed(name, error.code or "server_error", error.message, error.status))
