"""Units of strength: pure functions from a strength to its raw coefficient and its push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from steering.spec.errors import MissingScaleError

Unit = Literal["raw", "max_act", "p99", "p999", "resid_norm"]
ActivationUnit = Literal["max_act", "p99", "p999"]

ACTIVATION_UNITS: tuple[ActivationUnit, ...] = get_args(ActivationUnit)
"""The units that are multiples of an activation of the feature itself, so only features have them."""

FELT_PUSH = 0.2
"""Below this fraction of the residual norm, an edit has little visible effect."""
STRONG_PUSH = 0.6
"""Above this fraction of the residual norm, text tends to become incoherent."""
MAX_PUSH = 10.0
"""Above this, a profile cannot be published: the output would be noise."""
DEFAULT_STRENGTH = 0.5  # the default of a new edit in the console, in multiples of the max activation
MAX_STRENGTH = 1e6


@dataclass(frozen=True, slots=True)
class Scales:
    """Numbers that strengths refer to; None if unknown.

    ``max_activation``, ``p99`` and ``p999``: the feature's largest activation on a corpus, and percentiles of its
    activations above 0 (a version has the percentile only if its unit needs it). ``direction_norm``: L2 norm of its
    decoder row (or of the plain vector). ``reference_norm``: mean L2 norm of the residual in the space where the
    direction is added: that of the site, or sqrt(d_in) for an SAE that normalises its input. ``typical_norm``: median
    L2 norm of the residual at the site (the mean where the median was not measured), to which attention sinks are
    compared.
    """

    max_activation: float | None = None
    direction_norm: float | None = None
    reference_norm: float | None = None
    typical_norm: float | None = None
    p99: float | None = None
    p999: float | None = None

    def activation(self, unit: ActivationUnit) -> float | None:
        """Return the activation that the unit is a multiple of."""
        match unit:
            case "max_act":
                return self.max_activation
            case "p99":
                return self.p99
            case "p999":
                return self.p999


UNKNOWN = Scales()
_FIGURES: dict[ActivationUnit, str] = {
    "max_act": "the feature's max activation, which is not known; use `raw`.",
    "p99": "the feature's activation histogram, which is not known; measure the SAE, or use `raw`.",
    "p999": "the feature's activation histogram, which is not known; measure the SAE, or use `raw`.",
}


def coefficient(strength: float, unit: Unit, scales: Scales) -> float:
    """Return the raw coefficient c of ``c * direction``. Raise MissingScaleError if the unit needs an unknown number.

    raw: c = s. max_act, p99 and p999: c = s * that activation. resid_norm: c = s * reference_norm / direction_norm, so
    that the step is the fraction s of the residual's mean norm.
    """
    match unit:
        case "raw":
            return strength + 0.0  # -0.0 becomes 0.0
        case "max_act" | "p99" | "p999":
            if not (activation := scales.activation(unit)):
                raise MissingScaleError(f"The unit `{unit}` needs {_FIGURES[unit]}")
            return strength * activation + 0.0
        case "resid_norm":
            if not scales.reference_norm or not scales.direction_norm:
                raise MissingScaleError(
                    "The unit `resid_norm` needs the mean residual norm, which is not known; use `raw`."
                )
            return strength * scales.reference_norm / scales.direction_norm + 0.0


def push(raw: float, scales: Scales) -> float | None:
    """Return ``|c * direction| / mean |h|``, or None if a norm is unknown."""
    if scales.direction_norm is None or not scales.reference_norm:
        return None
    return abs(raw) * scales.direction_norm / scales.reference_norm
