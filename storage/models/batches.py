"""The table of batches: many requests in one file, answered in the background."""

from __future__ import annotations

from functools import partial

from django.conf import settings
from django.db import models
from django.utils import timezone

from core import ids
from storage.models.files import OwnedQuerySet

batch_id = partial(ids.new_id, "batch_")


class Batch(models.Model):
    """A batch. Its files are stored as ids, because they may be deleted or expire first."""

    class Status(models.TextChoices):
        VALIDATING = "validating"
        FAILED = "failed"
        IN_PROGRESS = "in_progress"
        FINALIZING = "finalizing"
        COMPLETED = "completed"
        EXPIRED = "expired"
        CANCELLING = "cancelling"
        CANCELLED = "cancelled"

    ENDED = (Status.FAILED, Status.COMPLETED, Status.EXPIRED, Status.CANCELLED)

    public_id = models.CharField("id", max_length=ids.MAX_LENGTH, unique=True, default=batch_id, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="batches"
    )
    api_key_id = models.BigIntegerField(
        null=True, editable=False, help_text="The key whose permissions its requests use."
    )
    job_id = models.UUIDField(null=True, editable=False)
    endpoint = models.CharField(max_length=100)
    model = models.CharField(max_length=200, blank=True)
    status = models.CharField(max_length=12, choices=Status, default=Status.VALIDATING)
    input_file = models.CharField(max_length=ids.MAX_LENGTH)
    output_file = models.CharField(max_length=ids.MAX_LENGTH, blank=True)
    error_file = models.CharField(max_length=ids.MAX_LENGTH, blank=True)
    completion_window = models.CharField(max_length=10)
    output_expires_after_s = models.PositiveIntegerField(null=True, blank=True)
    metadata = models.JSONField(null=True, blank=True)
    errors = models.JSONField(default=list, blank=True)
    usage = models.JSONField(default=dict, blank=True)
    total = models.PositiveIntegerField(default=0)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField()
    in_progress_at = models.DateTimeField(null=True, blank=True)
    finalizing_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    failed_at = models.DateTimeField(null=True, blank=True)
    expired_at = models.DateTimeField(null=True, blank=True)
    cancelling_at = models.DateTimeField(null=True, blank=True)
    cancelled_at = models.DateTimeField(null=True, blank=True)

    objects = OwnedQuerySet["Batch"].as_manager()

    class Meta:
        ordering = ("-pk",)
        verbose_name_plural = "batches"

    def __str__(self) -> str:
        return self.public_id

    @property
    def has_ended(self) -> bool:
        return self.status in self.ENDED

    def enter(self, status: str) -> None:
        """Set the status and its time, without saving."""
        self.status = status
        if status != self.Status.VALIDATING:
            setattr(self, f"{status}_at", timezone.now())
