"""Stored chat completions. Each belongs to the owner of the key that created it."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.utils import timezone


class StoredChat(models.Model):
    """``body`` is the completion as it was answered, ``messages`` are those that it answers.

    ``owner`` null: made without a key, on the server's machine.
    """

    id = models.CharField(primary_key=True, max_length=64)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    model = models.CharField(max_length=200)
    body = models.JSONField()
    messages = models.JSONField()
    metadata = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("created_at", "id")
        verbose_name = "stored chat completion"
        indexes = (
            models.Index(fields=("owner", "created_at", "id"), name="stored_chat_owner_time"),
            GinIndex(fields=("metadata",), name="stored_chat_metadata"),
        )

    def __str__(self) -> str:
        return self.id
