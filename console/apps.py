from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"
    verbose_name = "Console"

    def ready(self) -> None:
        """Import what declares pages and topics."""
        from console import dashboard, search  # noqa: F401
        from console.live import engine_topic, job_topics, load_topic, model_topic  # noqa: F401
        from console.playground import drafts, features, page  # noqa: F401
