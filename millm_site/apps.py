"""The project's app: stops the embedded database at exit, and warns about unknown environment variables."""

from __future__ import annotations

import atexit
import difflib
import os
from collections.abc import Iterable
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.checks import Tags, register

from millm_site.config_file import PREFIX
from millm_site.env import Environment


class MillmSiteConfig(AppConfig):
    name = "millm_site"
    verbose_name = "miLLM"

    def ready(self) -> None:
        from millm_site import setting_list  # noqa: F401 - registers its page
        from millm_site.database import stop_embedded

        register(unknown_variables, Tags.compatibility)
        # Registered before anything else of ours, so it runs after it: the engine and the log writer need a database.
        atexit.register(stop_embedded)


# Read by programs beside the server.
OTHER_VARIABLES = frozenset({"MILLM_URL"})
CLIENT_KEY = "MILLM_API_KEY"
CLIENT_KEY_HINT = (
    "It is the key that the Python client and the examples send. A key that the server accepts is set with "
    "MILLM_ADMIN_API_KEY."
)


def unknown_variables(**kwargs: Any) -> list[checks.CheckMessage]:
    """Warn about variables with the MILLM_ prefix that no setting reads, such as misspelt ones."""
    known = {PREFIX + name.upper() for name in Environment.model_fields} | OTHER_VARIABLES
    given = (name for name in os.environ if name.upper().startswith(PREFIX))
    return [_unknown(name, known) for name in sorted(given) if name.upper() not in known]


def _unknown(name: str, known: Iterable[str]) -> checks.CheckMessage:
    similar = difflib.get_close_matches(name.upper(), known, n=1)
    hint = f"Did you mean {similar[0]}?" if similar else "docs/settings.md lists all variables."
    hint = CLIENT_KEY_HINT if name.upper() == CLIENT_KEY else hint
    return checks.Warning(
        f"The environment variable {name} has no effect: there is no such setting.", hint=hint, id="millm.W001"
    )
