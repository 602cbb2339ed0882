"""Reports of evaluations."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from inference.models import LanguageModel
from jobs.models import Job


class Evaluation(models.Model):
    """The report of an evaluation job. It outlives the job's row.

    It is of a published ``version``, or of ``edits`` that were not published: the draft of a ``profile``, or edits sent
    with the request.
    """

    class Kind(models.TextChoices):
        SWEEP = "sweep"
        CALIBRATION = "calibration"
        COMPARISON = "comparison"

    kind = models.CharField(max_length=20, choices=Kind)
    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE, related_name="evaluations")
    version = models.ForeignKey(
        "steering.ProfileVersion", null=True, blank=True, on_delete=models.PROTECT, related_name="evaluations"
    )
    profile = models.ForeignKey(
        "steering.SteeringProfile",
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="draft_evaluations",
        help_text="The profile whose draft was evaluated.",
    )
    edits = models.JSONField(null=True, blank=True, help_text="The edits, as they were, if they were not published.")
    other = models.ForeignKey(
        "steering.ProfileVersion",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="comparisons",
        help_text="The other side of a comparison; empty for no steering.",
    )
    job = models.OneToOneField(Job, null=True, on_delete=models.SET_NULL, related_name="evaluation")
    result = models.JSONField()
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("-created_at", "-pk")

    def __str__(self) -> str:
        compared = f" and {self.other or 'no profile'}" if self.kind == "comparison" else ""
        return f"{self.get_kind_display()} of {self.subject}{compared}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the row. The model of a version's evaluation is that of the version."""
        if self.version is not None:
            self.model_id = self.version.profile.model_id
        super().save(*args, **kwargs)

    @property
    def subject(self) -> str:
        """``name@number`` of the version, ``name@draft``, or "inline edits"."""
        if self.version is not None:
            return str(self.version)
        return "inline edits" if self.profile is None else f"{self.profile}@draft"


class HeadlineKL(models.Model):
    """The headline KL of some edits on a model, measured once by a fixed recipe and shown on every page.

    See :mod:`steering.evaluation.headline`. ``weights`` names the model's source and revision, so that a model whose
    files were replaced is measured again.
    """

    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE, related_name="+")
    fingerprint = models.CharField(max_length=64)
    recipe = models.CharField(max_length=20)
    weights = models.CharField(max_length=700)
    kl = models.FloatField("KL(base‖steered)", null=True, help_text="Nats per token; empty if an answer failed.")
    low = models.FloatField(null=True)
    high = models.FloatField(null=True)
    result = models.JSONField(help_text="The measurements of every answer.")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        verbose_name = "headline KL"
        constraints = (
            models.UniqueConstraint(
                fields=("model", "fingerprint", "recipe", "weights"), name="headline_kl_measured_once"
            ),
        )

    def __str__(self) -> str:
        if self.kl is None:
            return "unstable: the recipe's answers could not all be compared"
        interval = "" if self.low is None or self.high is None else f" ({self.low:.3g} to {self.high:.3g})"
        return f"{self.kl:.3g}{interval} nats per token"
