"""The interface of a running job: progress, checkpoints, log lines and cancellation."""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from django.db import InterfaceError, OperationalError, close_old_connections, connection
from django.db.models.functions import Now

from core.text import clean_text
from jobs.errors import JobCancelled, JobInterrupted, JobLost, JobYielded
from jobs.models import Job, JobLine, JobQuerySet, check_storable

logger = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 5.0


def retry_while_db_down(act: Callable[[], T], stopping: threading.Event) -> T:
    """Return the result of ``act``, retrying while the database is down. Raise JobInterrupted if the process stops.

    A restart of Postgres must not lose hours of work. ``act`` must be one transaction, because it may run twice. Inside
    an open transaction it runs once, because that transaction would be lost anyway.
    """
    if connection.in_atomic_block:
        return act()
    pause_s = FIRST_PAUSE_S
    while True:
        close_old_connections()
        try:
            return act()
        except (OperationalError, InterfaceError) as error:
            logger.warning("A job is waiting for the database (%s). Retrying in %.2f s.", error, pause_s)
        finally:
            close_old_connections()  # a job must not occupy a connection of the pool between its writes
        if stopping.wait(pause_s):
            raise JobInterrupted
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


MAX_LINES = 5_000
MAX_LINE = 4_000
MAX_MESSAGE = 500


@dataclass(slots=True)
class RunningJob:
    """The parameters of a running job, and methods to report its progress.

    Every call reads or writes the job's row, so call it between units of work, not in tight loops or in an event loop.
    All calls raise JobCancelled, JobInterrupted or JobLost when the run has to end; do not catch those. A job may run
    again from its last checkpoint, so its work must be safe to repeat.
    """

    id: uuid.UUID
    claim: uuid.UUID
    params: dict[str, Any]
    owner_id: int | None = None
    checkpoint: dict[str, Any] = field(default_factory=dict)
    num_lines: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)  # the process is stopping
    lost: threading.Event = field(default_factory=threading.Event)  # set by the heartbeat
    cancelled: threading.Event = field(default_factory=threading.Event)  # of a coroutine; set by its watch
    lane: str = ""
    turn_s: float = math.inf
    must_share: Callable[[], bool] = field(default=lambda: False)  # whether others wait for their share of the lane
    turn_began_at: float | None = None  # after the preparations of the run

    def progress(self, done: int, total: int, message: str = "") -> None:
        """Report that ``done`` of ``total`` items are done. ``message`` describes the next step."""
        self._write(done=max(done, 0), total=max(total, 0), message=clean_text(message, MAX_MESSAGE))
        self.check_cancelled()

    def save_checkpoint(self, checkpoint: dict[str, Any], *, ends_turn: bool = True) -> None:
        """Store the state from which the job resumes after a crash.

        Then end the turn, as :meth:`end_turn` does; without ``ends_turn``, the run calls that itself.
        """
        self._write(checkpoint=check_storable(checkpoint, "checkpoint"))
        self.checkpoint = checkpoint
        self.check_cancelled()
        if ends_turn:
            self.end_turn()

    def end_turn(self) -> None:
        """Return the job to the queue if its turn is over. Call it where a repeated run would continue from."""
        if self.is_turn_over():
            raise JobYielded

    def is_turn_over(self) -> bool:
        """Return whether the run took longer than a turn while jobs of others wait for their share of the lane.

        The turn begins with the first call, so preparations that each run repeats do not use it up.
        """
        now = time.monotonic()
        if self.turn_began_at is None:
            self.turn_began_at = now
        if now - self.turn_began_at < self.turn_s:
            return False
        return retry_while_db_down(self.must_share, self.stopping)

    def log(self, line: str) -> None:
        """Add a line to the job's log, which holds up to 5,000 lines."""
        self._check_stopped()
        self.num_lines += 1
        if self.num_lines > MAX_LINES:
            return
        text = (
            "The log is full; later lines are dropped." if self.num_lines == MAX_LINES else clean_text(line, MAX_LINE)
        )
        retry_while_db_down(lambda: JobLine.objects.create(job_id=self.id, text=text), self.stopping)

    def check_cancelled(self) -> None:
        """Raise JobCancelled if the job was cancelled."""
        self._check_stopped()
        is_cancelled = retry_while_db_down(
            lambda: self._row().values_list("cancel_requested", flat=True).first(), self.stopping
        )
        if is_cancelled is None:
            raise JobLost
        if is_cancelled:
            raise JobCancelled

    def hold(self) -> None:
        """Lock the job for this run until the open transaction ends. Raise JobLost if another run has taken it over.

        Call it before writing to other tables, so that a run that hung and was replaced writes nothing.
        """
        if not self._row().select_for_update(no_key=True).exists():
            raise JobLost

    @property
    def is_stopped(self) -> bool:
        """Whether the run has to end, as far as this process knows, without a database query."""
        return self.stopping.is_set() or self.lost.is_set()

    def _check_stopped(self) -> None:
        if self.lost.is_set():
            raise JobLost
        if self.stopping.is_set():
            raise JobInterrupted

    def _write(self, **values: Any) -> None:
        self._check_stopped()
        if not retry_while_db_down(lambda: self._row().update(heartbeat_at=Now(), **values), self.stopping):
            raise JobLost

    def _row(self) -> JobQuerySet:
        return Job.objects.claimed(self.claim)
