"""The thread that loads and unloads models, one after the other, so that neither requests nor generation wait."""

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
    """Runs jobs in order; every ``tick_s`` seconds without one it calls ``on_idle``.

    The thread starts with the first job. A job that raises fails its future and nothing else. Whoever asks for what is
    the last thing asked of a model already shares that job: repeated wishes do not pile up.
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
        """Jobs that have not begun."""
        return len(self._jobs)

    def submit(self, verb: str, name: str, act: Act) -> Future[None]:
        """Do ``act`` to the model ``name``. One that waits with the same ``verb``, and with no other verb for that
        model behind it, is joined.
        """
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
        """Finish the job at hand, cancel the others, run ``last`` and end; waits for that ``timeout_s`` at most."""
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
        """One job, or the housekeeping when none comes."""
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
                logger.warning("The model loader's housekeeping failed: %s", error, exc_info=not _is_outage(error))
            else:
                done.set_exception(error)
        except BaseException as error:  # would end the thread, and everyone who waits for a job would wait for ever
            logger.exception("The model loader survived a %s.", type(error).__name__)
            if done is not None:  # not the error itself: a SystemExit would end the event loop that waits for it
                done.set_exception(EngineError(f"The model loader failed ({type(error).__name__}); see the log."))
        else:
            if done is not None:
                done.set_result(None)
        finally:
            close_old_connections()

    def _cancel_rest(self) -> None:
        """Nothing is added any more."""
        with self._changed:
            jobs = list(self._jobs)
            self._jobs.clear()
        for job in jobs:
            job.done.cancel()  # outside of the lock: whoever hears of it may ask for more


def _refused() -> Future[None]:
    done: Future[None] = Future()
    done.set_exception(EngineDownError("The model loader has stopped; the server is shutting down."))
    return done


def _is_outage(error: Exception) -> bool:
    """The database is away: a line in the log is enough."""
    return isinstance(error, (DatabaseError, InterfaceError))
