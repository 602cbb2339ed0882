from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"
    verbose_name = "Console"

    def ready(self) -> None:
        """Import what declares pages and topics."""
        from console import dashboard, search  # noqa: F401
