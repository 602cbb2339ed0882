"""Measured effects of features on the model's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models

from steering.models.saes import SAE, Feature

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class FeatureEffect(models.Model):
    """The effect of adding a feature at its calibrated strength, see :mod:`steering.effects.recipe`."""

    feature = models.OneToOneField(Feature, on_delete=models.CASCADE, related_name="effect")
    sae = models.ForeignKey(SAE, on_delete=models.CASCADE, related_name="effects")
    strength = models.FloatField(help_text="Calibrated strength (raw); 0 if steering was unstable at every strength.")
    kl = models.FloatField("KL", help_text="KL(unsteered || steered) there, in nats per token of neutral text.")
    push = models.FloatField("relative size", help_text="Relative size of the step.")
    is_capped = models.BooleanField(default=False, help_text="The target was not reached below the cap.")
    output_score = models.FloatField(
        null=True, blank=True, help_text="Probability of the feature's own first tokens, weighted by rank."
    )
    base_output_score = models.FloatField(null=True, blank=True, help_text="The same without steering.")
    fluency = models.FloatField(
        null=True, blank=True, help_text="Perplexity of steered samples over that of unsteered ones."
    )
    steers_well = models.FloatField(default=0.0, help_text="Gain of the output score times fluency, 0 to 1.")
    curve = models.JSONField(default=list, blank=True, help_text="Strengths (raw) and divergences that were tried.")
    samples = models.JSONField(default=list, blank=True, help_text="Prompts with answers before and after.")
    recipe = models.CharField(max_length=200, help_text="Version and parameters of the measurement.")
    is_imported = models.BooleanField(default=False, help_text="From a file, not measured on this server.")
    measured_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("sae", "-steers_well"), name="feature_steers_well"),)

    def __str__(self) -> str:
        return f"effect of {self.feature}"

    @property
    def in_max_act(self) -> float | None:
        """The calibrated strength in max activations of the feature; None if that number is unknown."""
        return self.strength / self.feature.max_activation if self.feature.max_activation else None

    @property
    def sample_pairs(self) -> list[Mapping[str, Any]]:
        return [sample for sample in self.samples if sample.get("after")]
