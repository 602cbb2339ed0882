"""Voices of speech models, which requests name, and videos, which are generated in the background."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Self

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Lower, Now
from django.utils import timezone

from core import ids
from inference.models import LanguageModel
from storage.models.files import OwnedQuerySet

video_id = partial(ids.new_id, "video_")

MAX_EMBEDDING = 4_096  # numbers


class Voice(models.Model):
    """A voice that requests to /v1/audio/speech name: a model, and a speaker, an embedding or reference audio."""

    name = models.CharField(max_length=100, help_text='The value of "voice" in requests, in any case.')
    model = models.ForeignKey(
        LanguageModel,
        on_delete=models.CASCADE,
        related_name="voices",
        limit_choices_to={"kind": LanguageModel.Kind.SPEECH},
        help_text="The model that speaks, whatever model the request names.",
    )
    speaker = models.CharField(
        max_length=100, blank=True, help_text="The number or name of one of the model's own speakers."
    )
    embedding = models.JSONField(
        null=True, blank=True, help_text="A speaker embedding: a list of numbers, as SpeechT5 takes it."
    )
    reference = models.BinaryField(null=True, blank=True, help_text="FLAC of the voice to imitate.")
    consent = models.TextField(
        blank=True, help_text="Who agreed to the use of the recorded voice, and when. Required with a recording."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = (Lower("name"),)
        constraints = (models.UniqueConstraint(Lower("name"), name="voice_name_once"),)

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raise ValidationError."""
        if type(self).objects.filter(name__iexact=self.name).exclude(pk=self.pk).exists():
            raise ValidationError({"name": "There is a voice of this name. Names are the same in any case."})
        if sum(map(bool, (self.speaker, self.embedding, self.reference))) > 1:
            raise ValidationError("Give one of a speaker, an embedding or a recording.")
        if self.reference and not self.consent.strip():
            raise ValidationError({"consent": "Write down who agreed to the use of the recorded voice."})
        if self.embedding is not None and not _is_embedding(self.embedding):
            raise ValidationError(
                {"embedding": f"The embedding must be a list of up to {MAX_EMBEDDING} finite numbers."}
            )

    @classmethod
    def find(cls, name: str) -> Self | None:
        """Return the voice of that name in any case, with its model."""
        return cls.objects.select_related("model").filter(name__iexact=name).first()

    def speaker_for_worker(self) -> str | tuple[float, ...] | None:
        if self.embedding:
            return tuple(float(value) for value in self.embedding)
        return self.speaker or None


def _is_embedding(value: object) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_EMBEDDING
        and all(isinstance(each, int | float) and abs(each) < 1e6 for each in value)
    )


class VideoQuerySet(OwnedQuerySet["Video"]):
    def waiting(self) -> Self:
        return self.filter(status=Video.Status.QUEUED)

    def due(self) -> Self:
        """Return the waiting rows that may start now, in the order of their creation."""
        return self.waiting().filter(models.Q(not_before=None) | models.Q(not_before__lte=Now())).order_by("pk")

    def claimed(self, claim: uuid.UUID | None) -> Self:
        """Return the row that a run may write to; none if the run has lost it, or the row was deleted."""
        return self.filter(claim=claim, status=Video.Status.IN_PROGRESS)


class Video(models.Model):
    """A video that a client ordered. ``claim`` identifies the only run that may write to the row.

    ``reference`` and ``outputs`` name blobs (media/videos.py); of ``outputs`` by format, with size and digest.
    """

    class Status(models.TextChoices):
        QUEUED = "queued"
        IN_PROGRESS = "in_progress"
        COMPLETED = "completed"
        FAILED = "failed"

    public_id = models.CharField("id", max_length=ids.MAX_LENGTH, unique=True, default=video_id, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.CASCADE, related_name="videos"
    )
    api_key_id = models.BigIntegerField(null=True, editable=False, help_text="The key that ordered it.")
    model = models.CharField(max_length=200)
    prompt = models.TextField()
    options = models.JSONField(default=dict, help_text="Of the pipeline: steps, guidance and so on.")
    seed = models.BigIntegerField()
    width = models.PositiveIntegerField(help_text="In pixels.")
    height = models.PositiveIntegerField(help_text="In pixels.")
    seconds = models.PositiveIntegerField(help_text="The requested duration.")
    fps = models.FloatField("frames per second")
    num_frames = models.PositiveIntegerField("frames")
    remixed_from = models.CharField(max_length=ids.MAX_LENGTH, blank=True)
    reference = models.CharField(max_length=32, blank=True, editable=False)
    outputs = models.JSONField(default=dict, editable=False)
    status = models.CharField(max_length=12, choices=Status, default=Status.QUEUED)
    progress = models.PositiveIntegerField(default=0, help_text="In percent.")
    error_code = models.CharField(max_length=100, blank=True)
    error_message = models.TextField(blank=True)
    attempts = models.PositiveIntegerField(default=0)
    claim = models.UUIDField(null=True, editable=False)
    heartbeat_at = models.DateTimeField(null=True, editable=False)
    not_before = models.DateTimeField(null=True, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, editable=False)
    completed_at = models.DateTimeField(null=True, editable=False)
    expires_at = models.DateTimeField(null=True, db_index=True, help_text="When its files are deleted.")

    objects = VideoQuerySet.as_manager()

    class Meta:
        ordering = ("-pk",)
        indexes = (models.Index(fields=("status", "id"), name="video_status"),)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(status="in_progress", claim__isnull=False)
                | (~models.Q(status="in_progress") & models.Q(claim__isnull=True)),
                name="video_claimed_in_progress",
            ),
        )

    def __str__(self) -> str:
        return self.public_id

    @property
    def blobs(self) -> list[str]:
        """Return the names of its blobs."""
        return [name for name in (self.reference, *(each["name"] for each in self.outputs.values())) if name]

    @property
    def has_expired(self) -> bool:
        """Whether the video was generated, and its files are gone or about to be."""
        if self.status != self.Status.COMPLETED:
            return False
        return not self.outputs or (self.expires_at is not None and self.expires_at <= timezone.now())
