from __future__ import annotations

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"
    verbose_name = "Console"

    def ready(self) -> None:
        """Import the modules that register pages, endpoints and live topics."""
        from console import dashboard, search, sharing  # noqa: F401
        from console.annotations import pages as annotation_pages  # noqa: F401
        from console.live import topics  # noqa: F401
        from console.playground import pages  # noqa: F401
        from console.studio import pages as studio_pages  # noqa: F401
