"""What goes wrong with the embedded server."""

from __future__ import annotations

from django.db import OperationalError


class EmbeddedPostgresError(OperationalError):
    """The server cannot be started or used; the message says why and what to do."""
