"""``manage.py cancel_job ID``: stop a job."""

from __future__ import annotations

from jobs import services
from jobs.commands import JobCommand
from jobs.models import Job


class Command(JobCommand):
    help = "Cancel a job: at once where it is queued, at its next sign of progress where it runs."
    done = "Cancelling"

    def act(self, job: Job) -> None:
        services.cancel_job(job=job)
