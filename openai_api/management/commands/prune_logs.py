"""``manage.py prune_logs``: delete log rows and texts past their retention."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from openai_api.models import LogAccess
from openai_api.request_log.access import record_access
from openai_api.request_log.retention import Retention, prune_log


class Command(BaseCommand):
    help = (
        "Delete old rows and texts of the request log, according to MILLM_LOG_RETENTION_DAYS, "
        "MILLM_LOG_TEXT_RETENTION_DAYS, MILLM_REFUSAL_RETENTION_DAYS and the keys. Servers do this every "
        "hour."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--days", type=int, help="instead of MILLM_LOG_RETENTION_DAYS; 0: never")
        parser.add_argument("--text-days", type=int, help="instead of MILLM_LOG_TEXT_RETENTION_DAYS; 0: never")

    def handle(self, **options: Any) -> None:
        own = Retention.from_settings()
        given = Retention(
            own.days if options["days"] is None else options["days"],
            own.text_days if options["text_days"] is None else options["text_days"],
            own.refusal_days,
        )
        if min(given.days, given.text_days) < 0:
            raise CommandError("Days must be at least 0.")
        pruned = prune_log(retention=given)
        record_access(act=LogAccess.Act.PRUNE, user=None, num_rows=pruned.rows, detail=asdict(pruned))
        self.stdout.write(f"Deleted {pruned.rows:,} rows, and the texts of {pruned.texts:,} other rows.")
