"""The admin's app config. In its own module, because Django would use an AdminConfig in apps.py for the console app."""

from __future__ import annotations

from django.contrib.admin.apps import AdminConfig


class ConsoleAdminConfig(AdminConfig):
    """Django's admin with the console's site, so that models registered at ``admin.site`` appear in the console."""

    default = False
    default_site = "console.site.ConsoleSite"
