"""Responses are kept for some days after they were made or last continued; then their rows go."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from openai_api.responses.models import StoredResponse

BATCH = 500


def prune_responses() -> int:
    """Delete what is older than MILLM_RESPONSE_RETENTION_DAYS; returns how many went. Those under way stay."""
    days: int = settings.MILLM_RESPONSE_RETENTION_DAYS
    if not days:
        return 0
    old = StoredResponse.objects.filter(used_at__lt=timezone.now() - timedelta(days=days))
    ended = old.exclude(status__in=StoredResponse.OPEN)
    count = 0
    while pks := list(ended.order_by("used_at").values_list("pk", flat=True)[:BATCH]):
        StoredResponse.objects.filter(pk__in=pks).delete()
        count += len(pks)
    return count
