"""Errors of enqueueing and stopping jobs, and exceptions that stop a run from outside."""

from __future__ import annotations

from datetime import datetime

from core.errors import MillmError


class JobError(MillmError):
    code = "invalid_value"


class UnknownKindError(JobError):
    """No app has registered this kind of job."""


class NotStorableError(JobError):
    """A value that Postgres can't store as JSON: NaN, infinity, NUL, a lone surrogate, or too large."""


class JobStateError(JobError):
    """The job's state does not allow this."""

    status = 409
    code = "job_state"


class RunStopped(BaseException):
    """Stops a run. Not an Exception, so that a run that catches errors of single items does not catch it."""


class JobCancelled(RunStopped):
    """The job was cancelled."""


class JobInterrupted(RunStopped):
    """The process is stopping; the job returns to the queue with its checkpoint."""


class JobYielded(JobInterrupted):
    """The run has used up its turn, and others wait: the job returns to the queue with its checkpoint."""


class JobPostponed(RunStopped):
    """The run can't continue before ``until``. The job is queued again and then starts from its checkpoint.

    Meanwhile it occupies no worker. ``reason`` is shown as the job's message.
    """

    def __init__(self, until: datetime, reason: str) -> None:
        super().__init__(reason)
        self.until = until
        self.reason = reason


class JobLost(RunStopped):
    """The run has lost the job: another process took it over, or its row was deleted."""
