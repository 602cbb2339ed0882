"""Reviews of drafts before they are published."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class ProfileReview(models.Model):
    """One request to look at a draft. What it is about is the draft's effect at that time: its ``fingerprint``."""

    class State(models.TextChoices):
        OPEN = "open", "waits for a reviewer"
        APPROVED = "approved", "approved"
        REJECTED = "rejected", "rejected"
        WITHDRAWN = "withdrawn", "replaced by a later request"
        PUBLISHED = "published", "approved and published"

    profile = models.ForeignKey("steering.SteeringProfile", on_delete=models.CASCADE, related_name="reviews")
    state = models.CharField(max_length=20, choices=State, default=State.OPEN)
    fingerprint = models.CharField(max_length=64)
    note = models.TextField(blank=True)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    requested_at = models.DateTimeField(db_default=Now())
    decision_note = models.TextField(blank=True)
    decided_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    decided_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-pk",)
        constraints = (
            models.UniqueConstraint(
                fields=("profile",), condition=models.Q(state="open"), name="profile_has_one_open_review"
            ),
        )

    def __str__(self) -> str:
        return f"review of {self.profile}: {self.get_state_display()}"
