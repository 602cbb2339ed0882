"""Steering profiles: the editable draft, immutable published versions, reviews and policies."""

from __future__ import annotations

from typing import Any, NoReturn

from django.conf import settings
from django.contrib.auth.models import Group
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Now

from inference.models import LanguageModel
from steering.models.saes import SAE, Feature
from steering.models.vectors import PlainVector

VERSION_IS_IMMUTABLE = "A published version is never changed; publish a new one."


class SteeringProfile(models.Model):
    """A named way to steer a model. Its draft is edited freely; requests use published versions only."""

    name = models.SlugField(max_length=100, help_text='The value of "profile" in requests.')
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="profiles")
    description = models.TextField(blank=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)
    archived_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Requests can't use it after this time."
    )
    shared_with = models.ManyToManyField(Group, blank=True, related_name="+")

    class Meta:
        ordering = ("model", "name")
        constraints = (models.UniqueConstraint(fields=("model", "name"), name="profile_name_unique_per_model"),)
        permissions = (
            ("publish_steeringprofile", "Can publish steering profile"),
            ("archive_steeringprofile", "Can archive steering profile"),
            ("review_steeringprofile", "Can review steering profile"),
            ("see_all_steeringprofiles", "Can see everybody's steering profiles"),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def latest_version(self) -> ProfileVersion | None:
        return self.versions.order_by("-number").first()


class FeatureEdit(models.Model):
    """One edit of a profile's draft: an operation on a feature of an SAE, on a vector, or on a site.

    ``plain_vector`` is a registered vector, ``vector`` custom values; for "keep the norm" it has a layer and a site
    only.
    """

    class Operation(models.TextChoices):
        ADD = "add", "add"
        CLAMP = "clamp", "clamp to"
        SCALE = "scale", "scale by"
        ABLATE = "ablate", "ablate (clamp to 0)"
        AT_LEAST = "at_least", "at least"
        AT_MOST = "at_most", "at most"
        ORTHOGONAL = "orthogonal", "scale the direction by"
        PROJECTION_CAP = "projection_cap", "cap the projection at"
        NORM_PRESERVING = "norm_preserving", "keep the norm"
        RECONSTRUCT = "reconstruct", "replace by the reconstruction"

    class Unit(models.TextChoices):
        MAX_ACT = "max_act", "× max activation"
        P99 = "p99", "× p99"
        P999 = "p999", "× p99.9"
        RAW = "raw", "raw"
        RESID_NORM = "resid_norm", "× residual norm"

    class GateUnit(models.TextChoices):
        MAX_ACT = "max_act", "× max activation"
        P99 = "p99", "× p99"
        P999 = "p999", "× p99.9"
        RAW = "raw", "raw"
        RESID_NORM = "resid_norm", "× residual norm"

    class GateSide(models.TextChoices):
        ABOVE = "above", "above the threshold"
        BELOW = "below", "below the threshold"

    class GateMeasure(models.TextChoices):
        PROJECTION = "projection", "projection"
        COSINE = "cosine", "cosine"

    class GateScope(models.TextChoices):
        TOKEN = "token", "each token"
        PROMPT_MEAN = "prompt_mean", "once, on the prompt's mean"
        PROMPT_LAST = "prompt_last", "once, on the prompt's last token"

    class Phase(models.TextChoices):
        BOTH = "both", "everywhere"
        FROM_LAST_PROMPT_TOKEN = "from_last_prompt_token", "answer, from its first token"
        PROMPT = "prompt", "prompt only"
        GENERATION = "generation", "answer, after its first token"

    class Scope(models.TextChoices):
        EVERYTHING = "everything", "everything"
        THINKING = "thinking", "thinking"
        ANSWER = "answer", "answer"
        OUTSIDE_CALLS = "outside_calls", "outside tool calls"

    profile = models.ForeignKey(SteeringProfile, on_delete=models.CASCADE, related_name="edits")
    feature = models.ForeignKey(Feature, null=True, blank=True, on_delete=models.PROTECT, related_name="edits")
    plain_vector = models.ForeignKey(
        PlainVector, null=True, blank=True, on_delete=models.PROTECT, related_name="edits", verbose_name="vector"
    )
    vector = models.JSONField(
        "custom values", null=True, blank=True, help_text='{"layer": 3, "site": "resid_post", "values": [...]}'
    )
    operation = models.CharField(max_length=20, choices=Operation, default=Operation.ADD)
    strength = models.FloatField(default=1.0, help_text='The factor for "scale by"; unused for "ablate".')
    unit = models.CharField(max_length=20, choices=Unit, default=Unit.MAX_ACT)
    phase = models.CharField(max_length=30, choices=Phase, default=Phase.BOTH)
    lower = models.FloatField(
        null=True, blank=True, help_text='Lower end for "cap the projection at"; the strength is the upper end.'
    )
    after = models.PositiveIntegerField(null=True, blank=True, help_text="Skips the first tokens of the phase.")
    first = models.PositiveIntegerField(
        null=True, blank=True, help_text="Applies only to the first tokens of the phase."
    )
    scope = models.CharField(
        max_length=20,
        choices=Scope,
        default=Scope.EVERYTHING,
        help_text="The segment of the output that the edit applies to.",
    )
    only_if_active = models.BooleanField(default=False, help_text="Only on tokens where the feature is active.")
    gate_feature = models.ForeignKey(
        Feature,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="gated_edits",
        help_text="Applies only where this feature is above the threshold. It may be of an earlier layer.",
    )
    gate_vector = models.JSONField(
        null=True,
        blank=True,
        help_text='Instead of a feature: {"layer": 3, "site": "resid_post", "values": [...]}',
    )
    gate_measure = models.CharField(
        max_length=20,
        choices=GateMeasure,
        default=GateMeasure.PROJECTION,
        help_text="What the gate compares: the residual's projection on the vector, or its cosine with it.",
    )
    gate_side = models.CharField("gate opens", max_length=20, choices=GateSide, default=GateSide.ABOVE)
    gate_scope = models.CharField(
        "gate decided on",
        max_length=20,
        choices=GateScope,
        default=GateScope.TOKEN,
        help_text="Once: for the whole answer. This needs a phase without the prompt.",
    )
    gate_above = models.FloatField("gate threshold", null=True, blank=True, help_text="Default: 0.")
    gate_unit = models.CharField(max_length=20, choices=GateUnit, default=GateUnit.MAX_ACT)
    special_tokens = models.BooleanField(default=False, help_text="Also applies to special tokens.")
    ranges = models.JSONField(
        null=True,
        blank=True,
        help_text='Replaces "after" and "first". [[0, 4], [10, null]] means tokens 0 to 3 and from 10 on.',
    )
    sink_tokens = models.BooleanField(
        "attention sinks",
        default=False,
        help_text="Also applies to a prompt's first token and to tokens with outlying residual norms.",
    )

    class Meta:
        ordering = ("pk",)
        constraints = (
            models.CheckConstraint(
                condition=models.Q(feature__isnull=False, vector__isnull=True, plain_vector__isnull=True)
                | models.Q(feature__isnull=True, vector__isnull=False, plain_vector__isnull=True)
                | models.Q(feature__isnull=True, vector__isnull=True, plain_vector__isnull=False),
                name="edit_has_feature_or_vector",
                violation_error_message="An edit needs either a feature or a vector.",
            ),
        )

    def __str__(self) -> str:
        target: object = self.plain_vector or "custom values"
        if self.feature is not None:
            target = self.feature.label or f"feature {self.feature.index}"
        elif isinstance(self.vector, dict) and "values" not in self.vector:  # a whole site
            sae = self.vector.get("sae")
            target = sae["name"] if isinstance(sae, dict) and "name" in sae else f"layer {self.vector.get('layer')}"
        return f"{self.get_operation_display()}: {target}"

    def clean(self) -> None:
        for name in ("feature", "gate_feature"):
            feature: Feature | None = getattr(self, name)
            if feature is not None and self.profile_id and feature.sae.model_id != self.profile.model_id:
                raise ValidationError({name: f"{feature} belongs to the model {feature.sae.model}."})
        vector = self.plain_vector
        if vector is not None and self.profile_id and vector.vector_set.model_id != self.profile.model_id:
            message = f"{vector} belongs to the model {vector.vector_set.model}."
            raise ValidationError({"plain_vector": message})


class ProfileVersionQuerySet(models.QuerySet["ProfileVersion"]):
    """Versions are never changed or deleted. A trigger enforces the same in the database."""

    def update(self, **values: Any) -> NoReturn:
        raise ValidationError(VERSION_IS_IMMUTABLE)

    def delete(self) -> NoReturn:
        raise ValidationError(VERSION_IS_IMMUTABLE)


class ProfileVersion(models.Model):
    """An immutable, numbered snapshot of a profile. ``edits`` has everything that compiling needs except weights."""

    profile = models.ForeignKey(SteeringProfile, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    edits = models.JSONField()
    saes = models.ManyToManyField(SAE, through="VersionSAE", related_name="versions")
    fingerprint = models.CharField(max_length=64, db_index=True)
    note = models.TextField(blank=True)
    published_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    published_at = models.DateTimeField(db_default=Now())

    objects = ProfileVersionQuerySet.as_manager()

    class Meta:
        ordering = ("profile", "-number")
        constraints = (models.UniqueConstraint(fields=("profile", "number"), name="version_number_unique"),)

    def __str__(self) -> str:
        return f"{self.profile.name}@{self.number}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if not self._state.adding:
            raise ValidationError(VERSION_IS_IMMUTABLE)
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValidationError(VERSION_IS_IMMUTABLE)


class VersionSAE(models.Model):
    """An SAE that a version needs; protects it from deletion."""

    version = models.ForeignKey(ProfileVersion, on_delete=models.PROTECT, related_name="sae_links")
    sae = models.ForeignKey(SAE, on_delete=models.PROTECT, related_name="version_links")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("version", "sae"), name="version_sae_unique"),)

    def __str__(self) -> str:
        return f"{self.version} needs {self.sae}"


class SteeringPolicy(models.Model):
    """A version that steers every request of its model, after the request's own profile. Clients cannot opt out."""

    version = models.OneToOneField(ProfileVersion, on_delete=models.PROTECT, related_name="policy")
    position = models.PositiveIntegerField(default=0, help_text="Policies with a lower position are applied first.")
    is_active = models.BooleanField("active", default=True)
    reason = models.TextField(help_text="Why every request needs it. Shown in the audit trail.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("position", "pk")
        verbose_name_plural = "steering policies"

    def __str__(self) -> str:
        return f"{self.version} for all of {self.version.profile.model}"


class ProfileReview(models.Model):
    """A request for a review of a draft. ``fingerprint`` identifies the effect that is reviewed."""

    class State(models.TextChoices):
        OPEN = "open", "waiting for a reviewer"
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
