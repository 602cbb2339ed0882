"""Prints the OpenAPI document."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand

from management_api.openapi import document


class Command(BaseCommand):
    help = "Print the OpenAPI 3.1 document of /v1 and /api as JSON."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        self.stdout.write(json.dumps(document(), indent=1))
