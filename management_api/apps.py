from __future__ import annotations

from django.apps import AppConfig


class ManagementApiConfig(AppConfig):
    name = "management_api"
    verbose_name = "Management API"
