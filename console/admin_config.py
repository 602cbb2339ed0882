"""Beside apps.py, because Django would take AdminConfig there for this app's own."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class ConsoleAdminConfig(AdminConfig):
    """Django's admin with our site in place of its own: what apps register at ``admin.site`` is in the console."""

    default = False
    default_site = "console.site.ConsoleSite"
