"""Shared code of job commands: a command on one job, and waiting for a job to end."""

from __future__ import annotations

import time
import uuid
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, ClassVar

from django.core.management.base import CommandError

from core.commands import MillmCommand
from jobs.models import Job


class JobCommand(MillmCommand):
    """A command on one job. Raises CommandError if the job does not exist or its state does not allow it."""

    done: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", type=uuid.UUID, help="job id, as listed by `manage.py jobs`")

    def handle(self, **options: Any) -> None:
        job = Job.objects.filter(pk=options["id"]).first()
        if job is None:
            raise CommandError(f"The job `{options['id']}` does not exist.")
        self.act(job)
        self.stdout.write(self.style.SUCCESS(f'{self.done} "{job}".'))

    def act(self, job: Job) -> None:
        raise NotImplementedError


POLL_S = 0.5


def wait_for_end(job: Job, report: Callable[[str], object], poll_s: float = POLL_S) -> Job:
    """Wait until the job has ended and return it. ``report`` is called with its progress."""
    reported = ""
    while True:
        row = Job.objects.get(pk=job.pk)
        line = f"{row.state} {row.done}/{row.total} {row.message}".rstrip()
        if line != reported:
            reported = line
            report(line)
        if row.has_ended:
            return row
        time.sleep(poll_s)


def require_success(job: Job) -> None:
    """Raise CommandError with the job's error unless it succeeded."""
    if job.state != Job.State.SUCCEEDED:
        raise CommandError(f"The job {job.state}. {job.error}".strip())
