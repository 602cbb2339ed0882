"""``manage.py cancel_job ID``: stop a job."""

from __future__ import annotations

from jobs import services
from jobs.commands import JobCommand
from jobs.models import Job


class Command(JobCommand):
    help = "Cancel a job. A running job stops the next time it reports progress."
    done = "Cancelling"

    def act(self, job: Job) -> None:
        services.cancel_job(job=job)
