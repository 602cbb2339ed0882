"""Voices of speech models, which requests name."""

from __future__ import annotations

from typing import Self

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Lower, Now

from inference.models import LanguageModel


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
        if sum(map(bool, (self.speaker, self.embedding, self.reference))) > 1:
            raise ValidationError("Give one of a speaker, an embedding or a recording.")
        if self.reference and not self.consent.strip():
            raise ValidationError({"consent": "Write down who agreed to the use of the recorded voice."})
        if self.embedding is not None and not _is_embedding(self.embedding):
            raise ValidationError({"embedding": "The embedding must be a list of up to 4096 finite numbers."})

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
        and 0 < len(value) <= 4_096
        and all(isinstance(each, int | float) and abs(each) < 1e6 for each in value)
    )
