"""A web worker: serves HTTP with the engine, the models and the limits of the main process."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from console.load.sampler import LIVE_LOAD, LiveLoad
from console.login_limit import LOGIN_LIMIT
from core.runtime import runtime
from core.snapshots import start_listening, stop_listening, take_change, tell_changes
from inference.client import ENGINE_CLIENT
from inference.registry.registry import MODEL_REGISTRY
from inference.steering_refs import ENGINE_SAES, STEERING_COMPILER
from inference.web_worker.client import WorkerEngine, WorkerEngineClient, WorkerRegistry, WorkerSAEs
from inference.web_worker.link import Call, Link, Message
from media.backend import MEDIA_CLIENT, is_installed
from media.client import MediaClient, Sink
from media.messages import Done, Event, Failed, Task
from media.queue import VIDEO_QUEUE
from millm_site.http.metrics import EXPOSITION
from millm_site.options import inherit_options
from millm_site.serving import serving
from millm_site.workers.host import Beat, Report
from millm_site.workers.limits import WorkerLimits, WorkerLogins
from millm_site.workers.metrics import MetricsSource, ProcessFamily, process_families
from openai_api.http.in_flight import Board, in_flight
from openai_api.keys.limits import RATE_LIMITS
from openai_api.request_log.metrics import recent_use
from openai_api.request_log.writer import BACKLOG_OF_ALL, LogBacklog, own_backlog

logger = logging.getLogger(__name__)
BEAT_S = 1.0
CHANGE_S = 5.0  # that a write waits for the main process to spread it
END_S = 5.0  # to end after the main process has ended
CALLS = 4


@dataclass(frozen=True, slots=True)
class Order:
    """What the main process passes on: numbers of open files, the place on the board of requests in progress, and its
    options by variable.
    """

    link: int
    listeners: dict[str, int]
    board: int
    place: int
    options: dict[str, str]


class WorkerMedia(MediaClient):
    """The media worker behind the link."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._sinks: dict[str, Sink] = {}

    def send(self, request: Task, sink: Sink) -> str:
        task_id = self._new_task()
        self._sinks[task_id] = sink
        self._link.notify("media", task_id, request)
        return task_id

    def cancel(self, task: str) -> None:
        if self._sinks.pop(task, None) is not None:
            self._link.notify("cancel_media", task)

    def take(self, task_id: str, event: Event) -> None:
        """Take an event from the link."""
        is_last = isinstance(event, Done | Failed)
        sink = self._sinks.pop(task_id, None) if is_last else self._sinks.get(task_id)
        if sink is not None:
            sink(event)


class WorkerVideos:
    """The queue of videos behind the link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def wake(self) -> None:
        self._link.notify("wake_videos")


@dataclass(slots=True)
class _Reported:
    """What the main process last reported."""

    live_load: LiveLoad = field(default_factory=LiveLoad)
    backlog: LogBacklog = field(default_factory=LogBacklog)


class WebWorker:
    """The parts of a worker. :meth:`start` installs them in this process."""

    def __init__(self, link: Link, *, on_orphaned: Callable[[], None]) -> None:
        """``on_orphaned`` is called on a thread of the worker when the main process has ended."""
        self._link = link
        self._on_orphaned = on_orphaned
        self._engine = WorkerEngine(link)
        self._client = WorkerEngineClient(self._engine)
        self._registry = WorkerRegistry(link)
        self._media = WorkerMedia(link)
        self._metrics = MetricsSource()
        self._counting = threading.Lock()
        self._pool = ThreadPoolExecutor(CALLS, thread_name_prefix="worker-calls")
        self._reported = _Reported()
        self._is_over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._retire: Callable[[], None] = lambda: None
        self._loop_ran = threading.Event()
        self._loop_ran.set()

    def start(self) -> None:
        """Use the main process from now on."""
        link = self._link
        gc.freeze()  # as in a process with the engine: a full collection would stop all streams
        runtime.install(ENGINE_CLIENT, self._client)
        runtime.install(MODEL_REGISTRY, self._registry)
        runtime.install(ENGINE_SAES, WorkerSAEs(link))
        runtime.install(RATE_LIMITS, WorkerLimits(link))
        runtime.install(LOGIN_LIMIT, WorkerLogins(link))
        runtime.install(LIVE_LOAD, lambda: self._reported.live_load)
        runtime.install(BACKLOG_OF_ALL, lambda: self._reported.backlog)
        runtime.install(EXPOSITION, self._exposition)
        if is_installed():
            runtime.install(MEDIA_CLIENT, self._media)
            videos: Any = WorkerVideos(link)
            runtime.install(VIDEO_QUEUE, videos)
        tell_changes(self._tell_change)
        threading.Thread(target=self._run, name="worker-link", daemon=True).start()
        start_listening()

    def begin(self, loop: asyncio.AbstractEventLoop, *, retire: Callable[[], None]) -> None:
        """Report that the worker serves, and beat. ``loop`` serves the requests; ``retire`` hands over to another."""
        self._loop, self._retire = loop, retire
        self._link.notify("serves")
        threading.Thread(target=self._beat, name="worker-beat", daemon=True).start()

    def stop_engine(self, drain_s: float) -> None:
        """Fail what still runs and refuse new requests."""
        self._client.stop(drain_s)

    def stop(self) -> None:
        """Send what was counted, and close the link."""
        self._is_over.set()
        stop_listening()
        self._link.notify("beat", self._counted(is_alive=True))
        self._link.flush()
        self._link.close()

    def _run(self) -> None:
        self._link.run(self._handle)
        if not self._is_over.is_set():
            self._client.note_death()
            self._on_orphaned()

    def _handle(self, message: Message) -> None:
        if self._client.take(message):
            return
        assert isinstance(message, Call), "the client takes all others"
        match message.method:
            case "report":
                self._note_report(*message.arguments)
            case "take_change":
                self._pool.submit(self._link.answer, message, take_change)
            case "flush_metrics":
                self._pool.submit(self._link.answer, message, self._flushed)
            case "forget_sae":
                self._link.answer(message, runtime.get(STEERING_COMPILER).unload_sae)
            case "retire":
                self._retire()
            case "media_event":
                self._media.take(*message.arguments)

    def _note_report(self, report: Report) -> None:
        self._registry.note_loads(report.loads)
        self._reported.live_load, self._reported.backlog = report.live_load, report.backlog

    def _flushed(self) -> tuple[Beat, tuple[ProcessFamily, ...]]:
        return self._counted(is_alive=False), process_families()

    def _counted(self, *, is_alive: bool) -> Beat:
        with self._counting:
            return Beat(self._metrics.take(), recent_use.take(), own_backlog(), is_alive)

    def _beat(self) -> None:
        while not self._is_over.wait(BEAT_S):
            self._link.notify("beat", self._counted(is_alive=self._loop_ran.is_set()))
            if self._loop_ran.is_set() and self._loop is not None:
                self._loop_ran.clear()
                try:
                    self._loop.call_soon_threadsafe(self._loop_ran.set)
                except RuntimeError:  # it is closed
                    return

    def _tell_change(self, channel: str, ids: Collection[int] | None) -> None:
        """Return when the other processes have reloaded what this one has changed."""
        if not self._is_over.is_set():
            try:
                self._link.call("changed", channel, ids).result(CHANGE_S)
            except Exception as error:  # noqa: BLE001 - the write is committed, and the database notifies the others
                logger.warning("A change of %s could not be passed on: %s", channel, error)

    async def _exposition(self, accept: str) -> tuple[bytes, str]:
        found: tuple[bytes, str] = await asyncio.wrap_future(self._link.call("metrics", accept))
        return found


def main(order: Order) -> None:
    """Serve until the main process sends SIGTERM, or ends."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the server handles it
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for descriptor in (order.link, order.board, *order.listeners.values()):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's signature
    inherit_options(order.options)
    in_flight.share(Board(order.board), order.place)
    worker = WebWorker(Link(socket.socket(fileno=order.link)), on_orphaned=_end_soon)
    serving.work_for(worker)
    from millm_site.server.site import worker_server

    listeners = {prefix: socket.socket(fileno=number) for prefix, number in order.listeners.items()}
    server = worker_server(listeners)
    serving.on_failure(lambda: server.stop_soon(0.0))
    server.run(with_signals=True, on_ready=lambda: worker.begin(asyncio.get_event_loop(), retire=server.retire_soon))
    serving.stop(0.0)
    logging.shutdown()
    os._exit(0)  # threads may still wait for the main process


def _end_soon() -> None:
    """End the process, whose main process has ended: at once for requests, and in any case after a moment."""
    logger.error("The main process has ended; this web worker ends too.")
    watchdog = threading.Timer(END_S, os._exit, (1,))
    watchdog.daemon = True
    watchdog.start()
    serving.fail("The main process has ended.")
