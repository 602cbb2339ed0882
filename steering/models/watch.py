"""Watch rules, which monitor every request of a model, and their events."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from inference.models import LanguageModel


class WatchRule(models.Model):
    """A rule that monitors a feature or a vector in every request of its model; a cap also limits its value.

    The value of a vector ``v`` is that of a read: ``h v + bias``, or its logistic function with ``sigmoid``.
    """

    class Action(models.TextChoices):
        ALERT = "alert", "alert"
        CAP = "cap", "cap at the threshold"

    class Unit(models.TextChoices):
        MAX_ACT = "max_act", "× max activation"
        P99 = "p99", "× p99"
        P999 = "p999", "× p99.9"
        RAW = "raw", "raw"

    name = models.SlugField(max_length=100, unique=True, help_text="Shown in responses and events.")
    feature = models.ForeignKey(
        "steering.Feature", null=True, blank=True, on_delete=models.PROTECT, related_name="watch_rules"
    )
    vector = models.ForeignKey(
        "steering.PlainVector",
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="watch_rules",
        help_text="Instead of a feature: a steering vector or the weights of a linear probe.",
    )
    bias = models.FloatField(default=0.0, help_text="Of a linear probe: added to the product of residual and vector.")
    sigmoid = models.BooleanField(
        default=False, help_text="Of a logistic probe: the value is a probability, and so is the threshold."
    )
    threshold = models.FloatField(default=1.0, help_text="The rule applies above this value.")
    unit = models.CharField(max_length=20, choices=Unit, default=Unit.MAX_ACT)
    action = models.CharField(max_length=20, choices=Action, default=Action.ALERT)
    is_active = models.BooleanField("active", default=True)
    reason = models.TextField(help_text="Why every request is monitored. Shown in the audit trail.")
    raw_threshold = models.FloatField(editable=False, help_text="The threshold as a value, fixed when saved.")
    problem = models.CharField(max_length=500, blank=True, editable=False, help_text="Why the rule is not applied.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(feature__isnull=False, vector__isnull=True)
                | models.Q(feature__isnull=True, vector__isnull=False),
                name="watch_rule_has_feature_or_vector",
                violation_error_message="A rule needs either a feature or a vector.",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def model(self) -> LanguageModel:
        """The model whose requests are monitored."""
        if self.feature is not None:
            return self.feature.sae.model
        assert self.vector is not None, "a rule has a feature or a vector"
        return self.vector.vector_set.model

    @property
    def subject(self) -> str:
        """What is monitored, in words."""
        return str(self.vector or self.feature)


class WatchEvent(models.Model):
    """A request in which the value of a rule exceeded the threshold. It has names, not keys, so that it outlives rows.

    ``sae``, ``feature`` and ``label`` are those of a feature; ``vector`` is a vector's set and site.
    """

    at = models.DateTimeField(db_index=True)
    rule = models.CharField(max_length=100)
    action = models.CharField(max_length=20, choices=WatchRule.Action)
    model = models.CharField(max_length=200, db_index=True)
    sae = models.CharField(max_length=200, blank=True)
    feature = models.PositiveIntegerField(null=True, blank=True)
    label = models.CharField(max_length=500, blank=True)
    vector = models.CharField(max_length=200, blank=True, default="")
    threshold = models.FloatField(help_text="As a value.")
    value = models.FloatField(help_text="The largest value among the request's tokens.")
    num_tokens = models.PositiveIntegerField("tokens above", help_text="Across all choices.")
    place = models.PositiveIntegerField(
        help_text="Position of the largest value, counted from the prompt's first token."
    )
    in_prompt = models.BooleanField(help_text="Whether it is a token of the prompt.")
    profile = models.CharField(max_length=250, blank=True)
    request_id = models.CharField(max_length=100)

    class Meta:
        ordering = ("-at", "-pk")
        constraints = (models.UniqueConstraint(fields=("request_id", "rule"), name="watch_event_unique"),)

    def __str__(self) -> str:
        return f"{self.rule}: {self.value:.3g} above {self.threshold:.3g}"

    @property
    def subject(self) -> str:
        """What was monitored, in words."""
        return self.vector or f"{self.sae} #{self.feature} {self.label}".rstrip()
