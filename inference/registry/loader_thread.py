"""The thread that loads and unloads models one at a time, so that neither requests nor generation wait for it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from inference.client import EngineDownError, EngineError

logger = logging.getLogger(__name__)
Act = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Job:
    verb: str
    name: str
    act: Act
    done: Future[None] = field(default_factory=Future)


class LoaderThread:
    """Runs jobs in order, and calls ``on_idle`` after every ``tick_s`` seconds without one.

    The thread starts with the first job. An exception in a job fails the future of that job only. A request for the
    operation that is already the last one queued for a model joins that job, so repeated requests do not pile up.
    """

    def __init__(self, on_idle: Act, tick_s: float = 1.0) -> None:
        self._on_idle = on_idle
        self._tick_s = tick_s
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()  # guards _jobs, _thread and _last
        self._thread: threading.Thread | None = None
        self._last: Act | None = None

    @property
    def num_queued(self) -> int:
        """Return the number of jobs that have not started."""
        return len(self._jobs)

    def submit(self, verb: str, name: str, act: Act) -> Future[None]:
        """Queue ``act`` for the model ``name``. Joins the model's last queued job if that has the same ``verb``."""
        with self._changed:
            if self._last is not None:
                return _refused()
            waiting = next((job for job in reversed(self._jobs) if job.name == name), None)
            if waiting is not None and waiting.verb == verb:
                return waiting.done
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="model-loader", daemon=True)
                self._thread.start()
            job = _Job(verb, name, act)
            self._jobs.append(job)
            self._changed.notify()
        return job.done

    def stop(self, last: Act, timeout_s: float) -> None:
        """Finish the current job, cancel the queued ones, run ``last`` and end. Waits ``timeout_s`` seconds at most."""
        with self._changed:
            self._last = last
            thread = self._thread
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while self._last is None:
            self._work()
        self._cancel_rest()
        self._guarded(self._last, None)
        connections.close_all()

    def _work(self) -> None:
        """Run one job, or the housekeeping if no job arrives."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._last is not None, self._tick_s)
            if self._last is not None:
                return
            job = self._jobs.popleft() if self._jobs else None
        if job is None:
            self._guarded(self._on_idle, None)
        elif job.done.set_running_or_notify_cancel():
            self._guarded(job.act, job.done)

    def _guarded(self, act: Act, done: Future[None] | None) -> None:
        close_old_connections()
        try:
            act()
        except Exception as error:
            if done is None:
                logger.warning("The model loader's periodic work failed: %s", error, exc_info=not _is_outage(error))
            else:
                done.set_exception(error)
        except BaseException as error:  # it would end the thread, and every waiting caller would wait forever
            logger.exception("The model loader recovered from a %s.", type(error).__name__)
            if done is not None:  # not the error itself: a SystemExit would end the waiting event loop
                done.set_exception(EngineError(f"The model loader failed ({type(error).__name__}); see the log."))
        else:
            if done is not None:
                done.set_result(None)
        finally:
            close_old_connections()

    def _cancel_rest(self) -> None:
        """Cancel the queued jobs. No more jobs can be added."""
        with self._changed:
            jobs = list(self._jobs)
            self._jobs.clear()
        for job in jobs:
            job.done.cancel()  # outside the lock: a callback may submit another job


def _refused() -> Future[None]:
    done: Future[None] = Future()
    done.set_exception(EngineDownError("The model loader has stopped; the server is shutting down."))
    return done


def _is_outage(error: Exception) -> bool:
    """Return whether the error means that the database is down; one line in the log is enough then."""
    return isinstance(error, (DatabaseError, InterfaceError))
