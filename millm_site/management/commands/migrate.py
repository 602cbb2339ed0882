"""manage.py migrate: Django's, as the owner of the tables."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import migrate

from millm_site.database import as_owner


class Command(migrate.Command):
    def handle(self, *args: Any, **options: Any) -> None:
        with as_owner():
            super().handle(*args, **options)
