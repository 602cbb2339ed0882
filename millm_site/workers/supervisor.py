"""Start the web workers, answer them, start them again when they end, and stop them.

The main thread decides: workers' threads and signals put what has happened into its queue. The workers inherit the
listening sockets, so connections that wait are accepted by any of them, also after one has died.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.exposition import choose_encoder

from console.load.sampler import own_live_load
from core.runtime import runtime
from core.snapshots import take_change, tell_changes
from inference.client import EngineDownError, EngineStats, get_client
from inference.registry.registry import get_registry
from inference.steering_refs import loaded_saes
from inference.web_worker.link import Link
from millm_site.http.failures import OLLAMA
from millm_site.options import applied_options
from millm_site.serving import serving
from millm_site.workers.host import Report, WorkerHost
from millm_site.workers.metrics import MAIN, AllProcesses, ProcessFamily, process_families
from openai_api.http.in_flight import Board, in_flight
from openai_api.request_log.writer import BACKLOG_OF_ALL, LogBacklog, own_backlog

logger = logging.getLogger(__name__)
COMMAND = (sys.executable, "-m", "millm_site.workers")
ROOT = Path(__file__).resolve().parents[2]
REPORT_S, CHANGE_S = 0.5, 0.05  # seconds between reports, at most and at least
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0  # before a restart; it doubles if the worker does not live long
HEALTHY_S = 30.0
STUCK_S = 60.0  # without a sign of life, after which a worker is killed
GRACE_S = 5.0  # for a sign that is late, because this process was itself suspended
STARTING_S = 300.0  # the same for a worker that starts
CLOSE_S = 15.0  # beyond the drain time, for a worker to end
TICK_S = 1.0
CALLS = 8  # threads for calls that wait
CHANGE_WAIT_S = 2.0  # for other workers to reload what one has changed
METRICS_WAIT_S = 2.0
PLACES = 4  # on the board of requests in progress, for each worker: those that replace others have their own


def by_prefix(listener: socket.socket, ollama: socket.socket | None) -> dict[str, socket.socket]:
    """Return the sockets by the prefix that is put before the paths of their requests."""
    return {"": listener} | ({} if ollama is None else {OLLAMA: ollama})


class WorkersFailedError(Exception):
    """The web workers cannot start."""


@dataclass(slots=True)
class _Slot:
    """A worker's place: its process, the one that replaces it, and when it starts again if it has none."""

    number: int
    worker: WorkerHost | None = None
    successor: WorkerHost | None = None
    start_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S / 2


class WebWorkers:
    """``count`` workers on ``listeners``, by the prefix that is put before the paths of their requests.

    The engine and the registry of this process must be running.
    """

    def __init__(self, listeners: Mapping[str, socket.socket], count: int, *, drain_s: float) -> None:
        self._listeners = listeners
        self._drain_s = drain_s
        self._slots = [_Slot(number) for number in range(1, count + 1)]
        self._happenings: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._board = Board.create(1 + PLACES * count)
        self._free_places = list(range(PLACES * count, 0, -1))
        self._places: dict[WorkerHost, int] = {}
        self._has_started = False
        self._is_stopping = False
        self._kill_at = float("inf")
        self._failure = ""
        self._reloading: list[_Slot] = []
        self._on_ready: Callable[[], None] = lambda: None
        self._has_changed = threading.Event()
        self._gone = LogBacklog()  # of workers that have ended
        self.loop = asyncio.new_event_loop()
        self.pool = ThreadPoolExecutor(CALLS, thread_name_prefix="worker-calls")

    def run(self, on_ready: Callable[[], None]) -> None:
        """Run the workers until SIGTERM or SIGINT and until they have ended; a second signal cancels their requests.

        SIGHUP replaces them one after the other. ``on_ready`` is called when all of them serve for the first time.
        Raise WorkersFailedError if they cannot start. For the main thread.
        """
        self._on_ready = on_ready
        in_flight.share(self._board, 0)
        runtime.install(BACKLOG_OF_ALL, self._backlog)
        tell_changes(self._tell_workers)
        threading.Thread(target=self.loop.run_forever, name="worker-relay", daemon=True).start()
        threading.Thread(target=self._report, name="worker-reports", daemon=True).start()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop_soon())
        signal.signal(signal.SIGHUP, lambda *_: self._happenings.put(self._reload))
        for slot in self._slots:
            slot.worker = self._start(slot)  # an error here is that of the start
        while self._workers() or not self._is_stopping:
            with suppress(queue.Empty):
                self._happenings.get(timeout=TICK_S)()
            self._tick(time.monotonic())
        if self._failure:
            raise WorkersFailedError(self._failure)

    def stop_soon(self) -> None:
        """Begin to stop, from any thread or signal handler. A second call cancels what is still running."""
        self._happenings.put(self._stop)

    # For the workers

    def note_change(self) -> None:
        self._has_changed.set()

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics of all processes."""
        workers = [worker for worker in self._workers() if worker.is_ready]
        found = await asyncio.gather(
            *(asyncio.wait_for(worker.flushed(), METRICS_WAIT_S) for worker in workers), return_exceptions=True
        )
        about: dict[str, tuple[ProcessFamily, ...]] = {MAIN: process_families()}
        about |= {
            str(worker.number): families
            for worker, families in zip(workers, found, strict=True)
            if not isinstance(families, BaseException)
        }
        encode, content_type = choose_encoder(accept)
        return await asyncio.to_thread(encode, AllProcesses(about)), content_type

    async def spread_change(self, sender: WorkerHost | None, channel: str, ids: Collection[int] | None) -> None:
        others = [worker for worker in self._workers() if worker.is_ready and worker is not sender]
        reloads = [asyncio.wrap_future(worker.link.call("take_change", channel, ids)) for worker in others]
        if sender is not None:
            reloads.append(asyncio.ensure_future(asyncio.to_thread(take_change, channel, ids)))
        if reloads:
            done, late = await asyncio.wait(reloads, timeout=CHANGE_WAIT_S)
            if late or any(reload.exception() for reload in done):
                logger.warning("A change of %s has not reached every process yet; the database notifies it.", channel)

    def forget_sae(self, checksum: str) -> None:
        loaded_saes().unload_sae(checksum)
        for worker in self._workers():
            worker.link.notify("forget_sae", checksum)

    def _tell_workers(self, channel: str, ids: Collection[int] | None) -> None:
        """Spread a change of this process, such as a job's."""
        if self.loop.is_running():
            asyncio.run_coroutine_threadsafe(self.spread_change(None, channel, ids), self.loop).result()

    def _report(self) -> None:
        """Report twice a second, and soon after sequences have ended or models were loaded or unloaded."""
        loads: dict[str, int] = {}
        due_at = 0.0
        while True:
            time.sleep(CHANGE_S)
            now, before, loads = time.monotonic(), loads, get_registry().loads()
            if now < due_at and loads == before and not self._has_changed.is_set():
                continue
            self._has_changed.clear()
            due_at = now + REPORT_S
            try:
                self._report_once(loads)
            except Exception:
                logger.exception("The web workers could not be told of the engine's state.")

    def _report_once(self, loads: dict[str, int]) -> None:
        stats, report = _stats(), Report(loads, own_live_load(), self._backlog())
        for worker in self._workers():
            worker.report(stats, report)

    def _backlog(self) -> LogBacklog:
        return sum((worker.backlog for worker in self._workers()), own_backlog() + self._gone)

    # On the main thread

    def _workers(self) -> list[WorkerHost]:
        """Return the running processes. Callable from any thread."""
        return [worker for slot in self._slots for worker in (slot.worker, slot.successor) if worker is not None]

    def _start_if_possible(self, slot: _Slot) -> WorkerHost | None:
        """Start a worker, or try again later if the system has no memory or files for it."""
        try:
            return self._start(slot)
        except OSError as error:
            logger.error("Web worker %d cannot be started: %s", slot.number, error)
            slot.start_at = time.monotonic() + LONGEST_PAUSE_S
            return None

    def _start(self, slot: _Slot) -> WorkerHost:
        ours, theirs = socket.socketpair()
        place = self._free_places[-1]
        inherited = {prefix: listener.fileno() for prefix, listener in self._listeners.items()}
        order = {
            "link": theirs.fileno(),
            "listeners": inherited,
            "board": self._board.descriptor,
            "place": place,
            "options": applied_options(),
        }
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - ourselves
                [*COMMAND, json.dumps(order)],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), self._board.descriptor, *inherited.values()),
                process_group=0,  # signals come from this process
            )
        worker = WorkerHost(
            slot.number,
            process,
            Link(ours),
            self,
            on_ready=lambda worker: self._happenings.put(lambda: self._note_ready(slot, worker)),
            on_end=lambda worker: self._happenings.put(lambda: self._note_end(slot, worker)),
        )
        self._places[worker] = self._free_places.pop()
        worker.report(_stats(), Report(get_registry().loads(), own_live_load(), LogBacklog()))
        worker.start()
        return worker

    def _note_ready(self, slot: _Slot, worker: WorkerHost) -> None:
        if worker is slot.successor:
            self._retire(slot.worker)
        if self._is_stopping:
            self._signal(worker)
        if not self._has_started and all(each.worker is not None and each.worker.is_ready for each in self._slots):
            self._has_started = True
            self._on_ready()

    def _note_end(self, slot: _Slot, worker: WorkerHost) -> None:
        code = _reap(worker.process)
        place = self._places.pop(worker)
        self._board.write(place, 0)
        self._free_places.append(place)
        self._gone += LogBacklog(0, worker.backlog.dropped)
        if worker is slot.successor:
            slot.successor = None
            logger.error("The web worker that was to replace number %d ended with %d.", slot.number, code)
            self._continue_reload()
            return
        slot.worker, slot.successor = slot.successor, None
        if slot.worker is not None:
            self._continue_reload()
        if self._is_stopping or slot.worker is not None:
            return
        if not self._has_started and not worker.is_ready:
            self._failure = f"A web worker ended with {code} before it served; see the log."
            self._stop()
            return
        lived_s = time.monotonic() - worker.started_at
        slot.pause_s = FIRST_PAUSE_S if lived_s > HEALTHY_S else min(2 * slot.pause_s, LONGEST_PAUSE_S)
        slot.start_at = time.monotonic() + slot.pause_s
        logger.error("Web worker %d ended with %d. It starts again in %g s.", slot.number, code, slot.pause_s)

    def _retire(self, worker: WorkerHost | None) -> None:
        if worker is not None:
            worker.kill_at = time.monotonic() + self._drain_s + CLOSE_S
            worker.link.notify("retire")

    def _tick(self, now: float) -> None:
        for slot in self._slots:
            if slot.worker is None and not self._is_stopping and now >= slot.start_at:
                slot.worker = self._start_if_possible(slot)
        for worker in self._workers():
            if self._is_stuck(worker, now) or now > min(self._kill_at, worker.kill_at):
                logger.error("Web worker %d does not respond and is killed.", worker.number)
                worker.process.kill()

    def _is_stuck(self, worker: WorkerHost, now: float) -> bool:
        if self._is_stopping or now - worker.alive_at <= (STUCK_S if worker.is_ready else STARTING_S):
            worker.late_since = None
        elif worker.late_since is None:
            worker.late_since = now
        return worker.late_since is not None and now - worker.late_since > GRACE_S

    def _reload(self) -> None:
        if not self._is_stopping and not self._reloading:
            logger.info("Replacing the web workers one after the other.")
            self._reloading = list(self._slots)
            self._replace_next()

    def _replace_next(self) -> None:
        """Start the successor of the next worker that runs."""
        while self._reloading:
            slot = self._reloading[0]
            if slot.worker is not None and slot.successor is None and not self._is_stopping:
                slot.successor = self._start_if_possible(slot)
                if slot.successor is not None:
                    return
            self._reloading.pop(0)

    def _continue_reload(self) -> None:
        if self._reloading:
            self._reloading.pop(0)
            self._replace_next()

    def _stop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._kill_at = time.monotonic() + self._drain_s + CLOSE_S
            serving.announce_stop()
        for worker in self._workers():
            self._signal(worker)

    def _signal(self, worker: WorkerHost | None) -> None:
        """Send SIGTERM: a worker drains, and at the second one cancels what still runs."""
        if worker is not None and worker.is_ready:
            worker.process.send_signal(signal.SIGTERM)
        elif worker is not None and self._is_stopping:
            worker.process.kill()  # it serves nobody yet


def _stats() -> EngineStats:
    try:
        return get_client().stats()
    except EngineDownError as error:
        return EngineStats("stopped", error=str(error))


def _reap(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
