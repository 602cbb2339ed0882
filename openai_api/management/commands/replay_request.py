"""``manage.py replay_request ID``: run a logged request again."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from core.commands import MillmCommand
from jobs.commands import require_success, wait_for_end
from jobs.models import Job
from openai_api.models import RequestLog
from openai_api.request_log.replay import AS_LOGGED, start_replay


class Command(MillmCommand):
    help = "Run a logged request again in the running server, with its own version and seed or with another profile."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", help="id of the request")
        parser.add_argument(
            "--profile", default=AS_LOGGED, help="name, name@version or none (default: the version it used)"
        )
        parser.add_argument("--no-wait", action="store_true", help="only enqueue the job")

    def handle(self, **options: Any) -> None:
        row = RequestLog.objects.filter(pk=options["id"]).first()
        if row is None:
            raise CommandError(f"The request log has no request {options['id']}.")
        job = start_replay(row=row, profile=options["profile"])
        self.stdout.write(f"Queued the job {job.pk}: {job}.")
        if not options["no_wait"]:
            self._report(wait_for_end(job, self.stdout.write))

    def _report(self, job: Job) -> None:
        require_success(job)
        self.stdout.write("Same text as before." if job.result["same_text"] else "Different text:")
        for text in job.result["texts"]:
            self.stdout.write(text)
