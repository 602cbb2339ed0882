"""Watch rules, which monitor every request of a model, and their events."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now


class WatchRule(models.Model):
    """A rule that monitors a feature in every request of its model; a cap also limits the feature."""

    class Action(models.TextChoices):
        ALERT = "alert", "alert"
        CAP = "cap", "cap at the threshold"

    class Unit(models.TextChoices):
        MAX_ACT = "max_act", "× max activation"
        P99 = "p99", "× p99"
        P999 = "p999", "× p99.9"
        RAW = "raw", "raw"

    name = models.SlugField(max_length=100, unique=True, help_text="Shown in responses and events.")
    feature = models.ForeignKey("steering.Feature", on_delete=models.PROTECT, related_name="watch_rules")
    threshold = models.FloatField(default=1.0, help_text="The rule applies above this value.")
    unit = models.CharField(max_length=20, choices=Unit, default=Unit.MAX_ACT)
    action = models.CharField(max_length=20, choices=Action, default=Action.ALERT)
    is_active = models.BooleanField("active", default=True)
    reason = models.TextField(help_text="Why every request is monitored. Shown in the audit trail.")
    raw_threshold = models.FloatField(editable=False, help_text="The threshold as an activation, fixed when saved.")
    problem = models.CharField(max_length=500, blank=True, editable=False, help_text="Why the rule is not applied.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


class WatchEvent(models.Model):
    """A request in which a rule's feature exceeded the threshold. It has names, not keys, so that it outlives rows."""

    at = models.DateTimeField(db_index=True)
    rule = models.CharField(max_length=100)
    action = models.CharField(max_length=20, choices=WatchRule.Action)
    model = models.CharField(max_length=200, db_index=True)
    sae = models.CharField(max_length=200)
    feature = models.PositiveIntegerField()
    label = models.CharField(max_length=500, blank=True)
    threshold = models.FloatField(help_text="As an activation.")
    value = models.FloatField(help_text="The largest activation among the request's tokens.")
    num_tokens = models.PositiveIntegerField("tokens above", help_text="Across all choices.")
    place = models.PositiveIntegerField(
        help_text="Position of the largest activation, counted from the prompt's first token."
    )
    in_prompt = models.BooleanField(help_text="Whether it is a token of the prompt.")
    profile = models.CharField(max_length=250, blank=True)
    request_id = models.CharField(max_length=100)

    class Meta:
        ordering = ("-at", "-pk")
        constraints = (models.UniqueConstraint(fields=("request_id", "rule"), name="watch_event_unique"),)

    def __str__(self) -> str:
        return f"{self.rule}: {self.value:.3g} above {self.threshold:.3g}"
