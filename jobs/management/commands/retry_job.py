"""``manage.py retry_job ID``: run a job again."""

from __future__ import annotations

from jobs import services
from jobs.commands import JobCommand
from jobs.models import Job


class Command(JobCommand):
    help = "Queue a failed or cancelled job again. It continues from its last checkpoint."
    done = "Requeued"

    def act(self, job: Job) -> None:
        services.retry_job(job=job)
