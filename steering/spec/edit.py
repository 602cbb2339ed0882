"""The edits of a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.interventions import Phase, Site
from steering.spec.units import UNKNOWN, Scales, Unit, coefficient, push

Operation = Literal["add", "clamp", "scale", "ablate", "at_least", "at_most"]
OPERATIONS: tuple[Operation, ...] = ("add", "clamp", "scale", "ablate", "at_least", "at_most")
UNITS: tuple[Unit, ...] = ("raw", "max_act", "resid_norm")
PHASES: tuple[Phase, ...] = ("prompt", "generation", "both")


@dataclass(frozen=True, slots=True)
class SAEIdentity:
    """The SAE of an edit. ``checksum`` covers weights and configuration; ``name`` is for readers only."""

    name: str
    checksum: str
    site: Site
    d_in: int
    d_sae: int


@dataclass(frozen=True, slots=True)
class FeatureTarget:
    """A feature, with the numbers that its strength refers to. ``label`` is for readers only."""

    sae: SAEIdentity
    index: int
    scales: Scales = UNKNOWN
    label: str = ""

    @property
    def site(self) -> Site:
        return self.sae.site


@dataclass(frozen=True, slots=True)
class VectorTarget:
    """A plain direction at a site; its own length is kept."""

    site: Site
    values: tuple[float, ...]
    scales: Scales = UNKNOWN


@dataclass(frozen=True, slots=True)
class EditSpec:
    """One edit.

    ``strength`` is in ``unit`` for add, clamp, at_least and at_most; a plain factor for scale; unused for ablate.
    """

    target: FeatureTarget | VectorTarget
    operation: Operation = "add"
    strength: float = 1.0
    unit: Unit = "max_act"
    phase: Phase = "both"

    @property
    def raw(self) -> float:
        """The number the operation works with: coefficient, target activation, bound or factor.

        MissingScaleError when the unit refers to a number that is not known.
        """
        match self.operation:
            case "ablate":
                return 0.0
            case "scale":
                return self.strength + 0.0
            case _:
                return coefficient(self.strength, self.unit, self.target.scales)

    @property
    def push(self) -> float | None:
        """The largest step to expect, as a fraction of the residual's mean norm; None when it cannot be known.

        For clamp and bounds the feature is taken to lie between 0 and its maximal activation.
        """
        change = self._largest_change()
        return None if change is None else push(change, self.target.scales)

    @property
    def is_no_op(self) -> bool:
        """Whether the edit changes nothing whatever the residual is."""
        return (self.operation == "add" and self.raw == 0) or (self.operation == "scale" and self.raw == 1)

    def _largest_change(self) -> float | None:
        raw, maximum = self.raw, self.target.scales.max_activation
        match self.operation:
            case "add":
                return abs(raw)
            case "at_least":
                return max(raw, 0.0)
            case "clamp":
                return abs(raw) if maximum is None else max(abs(raw), abs(maximum - raw))
            case _ if maximum is None:
                return None
            case "at_most":
                return max(maximum - raw, 0.0)
            case "scale":
                return abs(raw - 1) * maximum
            case "ablate":
                return maximum
