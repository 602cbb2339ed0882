"""Services that start and stop with a serving process, whichever ASGI server runs it.

They register the engine's client, the model registry and the log writer in :mod:`core.runtime`.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from django.conf import settings

from console.load.sampler import start_sampling, stop_sampling
from inference.apps import compile_kernels_ahead, start_serving, stop_serving
from jobs.apps import interrupt_jobs, start_job_worker, stop_job_worker
from media.apps import start_media, start_video_queue, stop_media
from openai_api.apps import start_log_writer, start_request_tracing, stop_log_writer, stop_request_tracing

logger = logging.getLogger(__name__)


class Worker(Protocol):
    """The parts of a web worker, which uses the engine and the jobs of the main process."""

    def start(self) -> None: ...

    def stop_engine(self, drain_s: float) -> None: ...

    def stop(self) -> None: ...


class Serving:
    """Starts and stops the engine, the job worker, the load sampler and the log writer of this process, once each."""

    def __init__(self) -> None:
        self._worker: Worker | None = None
        self._lock = threading.Lock()
        self._is_running = False
        self.is_draining = False
        self.failure = ""  # why the engine failed; only a new process can recover from it
        self._on_failure: Callable[[], None] = _nothing
        self._models: list[str] = []

    def prepare(self) -> None:
        """Start what takes long or may fail, and needs neither the database nor the engine."""
        start_request_tracing()
        self._compilation = compile_kernels_ahead()  # the reference keeps Python from warning about a child left behind

    def load_at_start(self, models: Iterable[str]) -> None:
        """Load these registered models when the engine starts, beside those with ``autoload``."""
        self._models += models

    def work_for(self, worker: Worker) -> None:
        """Make this process a web worker: start ``worker`` instead of an engine."""
        self._worker = worker

    def start(self) -> None:
        with self._lock:
            if not self._is_running:
                self._is_running = True
                start_request_tracing()
                if self._worker is None:
                    self._start_engine()
                else:
                    self._worker.start()
                start_log_writer()
                atexit.register(self.stop, 0.0)  # for servers that do not announce their end, such as daphne

    def _start_engine(self) -> None:
        start_media()
        start_serving(self.fail, self._models)
        start_job_worker()
        start_video_queue()
        start_sampling()

    def on_failure(self, react: Callable[[], None]) -> None:
        """Call ``react`` when the engine fails, from the thread that notices it; at once if it has already failed."""
        self._on_failure = react
        if self.failure:
            react()

    def fail(self, error: str) -> None:
        """Note why this process cannot go on, and react as :meth:`on_failure` was told."""
        self.failure = error
        self._on_failure()

    def announce_stop(self) -> None:
        """Report in /health/ready that the process is stopping, and return running jobs to the queue."""
        self.is_draining = True
        interrupt_jobs()

    def stop_engine(self, drain_s: float) -> None:
        """Let running sequences finish for ``drain_s`` seconds, fail the rest and stop the engine."""
        with self._lock:
            if not self._is_running:
                return
            self._is_running = False
            self.announce_stop()
            if self._worker is not None:
                self._worker.stop_engine(drain_s)
            else:
                stop_serving(drain_s)
                stop_media()
                stop_job_worker()  # after the engine, so that no job still waits for it

    def stop(self, drain_s: float) -> None:
        """Stop the engine, then write the pending load samples and request log rows."""
        self.stop_engine(drain_s)
        stop_sampling()
        stop_log_writer()
        stop_request_tracing()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()


def _nothing() -> None:
    """Do nothing: without a handler the process stays up but not ready, and /health says why."""


serving = Serving()


def is_draining() -> bool:
    return serving.is_draining


def stop() -> None:
    serving.stop(settings.MILLM_DRAIN_SECONDS)
