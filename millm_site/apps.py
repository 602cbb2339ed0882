from __future__ import annotations

import atexit

from django.apps import AppConfig
from django.core.checks import Tags, register


class MillmSiteConfig(AppConfig):
    name = "millm_site"
    verbose_name = "miLLM"

    def ready(self) -> None:
        from millm_site.checks import unknown_variables
        from millm_site.database import stop_embedded

        register(unknown_variables, Tags.compatibility)
        # Registered before anything else of ours, so it runs after it: the engine and the log writer need a database.
        atexit.register(stop_embedded)
