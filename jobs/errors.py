"""What enqueuing and stopping jobs refuses, and what ends a run from outside."""

from __future__ import annotations

from datetime import datetime

from core.errors import MillmError


class JobError(MillmError):
    code = "invalid_value"


class UnknownKindError(JobError):
    """No app has registered jobs of that kind."""


class NotStorableError(JobError):
    """A value that JSON in Postgres cannot hold: NaN, infinity, NUL, half a surrogate pair, or far too much."""


class JobStateError(JobError):
    """The job's state does not allow this."""

    status = 409
    code = "job_state"


class RunStopped(BaseException):
    """Not an Exception: a run that survives the faults of single items must not survive this."""


class JobCancelled(RunStopped):
    """Somebody cancelled the job."""


class JobInterrupted(RunStopped):
    """The process stops; the job goes back to the queue with its checkpoint."""


class JobPostponed(RunStopped):
    """A run can do nothing before ``until``: the job is queued again and starts from its checkpoint then.

    Meanwhile it takes no worker's place. ``reason`` is shown as the job's message.
    """

    def __init__(self, until: datetime, reason: str) -> None:
        super().__init__(reason)
        self.until = until
        self.reason = reason


class JobLost(RunStopped):
    """The job's row is no longer this run's: another process took it over, or the row was deleted."""
