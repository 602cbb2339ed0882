"""A command that enqueues a job about a model for a serving process."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any, ClassVar

from django.core.management.base import BaseCommand, CommandError

from inference.models import LanguageModel
from jobs.commands import require_success, wait_for_end
from jobs.models import Job
from jobs.services import enqueue_job


class ModelCommand(BaseCommand):
    """Enqueues a job of ``kind`` about a model. ``verb`` and ``done`` are words of the output."""

    kind: ClassVar[str]
    verb: ClassVar[str]
    done: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="the model")
        parser.add_argument("--no-wait", action="store_true", help="only enqueue the job")
        parser.add_argument("--json", action="store_true", help="print only the job, as JSON")

    def handle(self, *, name: str, no_wait: bool, **options: Any) -> None:
        if not LanguageModel.objects.filter(name=name).exists():
            raise CommandError(f"The model {name} does not exist; register it with add_model first.")
        params = {"model": name, **self.params(options)}
        job = enqueue_job(kind=self.kind, params=params, title=f"{self.verb} {name}")
        if not no_wait:
            job = wait_for_end(job, lambda line: None if options["json"] else self.stdout.write(line))
        self._report(job, name, as_json=options["json"])

    def params(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the job's parameters from the command's options."""
        return {}

    def _report(self, job: Job, name: str, *, as_json: bool) -> None:
        if as_json:
            self.stdout.write(json.dumps({"job": str(job.pk), "state": job.state, "model": name, "error": job.error}))
        if job.has_ended:
            require_success(job)
        if not as_json:
            queued = f"Queued job {job.pk}; the running server executes it."
            self.stdout.write(self.style.SUCCESS(f"{name} {self.done}" if job.has_ended else queued))
