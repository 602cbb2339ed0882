"""The tables of vector stores: files that can be searched by meaning."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db import models
from django.utils import timezone
from pgvector.django import VectorField

from core import ids
from storage.models.files import OwnedQuerySet, StoredFile

store_id = partial(ids.new_id, "vs_")
file_batch_id = partial(ids.new_id, "vsfb_")


class VectorStore(models.Model):
    """A vector store. ``embedding_model`` is empty until the first ingestion, unless the client has chosen one."""

    public_id = models.CharField("id", max_length=ids.MAX_LENGTH, unique=True, default=store_id, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="vector_stores"
    )
    name = models.CharField(max_length=256, blank=True)
    description = models.CharField(max_length=512, blank=True)
    metadata = models.JSONField(null=True, blank=True)
    embedding_model = models.CharField(max_length=200, blank=True)
    is_model_chosen = models.BooleanField(default=False, editable=False)
    dimensions = models.PositiveIntegerField(null=True, editable=False)
    expires_after_days = models.PositiveIntegerField(null=True, blank=True, help_text="Days without use.")
    last_active_at = models.DateTimeField(default=timezone.now, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = OwnedQuerySet["VectorStore"].as_manager()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.name or 'unnamed'} ({self.public_id})"

    @property
    def expires_at(self) -> datetime | None:
        if self.expires_after_days is None:
            return None
        return self.last_active_at + timedelta(days=self.expires_after_days)

    @property
    def has_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= timezone.now()


class FileBatch(models.Model):
    """Files that were attached together."""

    public_id = models.CharField("id", max_length=ids.MAX_LENGTH, unique=True, default=file_batch_id, editable=False)
    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, related_name="file_batches")
    is_cancelled = models.BooleanField(default=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name_plural = "file batches"

    def __str__(self) -> str:
        return self.public_id


class VectorStoreFile(models.Model):
    """A file in a store. Only the job ``job_id`` may add chunks, so a file that was attached again has one writer."""

    class Status(models.TextChoices):
        IN_PROGRESS = "in_progress"
        COMPLETED = "completed"
        CANCELLED = "cancelled"
        FAILED = "failed"

    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, related_name="files")
    file = models.ForeignKey(StoredFile, on_delete=models.CASCADE, related_name="in_stores")
    batch = models.ForeignKey(FileBatch, null=True, blank=True, on_delete=models.SET_NULL, related_name="files")
    job_id = models.UUIDField(null=True, editable=False)
    attributes = models.JSONField(default=dict, blank=True)
    max_chunk_tokens = models.PositiveIntegerField()
    overlap_tokens = models.PositiveIntegerField()
    status = models.CharField(max_length=12, choices=Status, default=Status.IN_PROGRESS)
    error_code = models.CharField(max_length=20, blank=True)
    error_message = models.TextField(blank=True)
    usage_bytes = models.BigIntegerField(default=0)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("-pk",)
        constraints = (models.UniqueConstraint(fields=("store", "file"), name="vector_store_file_once"),)
        indexes = (models.Index(fields=("store", "status"), name="vector_store_file_status"),)

    def __str__(self) -> str:
        return f"{self.file.filename} in {self.store_id}"


class Chunk(models.Model):
    """A chunk of a file's text. Vectors of all models share the column; each length has its own index, created on first
    use (storage/vector_search.py)."""

    store = models.ForeignKey(VectorStore, on_delete=models.CASCADE, related_name="chunks")
    store_file = models.ForeignKey(VectorStoreFile, on_delete=models.CASCADE, related_name="chunks")
    position = models.PositiveIntegerField()
    text = models.TextField()
    dimensions = models.PositiveIntegerField()
    embedding = VectorField()

    class Meta:
        ordering = ("store_file", "position")
        constraints = (models.UniqueConstraint(fields=("store_file", "position"), name="chunk_position_once"),)

    def __str__(self) -> str:
        return self.text[:60]
