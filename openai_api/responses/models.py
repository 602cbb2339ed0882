"""Stored responses and conversations. Each belongs to the owner of the key that created it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

MAX_ID = 64


class Conversation(models.Model):
    """Items that one response after the other joins. ``owner`` null: made without a key, on the server's machine."""

    id = models.CharField(primary_key=True, max_length=MAX_ID)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    metadata = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("-created_at",)

    def __str__(self) -> str:
        return self.id


class StoredResponse(models.Model):
    """A response as clients read it. ``body`` is the object without its output, which is in the items."""

    class Status(models.TextChoices):
        QUEUED = "queued"
        IN_PROGRESS = "in_progress"
        COMPLETED = "completed"
        INCOMPLETE = "incomplete"
        FAILED = "failed"
        CANCELLED = "cancelled"

    OPEN = (Status.QUEUED, Status.IN_PROGRESS)

    id = models.CharField(primary_key=True, max_length=MAX_ID)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    model = models.CharField(max_length=200)
    status = models.CharField(max_length=20, choices=Status)
    is_background = models.BooleanField(default=False)
    is_streamed = models.BooleanField(default=False, help_text="A background response whose events are kept.")
    previous_response_id = models.CharField(max_length=MAX_ID, blank=True)
    conversation = models.ForeignKey(Conversation, null=True, blank=True, on_delete=models.SET_NULL)
    body = models.JSONField()
    order = models.JSONField(default=dict, blank=True, help_text="What a background response has yet to generate.")
    job_id = models.UUIDField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    used_at = models.DateTimeField(default=timezone.now, db_index=True, help_text="Made, or last continued.")

    class Meta:
        ordering = ("-created_at",)
        verbose_name = "response"

    def __str__(self) -> str:
        return self.id

    @property
    def is_open(self) -> bool:
        return self.status in self.OPEN


class StoredItem(models.Model):
    """An item of a response (its own input, then its output) or of a conversation."""

    item_id = models.CharField(max_length=MAX_ID, db_index=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE)
    response = models.ForeignKey(StoredResponse, null=True, blank=True, on_delete=models.CASCADE, related_name="items")
    conversation = models.ForeignKey(
        Conversation, null=True, blank=True, on_delete=models.CASCADE, related_name="items"
    )
    is_output = models.BooleanField(default=False)
    body = models.JSONField()

    class Meta:
        ordering = ("pk",)
        verbose_name = "item"
        constraints = (
            models.CheckConstraint(
                condition=models.Q(response__isnull=True) ^ models.Q(conversation__isnull=True),
                name="item_of_a_response_or_a_conversation",
            ),
            models.UniqueConstraint(fields=("conversation", "item_id"), name="item_once_in_a_conversation"),
        )

    def __str__(self) -> str:
        return self.item_id


class StoredEvents(models.Model):
    """Consecutive events of a streamed background response: those numbered ``first`` to ``last``."""

    response = models.ForeignKey(StoredResponse, on_delete=models.CASCADE, related_name="events")
    first = models.PositiveIntegerField()
    last = models.PositiveIntegerField()
    events: models.JSONField[list[dict[str, Any]], list[dict[str, Any]]] = models.JSONField()

    class Meta:
        ordering = ("first",)
        verbose_name_plural = "events"
        constraints = (models.UniqueConstraint(fields=("response", "first"), name="events_once"),)

    def __str__(self) -> str:
        return f"{self.response_id}: {self.first} to {self.last}"
