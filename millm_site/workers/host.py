"""The main process's side of one web worker: answers its calls."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol

from console.load.sampler import LiveLoad
from core.errors import MillmError
from core.runtime import runtime
from inference.client import EngineStats, get_client
from inference.registry.registry import get_registry
from inference.web_worker.host import EngineRelay
from inference.web_worker.link import Call, Link, Message
from media.backend import MEDIA_CLIENT
from media.messages import Done, Event, Failed, Task
from media.queue import VIDEO_QUEUE
from millm_site.workers.limits import KeyLedger
from millm_site.workers.metrics import Increases, ProcessFamily, add_increases
from openai_api.request_log.metrics import Use, recent_use
from openai_api.request_log.writer import LogBacklog

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker reports every second, and when the metrics are read. ``is_alive``: its event loop runs."""

    increases: Increases
    use: Use
    backlog: LogBacklog
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class Report:
    """What the main process reports to every worker, twice a second and after changes."""

    loads: dict[str, int]  # loaded models, with the number of the load
    live_load: LiveLoad
    backlog: LogBacklog


class Site(Protocol):
    """What the main process does for all its workers."""

    loop: asyncio.AbstractEventLoop

    @property
    def pool(self) -> Executor: ...

    def note_change(self) -> None:
        """Report soon, because the engine's numbers have changed."""

    async def exposition(self, accept: str) -> tuple[bytes, str]: ...

    async def spread_change(self, sender: WorkerHost, channel: str, ids: Collection[int] | None) -> None:
        """Return when the main process and all other workers have reloaded what the sender has changed."""

    def forget_sae(self, checksum: str) -> None:
        """Free an SAE in the main process and in all workers."""


class WorkerHost:
    """One worker process. A thread reads its messages until it ends, and then calls ``on_end``."""

    def __init__(
        self,
        number: int,
        process: subprocess.Popen[bytes],
        link: Link,
        site: Site,
        *,
        on_ready: Callable[[WorkerHost], None],
        on_end: Callable[[WorkerHost], None],
    ) -> None:
        self.number = number
        self.process = process
        self.link = link
        self.is_ready = False
        self.started_at = self.alive_at = time.monotonic()
        self.kill_at = float("inf")
        self.late_since: float | None = None  # without a sign of life for too long
        self.backlog = LogBacklog()
        self._site = site
        self._on_ready = on_ready
        self._on_end = on_end
        self._media: dict[str, str] = {}  # tasks of the media worker by this worker's ids
        self._counting = threading.Lock()
        self._ledger = KeyLedger(link)
        self._engine = EngineRelay(link, site.loop, site.pool, get_client(), get_registry(), site.note_change)
        self._methods: dict[str, Callable[..., object]] = {
            "serves": self._note_ready,
            "beat": self.take_beat,
            "media": self._begin_media,
            "cancel_media": self._cancel_media,
            "wake_videos": _wake_videos,
        }
        self._thread = threading.Thread(target=self._run, name=f"web-worker-{number}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def report(self, stats: EngineStats, report: Report) -> None:
        self.link.report(stats)
        self.link.notify("report", report)

    def take_beat(self, beat: Beat) -> None:
        """Count what the worker has counted."""
        with self._counting:
            if beat.is_alive:
                self.alive_at = time.monotonic()
            self.backlog = beat.backlog
            add_increases(beat.increases)
            recent_use.add(beat.use)

    async def flushed(self) -> tuple[ProcessFamily, ...]:
        """Count what the worker has counted until now, and return the metrics about its process."""
        beat, families = await asyncio.wrap_future(self.link.call("flush_metrics"))
        self.take_beat(beat)
        found: tuple[ProcessFamily, ...] = families
        return found

    def _run(self) -> None:
        self.link.run(self._handle)
        self.link.close()
        self._engine.close()
        self._ledger.close()
        for task in list(self._media.values()):
            runtime.get(MEDIA_CLIENT).cancel(task)
        self._on_end(self)

    def _handle(self, message: Message) -> None:
        try:
            self._dispatch(message)
        except Exception as error:
            if not isinstance(message, Call):
                raise
            logger.exception("The call %s of web worker %d failed.", message.method, self.number)
            self.link.refuse(message, error)

    def _dispatch(self, message: Message) -> None:
        if self._engine.handle(message) or not isinstance(message, Call) or self._ledger.handle(message):
            return
        match message.method:
            case "metrics":
                self._answer_later(message, self._site.exposition(*message.arguments))
            case "changed":
                self._answer_later(message, self._site.spread_change(self, *message.arguments))
            case "unload_sae":
                self._site.pool.submit(self.link.answer, message, self._site.forget_sae)
            case _:
                self.link.answer(message, self._methods[message.method])

    def _answer_later(self, call: Call, work: Any) -> None:
        done: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._site.loop)
        done.add_done_callback(lambda ended: self.link.answer_when(call, ended))

    def _note_ready(self) -> None:
        self.is_ready, self.alive_at = True, time.monotonic()
        self._on_ready(self)

    def _begin_media(self, task_id: str, task: Task) -> None:
        def sink(event: Event) -> None:
            if isinstance(event, Done | Failed):
                self._media.pop(task_id, None)
            self.link.notify("media_event", task_id, event)

        try:
            self._media[task_id] = runtime.get(MEDIA_CLIENT).send(task, sink)
        except MillmError as error:
            self.link.notify(
                "media_event", task_id, Failed(task_id, error.code or "server_error", error.message, error.status)
            )

    def _cancel_media(self, task_id: str) -> None:
        task = self._media.pop(task_id, None)
        if task is not None:
            runtime.get(MEDIA_CLIENT).cancel(task)


def _wake_videos() -> None:
    queue = runtime.find(VIDEO_QUEUE)
    if queue is not None:
        queue.wake()
