"""Admin pages of daily key usage.

Keys: :mod:`openai_api.keys.admin`; the log: :mod:`openai_api.request_log.pages.admin`.
"""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from core.read_only_admin import ReadOnlyAdmin
from openai_api.keys.admin import ApiKeyAdmin
from openai_api.keys.services import visible_days
from openai_api.media.admin import VideoAdmin, VoiceAdmin
from openai_api.models import KeyDay
from openai_api.request_log.pages.admin import LogAccessAdmin, RequestLogAdmin

__all__ = ("ApiKeyAdmin", "KeyDayAdmin", "LogAccessAdmin", "RequestLogAdmin", "VideoAdmin", "VoiceAdmin")  # found here


@admin.register(KeyDay)
class KeyDayAdmin(ReadOnlyAdmin):
    """Daily usage of each key."""

    empty_words = "No usage yet. There is one row for each key and day."
    list_display = ("day", "api_key", "requests", "tokens")
    list_filter = (("api_key", admin.RelatedOnlyFieldListFilter),)
    list_select_related = ("api_key",)
    date_hierarchy = "day"

    def get_queryset(self, request: HttpRequest) -> QuerySet[KeyDay]:
        return visible_days(request.user, super().get_queryset(request))
