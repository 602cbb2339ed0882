"""The tables of uploads: files that are sent in parts."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from django.conf import settings
from django.db import models
from django.utils import timezone

from core import ids
from storage.models.files import OwnedQuerySet, StoredFile

upload_id = partial(ids.new_id, "upload_")
part_id = partial(ids.new_id, "part_")
LIFETIME = timedelta(hours=1)


def upload_expiry() -> object:
    return timezone.now() + LIFETIME


class Upload(models.Model):
    """A file that is being uploaded. ``size`` is the size that the client announced."""

    class Status(models.TextChoices):
        PENDING = "pending"
        COMPLETED = "completed"
        CANCELLED = "cancelled"
        EXPIRED = "expired"

    public_id = models.CharField("id", max_length=ids.MAX_LENGTH, unique=True, default=upload_id, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="uploads"
    )
    filename = models.CharField(max_length=255)
    purpose = models.CharField(max_length=20, choices=StoredFile.Purpose)
    mime_type = models.CharField(max_length=255)
    size = models.BigIntegerField(help_text="In bytes.")
    expires_after_s = models.PositiveIntegerField(null=True, blank=True, help_text="Of the file, once it is complete.")
    status = models.CharField(max_length=10, choices=Status, default=Status.PENDING)
    file = models.OneToOneField(StoredFile, null=True, blank=True, on_delete=models.SET_NULL, related_name="upload")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(default=upload_expiry, db_index=True)

    objects = OwnedQuerySet["Upload"].as_manager()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.filename} ({self.public_id})"

    @property
    def status_now(self) -> str:
        """Return the status. An upload whose time is over counts as expired even before a sweep has recorded it."""
        has_expired = self.status == self.Status.PENDING and self.expires_at <= timezone.now()
        return self.Status.EXPIRED if has_expired else self.status


class UploadPart(models.Model):
    public_id = models.CharField("id", max_length=ids.MAX_LENGTH, unique=True, default=part_id, editable=False)
    upload = models.ForeignKey(Upload, on_delete=models.CASCADE, related_name="parts")
    size = models.BigIntegerField()
    blob = models.CharField(max_length=32, unique=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.public_id
