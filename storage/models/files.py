"""The table of files that clients uploaded or batches wrote."""

from __future__ import annotations

from typing import Self, TypeVar

from django.conf import settings
from django.db import models
from django.utils import timezone

from core import ids

M = TypeVar("M", bound=models.Model)


class OwnedQuerySet(models.QuerySet[M]):
    def of(self, owner_id: int | None) -> Self:
        """Return the user's rows; None: rows of requests without a key."""
        return self.filter(owner_id=owner_id)


class StoredFileQuerySet(OwnedQuerySet["StoredFile"]):
    def current(self) -> Self:
        """Return the rows that have not expired."""
        return self.filter(models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=timezone.now()))


class StoredFile(models.Model):
    """A file; its bytes are the blob of that name (storage/blobs.py)."""

    class Purpose(models.TextChoices):
        ASSISTANTS = "assistants"
        ASSISTANTS_OUTPUT = "assistants_output"  # images that this server made
        BATCH = "batch"
        BATCH_OUTPUT = "batch_output"
        FINE_TUNE = "fine-tune"
        USER_DATA = "user_data"
        VISION = "vision"

    public_id = models.CharField("id", max_length=ids.MAX_LENGTH, unique=True, default=ids.file_id, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="stored_files"
    )
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=20, choices=Purpose)
    size = models.BigIntegerField(help_text="In bytes.")
    sha256 = models.CharField("SHA-256", max_length=64, editable=False)
    blob = models.CharField(max_length=32, unique=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True, db_index=True)

    objects = StoredFileQuerySet.as_manager()

    class Meta:
        ordering = ("-pk",)
        verbose_name = "file"
        indexes = (models.Index(fields=("owner", "purpose", "id"), name="file_owner_purpose"),)

    def __str__(self) -> str:
        return f"{self.filename} ({self.public_id})"
