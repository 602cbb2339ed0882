"""Measured effects of features and vectors on the model's output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from django.db import models

from steering.models.saes import SAE, Feature
from steering.models.vectors import PlainVector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


FELT_KL = 0.1  # nats per token: hard to notice below
BREAKING_KL = 1.0  # texts have little in common above
BREAKING_FLUENCY = 2.0
_POWERS = (1.0, 4.0)


class CalibratedEffect(models.Model):
    """The effect of adding a direction at its calibrated strength, see :mod:`steering.effects.recipe`."""

    strength = models.FloatField(help_text="Calibrated strength (raw); 0 if steering was unstable at every strength.")
    kl = models.FloatField("KL", help_text="KL(unsteered || steered) there, in nats per token of neutral text.")
    push = models.FloatField("relative size", help_text="Relative size of the step.")
    is_capped = models.BooleanField(default=False, help_text="The target was not reached below the cap.")
    fluency = models.FloatField(
        null=True, blank=True, help_text="Perplexity of steered samples over that of unsteered ones."
    )
    curve = models.JSONField(default=list, blank=True, help_text="Strengths (raw) and divergences that were tried.")
    samples = models.JSONField(default=list, blank=True, help_text="Prompts with answers before and after.")
    recipe = models.CharField(max_length=200, help_text="Version and parameters of the measurement.")
    is_imported = models.BooleanField(default=False, help_text="From a file, not measured on this server.")
    measured_at = models.DateTimeField()

    class Meta:
        abstract = True

    def in_unit(self, unit: str) -> float | None:
        """Return the calibrated strength in a unit of strengths; None if the unit's scale is unknown."""
        raise NotImplementedError

    @property
    def levels(self) -> tuple[float, float] | None:
        """The relative sizes at which the effect becomes visible and at which text likely breaks; None if unknown.

        The divergence is 0.1 nats per token at the first and 1 at the second, extrapolated as a power of the strength.
        If samples are less than half as plausible at the calibrated strength, text breaks there.
        """
        if not (self.curve and self.strength and self.push):
            return None
        per_raw = self.push / self.strength
        points = sorted((raw, kl) for raw, kl in self.curve if raw > 0 and kl > 0)
        if not points:
            return None
        felt, strong = (_strength_at(kl, points) * per_raw for kl in (FELT_KL, BREAKING_KL))
        if self.fluency is not None and self.fluency > BREAKING_FLUENCY:
            strong = min(strong, self.push)
        return min(felt, strong), strong

    @property
    def sample_pairs(self) -> list[Mapping[str, Any]]:
        return [sample for sample in self.samples if sample.get("after")]


class FeatureEffect(CalibratedEffect):
    """The effect of a feature of an SAE."""

    feature = models.OneToOneField(Feature, on_delete=models.CASCADE, related_name="effect")
    sae = models.ForeignKey(SAE, on_delete=models.CASCADE, related_name="effects")
    output_score = models.FloatField(
        null=True, blank=True, help_text="Probability of the feature's own first tokens, weighted by rank."
    )
    base_output_score = models.FloatField(null=True, blank=True, help_text="The same without steering.")
    steered_activation = models.FloatField(
        null=True, blank=True, help_text="Mean activation on steered samples, read unsteered, relative to the maximum."
    )
    base_activation = models.FloatField(null=True, blank=True, help_text="The same on unsteered samples.")
    steers_well = models.FloatField(
        default=0.0, help_text="Larger gain of the output score and of the activation, times fluency: 0 to 1."
    )

    class Meta:
        indexes = (models.Index(fields=("sae", "-steers_well"), name="feature_steers_well"),)

    def __str__(self) -> str:
        return f"effect of {self.feature}"

    @property
    def in_max_act(self) -> float | None:
        """The calibrated strength in max activations of the feature; None if that number is unknown."""
        return self.strength / self.feature.max_activation if self.feature.max_activation else None

    def in_unit(self, unit: str) -> float | None:
        if unit == "raw":
            return self.strength
        if unit == "max_act":
            return self.in_max_act
        if unit in ("p99", "p999"):
            quantiles = self.feature.quantiles
            return self.strength / getattr(quantiles, unit) if quantiles else None
        norm, length = self.sae.reference_norm, self.feature.decoder_norm
        return self.strength * length / norm if norm and length else None


class VectorEffect(CalibratedEffect):
    """The effect of a registered vector. ``output_tokens``: the tokens that it makes the model write, with parts."""

    vector = models.OneToOneField(PlainVector, on_delete=models.CASCADE, related_name="effect")
    output_tokens = models.JSONField(default=list, blank=True, help_text="Tokens that it makes the model write.")

    def __str__(self) -> str:
        return f"effect of {self.vector}"

    def in_unit(self, unit: str) -> float | None:
        return {"raw": self.strength, "resid_norm": self.push}.get(unit)


def _strength_at(kl: float, points: list[tuple[float, float]]) -> float:
    """Return the strength with a divergence, from the measured points around it or nearest to it."""
    above = next((number for number, point in enumerate(points) if point[1] >= kl), len(points) - 1)
    high = points[max(above, min(1, len(points) - 1))]
    low = points[max(above, 1) - 1]
    power = 2.0
    if high[0] > low[0] and high[1] > low[1]:
        power = math.log(high[1] / low[1]) / math.log(high[0] / low[0])
    return high[0] * math.pow(kl / high[1], 1 / min(max(power, _POWERS[0]), _POWERS[1]))
