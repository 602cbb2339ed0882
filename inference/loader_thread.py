"""The thread that loads and unloads models, one after the other, so that neither requests nor generation wait."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from inference.client import EngineDownError

logger = logging.getLogger(__name__)
Job = Callable[[], None]


class LoaderThread:
    """Runs jobs in order; every ``tick_s`` seconds without one it calls ``on_idle``.

    The thread starts with the first job. A job that raises fails its future and nothing else.
    """

    def __init__(self, on_idle: Callable[[], None], tick_s: float = 1.0) -> None:
        self._on_idle = on_idle
        self._tick_s = tick_s
        self._jobs: queue.SimpleQueue[tuple[Job, Future[None]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._last: Job | None = None

    def submit(self, job: Job) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            if self._last is not None:
                done.set_exception(EngineDownError("The model loader has stopped; the server is shutting down."))
                return done
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="model-loader", daemon=True)
                self._thread.start()
            self._jobs.put((job, done))
        return done

    def stop(self, last: Job, timeout_s: float) -> None:
        """Finish the job at hand, cancel the others, run ``last`` and end; waits for that ``timeout_s`` at most."""
        with self._lock:
            self._last = last
            thread = self._thread
        self._jobs.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while self._last is None:
            self._work()
        self._cancel_rest()
        self._guarded(self._last, None)
        connections.close_all()

    def _work(self) -> None:
        """One job, or the housekeeping when none comes."""
        try:
            item = self._jobs.get(timeout=self._tick_s)
        except queue.Empty:
            self._guarded(self._on_idle, None)
            return
        if item is None:
            return
        if self._last is None:
            self._guarded(*item)
        else:
            item[1].cancel()

    def _guarded(self, job: Job, done: Future[None] | None) -> None:
        close_old_connections()
        try:
            job()
        except Exception as error:
            if done is None:
                logger.warning("The model loader's housekeeping failed: %s", error, exc_info=not _is_outage(error))
            else:
                done.set_exception(error)
        else:
            if done is not None:
                done.set_result(None)
        finally:
            close_old_connections()

    def _cancel_rest(self) -> None:
        while not self._jobs.empty():
            item = self._jobs.get()
            if item is not None:
                item[1].cancel()


def _is_outage(error: Exception) -> bool:
    """The database is away: a line in the log is enough."""
    return isinstance(error, (DatabaseError, InterfaceError))
