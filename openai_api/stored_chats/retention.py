"""Stored chat completions are kept until they are deleted, or for some days where the operator says so."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from openai_api.stored_chats.models import StoredChat

BATCH = 500


def old_chats() -> QuerySet[StoredChat]:
    """What is older than MILLM_CHAT_RETENTION_DAYS."""
    days: int = settings.MILLM_CHAT_RETENTION_DAYS
    if not days:
        return StoredChat.objects.none()
    return StoredChat.objects.filter(created_at__lt=timezone.now() - timedelta(days=days))


def prune_chats() -> int:
    """Delete what is old; returns how many went."""
    count, old = 0, old_chats()
    while pks := list(old.order_by("created_at").values_list("pk", flat=True)[:BATCH]):
        StoredChat.objects.filter(pk__in=pks).delete()
        count += len(pks)
    return count
