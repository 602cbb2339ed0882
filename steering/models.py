"""SAEs, their features, and steering profiles with their immutable versions."""

from __future__ import annotations

from typing import Any, NoReturn

from django.conf import settings
from django.contrib.auth.models import Group
from django.contrib.postgres.indexes import GinIndex
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Now
from pgvector.django import VectorField

from inference.models import LanguageModel
from steering.feature_search import LABEL_WORDS, FeatureQuerySet
from steering.models.evaluations import Evaluation
from steering.models.reviews import ProfileReview
from steering.models.vectors import PlainVector, VectorSet, VersionVector
from steering.models.watch import WatchEvent, WatchRule

__all__ = [
    "PlainVector",
    "ProfileReview",
    "VectorSet",
    "VersionVector",
    "WatchEvent",
    "WatchRule",
]  # Django finds models here

__all__ = ["Evaluation"]  # a model of this app, in a file of its own

VERSION_IS_IMMUTABLE = "A published version is never changed; publish a new one."


class SAE(models.Model):
    """A sparse autoencoder that reads and steers one site of one model."""

    class Site(models.TextChoices):
        RESID_PRE = "resid_pre", "residual before the layer"
        RESID_POST = "resid_post", "residual after the layer"
        MLP_RAW = "mlp_raw", "output of the MLP, before any norm behind it"
        MLP_OUT = "mlp_out", "output of the MLP, as it joins the residual"
        ATTN_OUT = "attn_out", "attention heads, before their projection"

    name = models.CharField(max_length=200, unique=True)
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="saes")
    source = models.CharField(max_length=500, help_text="A local directory, or a Hugging Face Hub id.")
    revision = models.CharField(max_length=100, blank=True)
    subfolder = models.CharField(max_length=300, blank=True, help_text="Folder of the SAE inside the source.")
    format = models.CharField(max_length=50, help_text="For example saelens.")
    architecture = models.CharField(max_length=50, help_text="For example jumprelu.")
    normalization = models.CharField(max_length=50, default="none", help_text="How the SAE rescales its input.")
    layer = models.PositiveIntegerField()
    site = models.CharField(max_length=20, choices=Site, default=Site.RESID_POST)
    d_in = models.PositiveIntegerField("width", help_text="Numbers in a residual vector (d_in).")
    d_sae = models.PositiveIntegerField("features", help_text="Number of features (d_sae).")
    checksum = models.CharField(max_length=64, db_index=True, help_text="SHA-256 of weights and configuration.")
    l0 = models.FloatField("L0", null=True, blank=True, help_text="Mean number of active features per token.")
    fvu = models.FloatField("FVU", null=True, blank=True, help_text="Fraction of variance unexplained.")
    mean_resid_norm = models.FloatField(
        "mean residual norm", null=True, blank=True, help_text="Mean L2 norm of the residual at the site."
    )
    median_resid_norm = models.FloatField(
        "median residual norm", null=True, blank=True, help_text="Attention sinks are compared to it."
    )
    dead_share = models.FloatField(null=True, blank=True, help_text="Share of features that never fired.")
    measured_at = models.DateTimeField(null=True, blank=True, editable=False)
    measured_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Ordinary tokens of the corpus.")
    measured_sinks = models.PositiveIntegerField(
        null=True, blank=True, help_text="Attention sinks of the corpus, which were left out."
    )
    corpus = models.CharField(max_length=200, blank=True, help_text="What it was measured on: name and version.")
    causes = models.JSONField(default=list, blank=True, help_text="Sentences on what may be wrong with it.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        verbose_name = "SAE"
        verbose_name_plural = "SAEs"
        constraints = (
            models.UniqueConstraint(
                fields=("model", "checksum", "layer", "site"),
                name="sae_registered_once",
                violation_error_message="This SAE is registered already for this model and place.",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def place(self) -> str:
        return f"layer {self.layer}, {self.get_site_display()}"

    @property
    def reference_norm(self) -> float | None:
        """Mean norm of the residual where the SAE's decoder writes: sqrt(d_in) if it normalises its input."""
        return self.mean_resid_norm if self.normalization == "none" else float(self.d_in**0.5)

    @property
    def typical_norm(self) -> float | None:
        """Median norm of the residual, or the mean where only that is known: attention sinks are compared to it."""
        return self.median_resid_norm or self.mean_resid_norm


class Feature(models.Model):
    """One latent of an SAE."""

    class Source(models.TextChoices):
        IMPORT = "import", "imported"
        MEASURED = "measured", "measured"

    sae = models.ForeignKey(SAE, on_delete=models.CASCADE, related_name="features")
    index = models.PositiveIntegerField()
    label = models.CharField(max_length=500, blank=True)
    label_source = models.CharField(max_length=300, blank=True, help_text="Who or what gave the label.")
    description = models.TextField(max_length=4000, blank=True, help_text="More words, or other explanations.")
    max_activation = models.FloatField(null=True, blank=True, help_text="Largest activation on a corpus.")
    max_activation_source = models.CharField(
        max_length=20, choices=Source, blank=True, help_text="Where the largest activation comes from."
    )
    density = models.FloatField(null=True, blank=True, help_text="Share of tokens on which it fires.")
    decoder_norm = models.FloatField(null=True, blank=True, help_text="L2 norm of its decoder row.")
    top_tokens = models.JSONField(default=list, blank=True, help_text="Tokens on which it fires most.")
    examples = models.JSONField(default=list, blank=True, help_text="Texts on which it fires most: tokens, values.")
    examples_source = models.CharField(max_length=200, blank=True, help_text="The corpus, or the import.")
    histogram = models.JSONField(null=True, blank=True, help_text="How often it fires how strongly: width, counts.")
    traffic_examples = models.JSONField(
        default=list, blank=True, help_text="The same as examples, of requests whose keys allow it."
    )

    objects = FeatureQuerySet.as_manager()

    class Meta:
        ordering = ("sae", "index")
        constraints = (models.UniqueConstraint(fields=("sae", "index"), name="feature_index_unique"),)
        indexes = (GinIndex(LABEL_WORDS, name="feature_label_words"),)

    def __str__(self) -> str:
        label = f" {self.label}" if self.label else ""
        return f"{self.sae.name} #{self.index}{label}"

    @property
    def reference(self) -> str:
        """Its name in links: the same on every server that has the SAE under its name."""
        return f"{self.sae.name}.{self.index}"

    @property
    def label_text(self) -> str:
        """What is embedded of it; empty without a label."""
        return f"{self.label}. {self.description}".strip(" .") if self.label else ""


class LabelEmbedding(models.Model):
    """A feature's label as a vector of length 1, by one embedding model; ``text`` is what was embedded."""

    feature = models.ForeignKey(Feature, on_delete=models.CASCADE, related_name="embeddings")
    model = models.ForeignKey(LanguageModel, on_delete=models.CASCADE, related_name="+")
    text = models.TextField()
    vector = VectorField()  # of any length: that of the model

    class Meta:
        constraints = (models.UniqueConstraint(fields=("feature", "model"), name="label_embedded_once"),)

    def __str__(self) -> str:
        return f"{self.feature} by {self.model}"

    @property
    def is_stale(self) -> bool:
        """Whether the label has changed since."""
        return self.text != self.feature.label_text


class SteeringProfile(models.Model):
    """A named way to steer a model. Its draft is edited freely; requests use published versions only."""

    name = models.SlugField(max_length=100, help_text="What requests put in “profile”.")
    model = models.ForeignKey(LanguageModel, on_delete=models.PROTECT, related_name="profiles")
    description = models.TextField(blank=True)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)
    archived_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="Requests cannot use it since.")
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
    """One edit of a profile's draft: a feature of an SAE, or a plain vector, moved in one way.

    ``plain_vector`` is a registered one, ``vector`` one of the edit's own; for “keep the norm” that has a layer and a
    site only.
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

    class Unit(models.TextChoices):
        MAX_ACT = "max_act", "× max activation"
        RAW = "raw", "raw"
        RESID_NORM = "resid_norm", "× residual norm"

    class GateUnit(models.TextChoices):
        MAX_ACT = "max_act", "× max activation"
        RAW = "raw", "raw"

    class Phase(models.TextChoices):
        BOTH = "both", "everywhere"
        FROM_LAST_PROMPT_TOKEN = "from_last_prompt_token", "answer, from its first token"
        PROMPT = "prompt", "prompt only"
        GENERATION = "generation", "answer, after its first token"

    class Scope(models.TextChoices):
        EVERYTHING = "everything", "everything"
        THINKING = "thinking", "the thinking"
        ANSWER = "answer", "the answer itself"
        OUTSIDE_CALLS = "outside_calls", "outside of tool calls"

    profile = models.ForeignKey(SteeringProfile, on_delete=models.CASCADE, related_name="edits")
    feature = models.ForeignKey(Feature, null=True, blank=True, on_delete=models.PROTECT, related_name="edits")
    plain_vector = models.ForeignKey(
        PlainVector, null=True, blank=True, on_delete=models.PROTECT, related_name="edits", verbose_name="vector"
    )
    vector = models.JSONField(
        "own numbers", null=True, blank=True, help_text='{"layer": 3, "site": "resid_post", "values": [...]}'
    )
    operation = models.CharField(max_length=20, choices=Operation, default=Operation.ADD)
    strength = models.FloatField(default=1.0, help_text="A factor for “scale by”; unused for “ablate”.")
    unit = models.CharField(max_length=20, choices=Unit, default=Unit.MAX_ACT)
    phase = models.CharField(max_length=30, choices=Phase, default=Phase.BOTH)
    lower = models.FloatField(
        null=True, blank=True, help_text="Lower end for “cap the projection at”; the strength is the upper one."
    )
    after = models.PositiveIntegerField(null=True, blank=True, help_text="Leaves the phase's first tokens alone.")
    first = models.PositiveIntegerField(null=True, blank=True, help_text="Acts on the phase's first tokens only.")
    scope = models.CharField(
        max_length=20, choices=Scope, default=Scope.EVERYTHING, help_text="The part of what the model writes."
    )
    only_if_active = models.BooleanField(default=False, help_text="Only on tokens where the feature is active.")
    gate_feature = models.ForeignKey(
        Feature,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="gated_edits",
        help_text="Acts only where this feature is above the threshold.",
    )
    gate_above = models.FloatField("gate threshold", null=True, blank=True, help_text="Empty: 0.")
    gate_unit = models.CharField(max_length=20, choices=GateUnit, default=GateUnit.MAX_ACT)
    special_tokens = models.BooleanField(default=False, help_text="On special tokens too.")
    ranges = models.JSONField(
        null=True,
        blank=True,
        help_text="In place of “after” and “first”: [[0, 4], [10, null]] are tokens 0 to 3 and 10 on.",
    )
    sink_tokens = models.BooleanField(
        "attention sinks",
        default=False,
        help_text="On a prompt's first token and on those with enormous residuals too.",
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
        feature = self.feature and (self.feature.label or f"feature {self.feature.index}")
        return f"{self.get_operation_display()}: {feature or self.plain_vector or 'own numbers'}"

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
    """Versions are only ever added and read. A trigger in the database says the same to everybody else."""

    def update(self, **values: Any) -> NoReturn:
        raise ValidationError(VERSION_IS_IMMUTABLE)

    def delete(self) -> NoReturn:
        raise ValidationError(VERSION_IS_IMMUTABLE)


class ProfileVersion(models.Model):
    """An immutable, numbered snapshot of a profile. ``edits`` holds all that compiling needs but the weights."""

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
    """An SAE that a version needs, which therefore cannot be deleted."""

    version = models.ForeignKey(ProfileVersion, on_delete=models.PROTECT, related_name="sae_links")
    sae = models.ForeignKey(SAE, on_delete=models.PROTECT, related_name="version_links")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("version", "sae"), name="version_sae_unique"),)

    def __str__(self) -> str:
        return f"{self.version} needs {self.sae}"


class SteeringPolicy(models.Model):
    """A version that steers all traffic of its model, after each request's own profile. No request can refuse it."""

    version = models.OneToOneField(ProfileVersion, on_delete=models.PROTECT, related_name="policy")
    position = models.PositiveIntegerField(default=0, help_text="Lower ones act first.")
    is_active = models.BooleanField("active", default=True)
    reason = models.TextField(help_text="Why all requests need it. Whoever reads the audit trail sees it.")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, editable=False, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("position", "pk")
        verbose_name_plural = "steering policies"

    def __str__(self) -> str:
        return f"{self.version} for all of {self.version.profile.model}"
