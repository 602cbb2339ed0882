"""Reports of evaluations."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from jobs.models import Job


class Evaluation(models.Model):
    """The report of an evaluation job. It outlives the job's row."""

    class Kind(models.TextChoices):
        SWEEP = "sweep"
        CALIBRATION = "calibration"
        COMPARISON = "comparison"

    kind = models.CharField(max_length=20, choices=Kind)
    version = models.ForeignKey("steering.ProfileVersion", on_delete=models.PROTECT, related_name="evaluations")
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
        subject = f"{self.version} and {self.other or 'no profile'}" if self.kind == "comparison" else str(self.version)
        return f"{self.get_kind_display()} of {subject}"
