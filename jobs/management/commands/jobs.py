"""``manage.py jobs``: list jobs."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobs.lanes import Lane
from jobs.models import Job


class Command(BaseCommand):
    help = "List jobs, newest first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--state", choices=Job.State.values, help="only jobs in this state")
        parser.add_argument("--lane", choices=Lane.values, help="only jobs of this lane")
        parser.add_argument("--limit", type=int, default=50, help="maximum number of jobs (default: 50)")

    def handle(self, *, state: str | None, lane: str | None, limit: int, **options: Any) -> None:
        rows = Job.objects.select_related("owner")
        if state:
            rows = rows.filter(state=state)
        if lane:
            rows = rows.filter(lane=lane)
        for job in rows[: max(limit, 0)]:
            progress = f" {job.done}/{job.total}" if job.total else ""
            text = job.error or job.message
            self.stdout.write(f'{job.id} {job.state}{progress} {job.kind} "{job.title}"{f": {text}" if text else ""}')
