"""The lanes in which jobs run."""

from __future__ import annotations

from django.db import models


class Lane(models.TextChoices):
    """Groups of jobs that have workers of their own, so that no group waits for another.

    ``interactive``: short jobs that a person waits for. ``bulk``: jobs that may take hours. ``system``: what keeps the
    server in order, and indexing. ``media``: jobs of the media worker. ``webhooks``: requests to other servers.
    """

    INTERACTIVE = "interactive"
    BULK = "bulk"
    SYSTEM = "system"
    MEDIA = "media"
    WEBHOOKS = "webhooks"
