"""Responses are kept for some days after they were made or last continued; then their rows go."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from openai_api.responses.models import StoredResponse

BATCH = 500


def old_responses() -> QuerySet[StoredResponse]:
    """What is older than MILLM_RESPONSE_RETENTION_DAYS. Those under way are not."""
    days: int = settings.MILLM_RESPONSE_RETENTION_DAYS
    if not days:
        return StoredResponse.objects.none()
    old = StoredResponse.objects.filter(used_at__lt=timezone.now() - timedelta(days=days))
    return old.exclude(status__in=StoredResponse.OPEN)


def prune_responses() -> int:
    """Delete what is old; returns how many went."""
    count, old = 0, old_responses()
    while pks := list(old.order_by("used_at").values_list("pk", flat=True)[:BATCH]):
        StoredResponse.objects.filter(pk__in=pks).delete()
        count += len(pks)
    return count
