"""SAEs, their features, and the features' label embeddings."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import models
from django.db.models.functions import Now
from pgvector.django import VectorField

from inference.models import LanguageModel
from steering.features.search import LABEL_WORDS, FeatureQuerySet
from steering.measuring.quantiles import ActivationQuantiles, activation_quantiles


class SAE(models.Model):
    """A sparse autoencoder that reads and steers one site of one model."""

    class Site(models.TextChoices):
        RESID_PRE = "resid_pre", "residual before the layer"
        RESID_POST = "resid_post", "residual after the layer"
        MLP_IN = "mlp_in", "input of the MLP, behind the norm before it"
        MLP_RAW = "mlp_raw", "output of the MLP, before any norm behind it"
        MLP_OUT = "mlp_out", "output of the MLP, as it joins the residual"
        ATTN_OUT = "attn_out", "attention heads, before their projection"

    OUTSIDE_RESIDUAL = (Site.MLP_IN, Site.ATTN_OUT)  # their directions are not ones of the residual

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
    d_in = models.PositiveIntegerField("width", help_text="Width of the residual (d_in).")
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
    dead_share = models.FloatField(null=True, blank=True, help_text="Share of features that were never active.")
    model_loss = models.FloatField(
        null=True, blank=True, help_text="Cross-entropy of the model's predictions in nats per token."
    )
    spliced_loss = models.FloatField(
        null=True, blank=True, help_text="Cross-entropy with the SAE's reconstruction in place of the residual."
    )
    zero_loss = models.FloatField(null=True, blank=True, help_text="Cross-entropy with zeros in its place.")
    mean_loss = models.FloatField(null=True, blank=True, help_text="Cross-entropy with the mean residual in its place.")
    measured_at = models.DateTimeField(null=True, blank=True, editable=False)
    measured_tokens = models.PositiveIntegerField(null=True, blank=True, help_text="Ordinary tokens of the corpus.")
    measured_sinks = models.PositiveIntegerField(
        null=True, blank=True, help_text="Attention sinks excluded from measuring."
    )
    corpus = models.CharField(max_length=200, blank=True, help_text="Corpus of the measurement: name and version.")
    causes = models.JSONField(default=list, blank=True, help_text="Possible causes of a poor fit.")
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name",)
        verbose_name = "SAE"
        verbose_name_plural = "SAEs"
        constraints = (
            models.UniqueConstraint(
                fields=("model", "checksum", "layer", "site"),
                name="sae_registered_once",
                violation_error_message="This SAE is already registered for this model and site.",
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def loss_recovered(self) -> float | None:
        """Share of the loss that the reconstruction recovers compared to zeros, (zero - spliced) / (zero - model)."""
        model, spliced, zero = self.model_loss, self.spliced_loss, self.zero_loss
        if model is None or spliced is None or zero is None or zero <= model:
            return None
        return (zero - spliced) / (zero - model)

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


_PERCENTILES = {"p99": "p99", "p999": "p99.9"}  # names of units


class Feature(models.Model):
    """One latent of an SAE."""

    class Source(models.TextChoices):
        IMPORT = "import", "imported"
        MEASURED = "measured", "measured"

    sae = models.ForeignKey(SAE, on_delete=models.CASCADE, related_name="features")
    index = models.PositiveIntegerField()
    label = models.CharField(max_length=500, blank=True)
    label_source = models.CharField(max_length=300, blank=True, help_text="For example Neuronpedia, or a user.")
    label_score = models.FloatField(
        null=True, blank=True, help_text="Accuracy with which the label tells where the feature is active, 0.5 to 1."
    )
    description = models.TextField(
        max_length=4000, blank=True, help_text="A longer description, or other explanations."
    )
    max_activation = models.FloatField(null=True, blank=True, help_text="Largest activation on a corpus.")
    max_activation_source = models.CharField(
        max_length=20, choices=Source, blank=True, help_text="Source of the largest activation."
    )
    density = models.FloatField(null=True, blank=True, help_text="Share of tokens on which it is active.")
    decoder_norm = models.FloatField(null=True, blank=True, help_text="L2 norm of its decoder row.")
    top_tokens = models.JSONField(default=list, blank=True, help_text="Tokens on which it is most active.")
    output_tokens = models.JSONField(
        default=list,
        blank=True,
        help_text="Tokens that steering with it makes likely: their texts and parts of the divergence.",
    )
    examples = models.JSONField(
        default=list, blank=True, help_text="Texts on which it is most active: tokens and values."
    )
    examples_source = models.CharField(max_length=200, blank=True, help_text="Corpus or import of the examples.")
    histogram = models.JSONField(null=True, blank=True, help_text="Activation histogram: bin width and counts.")
    example_bands = models.JSONField(
        default=list, blank=True, help_text="Examples by activation: bounds as shares of the largest one, and texts."
    )
    cofiring = models.JSONField(
        null=True, blank=True, help_text="Features active on the same tokens: index, phi and number of tokens of each."
    )
    traffic_examples = models.JSONField(
        default=list, blank=True, help_text="Examples from requests whose keys allow it."
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
        """The feature's identifier in links: the same on every server where the SAE has the same name."""
        return f"{self.sae.name}.{self.index}"

    @property
    def quantiles(self) -> ActivationQuantiles | None:
        """The percentiles of the measured activations, for units of strength; None if they are unknown."""
        is_measured = self.max_activation_source == self.Source.MEASURED
        return activation_quantiles(self.histogram, self.max_activation if is_measured else None)

    def unit_words(self, unit: str) -> str:
        """Return the activation that a unit of strength is a multiple of, with its corpus; empty if unknown."""
        is_measured = self.max_activation_source == self.Source.MEASURED
        corpus = f", corpus {self.sae.corpus}" if self.sae.corpus else ""
        if unit == "max_act" and self.max_activation:
            return f"max activation {self.max_activation:.4g}{corpus if is_measured else ', imported'}"
        if unit in _PERCENTILES and (found := self.quantiles) is not None:
            name, value = _PERCENTILES[unit], getattr(found, unit)
            return f"{name} {value:.4g} of {found.n:,} activations above 0{corpus}"
        return ""

    @property
    def label_text(self) -> str:
        """The text to embed; empty without a label."""
        return f"{self.label}. {self.description}".strip(" .") if self.label else ""


class FeatureExplanation(models.Model):
    """An explanation of a feature beside its label: of a person, or a label that was replaced."""

    feature = models.ForeignKey(Feature, on_delete=models.CASCADE, related_name="explanations")
    text = models.CharField(max_length=500)
    source = models.CharField(max_length=300, blank=True, help_text="For example Neuronpedia, or a user.")
    score = models.FloatField(null=True, blank=True, help_text="As the label's, 0.5 to 1.")
    author = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        ordering = ("pk",)
        default_permissions = ()
        verbose_name = "explanation"
        constraints = (models.UniqueConstraint(fields=("feature", "text"), name="feature_explained_once"),)

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of_label(cls, feature: Feature) -> FeatureExplanation:
        """Return the label of a feature as an explanation, not saved."""
        return cls(feature=feature, text=feature.label, source=feature.label_source, score=feature.label_score)


class ExplanationVote(models.Model):
    """A user's vote for or against an explanation."""

    explanation = models.ForeignKey(FeatureExplanation, on_delete=models.CASCADE, related_name="votes")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    value = models.SmallIntegerField(help_text="1 or -1.")

    class Meta:
        default_permissions = ()
        constraints = (
            models.UniqueConstraint(fields=("explanation", "user"), name="explanation_voted_once"),
            models.CheckConstraint(condition=models.Q(value__in=(-1, 1)), name="vote_is_for_or_against"),
        )

    def __str__(self) -> str:
        return f"{self.value:+d} for {self.explanation}"


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
        """Whether the label has changed since it was embedded."""
        return self.text != self.feature.label_text
