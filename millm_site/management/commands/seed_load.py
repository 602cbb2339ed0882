"""``manage.py seed_load``: a large database of made-up rows."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tools.seed_load.load import RealRowsError, seed_load

MAX_ROWS = 100_000_000


class Command(BaseCommand):
    help = (
        "Fill the database with synthetic requests and features, to measure pages under load. Not for a "
        "database in use."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the request log")
        parser.add_argument("--features", type=int, default=65_000, help="features of a new SAE; 0: none")
        parser.add_argument("--force", action="store_true", help="run even if the database has real rows")

    def handle(self, *, rows: int, features: int, force: bool, **options: Any) -> None:
        if not (0 <= rows <= MAX_ROWS and 0 <= features <= MAX_ROWS):
            raise CommandError(f"--rows and --features must be between 0 and {MAX_ROWS:,}.")
        began = time.monotonic()
        try:
            seeded = seed_load(num_rows=rows, num_features=features, is_forced=force)
        except RealRowsError as error:
            raise CommandError(f"{error} Use a separate database, or pass --force.") from error
        seconds = time.monotonic() - began
        self.stdout.write(f"Added {seeded.rows:,} requests and {seeded.features:,} features in {seconds:.0f} s.")
