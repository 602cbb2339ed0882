"""The edits of a profile, and the segments of an answer (their scope) to which they apply."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from inference.interventions import ALL_TOKENS, GateScope, Site, Window
from inference.segments import ALL_SEGMENTS, Segment
from steering.spec.units import UNKNOWN, Scales, Unit, coefficient, push

Scope = Literal["everything", "thinking", "answer", "outside_calls"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
EVERYTHING: Scope = "everything"

_SEGMENTS: dict[Scope, frozenset[Segment]] = {
    "everything": ALL_SEGMENTS,
    "thinking": frozenset({"thinking"}),
    "answer": frozenset({"answer"}),
    "outside_calls": frozenset({"thinking", "answer"}),
}


def segments_of(scope: Scope) -> frozenset[Segment]:
    return _SEGMENTS[scope]


def is_single_segment(scope: Scope) -> bool:
    """Return whether the scope is one segment. Its windows then count tokens of the segment, not of the phase."""
    return len(_SEGMENTS[scope]) == 1


def windows_of(scope: Scope, window: Window) -> tuple[Window, Window]:
    """Return the window over the tokens of the phase, and the one over the tokens of the segment."""
    return (ALL_TOKENS, window) if is_single_segment(scope) else (window, ALL_TOKENS)


def may_meet(one: Scope, window: Window, other: Scope, other_window: Window) -> bool:
    """Return whether two edits of one phase can apply to the same token."""
    if _SEGMENTS[one].isdisjoint(_SEGMENTS[other]):
        return False
    if is_single_segment(one) == is_single_segment(other):
        return window.overlaps(other_window)
    # The k-th token of a segment is the k-th token of the phase or a later one.
    of_part, of_phase = (window, other_window) if is_single_segment(one) else (other_window, window)
    return of_phase.first is None or of_part.after < of_phase.first


Phase = Literal["both", "from_last_prompt_token", "prompt", "generation"]
Operation = Literal[
    "add", "clamp", "scale", "ablate", "at_least", "at_most", "orthogonal", "projection_cap", "norm_preserving",
    "reconstruct",
]  # fmt: skip
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
VECTOR_OPERATIONS: tuple[Operation, ...] = ("add", "orthogonal", "projection_cap")
SITE_OPERATIONS: tuple[Operation, ...] = ("norm_preserving", "reconstruct")
DIRECTION_OPERATIONS: frozenset[Operation] = frozenset({"orthogonal", "projection_cap"})  # they ignore the length
UNITS: tuple[Unit, ...] = get_args(Unit)
GATE_UNITS = UNITS
GateMeasure = Literal["projection", "cosine"]
GATE_MEASURES: tuple[GateMeasure, ...] = get_args(GateMeasure)
GateSide = Literal["above", "below"]
GATE_SIDES: tuple[GateSide, ...] = get_args(GateSide)
GATE_SCOPES: tuple[GateScope, ...] = get_args(GateScope)
PROMPT_GATE_PHASES: frozenset[Phase] = frozenset({"from_last_prompt_token", "generation"})
"""The phases whose tokens come when the whole prompt is known."""
PHASES: tuple[Phase, ...] = get_args(Phase)
SINK_FACTOR = 10.0
"""A token whose residual is this many times longer than usual is an attention sink."""


@dataclass(frozen=True, slots=True)
class SAEIdentity:
    """The SAE of an edit. ``checksum`` covers weights and configuration; ``name`` is only for display."""

    name: str
    checksum: str
    site: Site
    d_in: int
    d_sae: int


@dataclass(frozen=True, slots=True)
class FeatureTarget:
    """A feature, with the numbers that its strength refers to. ``label`` is only for display."""

    sae: SAEIdentity
    index: int
    scales: Scales = UNKNOWN
    label: str = ""

    @property
    def site(self) -> Site:
        return self.sae.site


@dataclass(frozen=True, slots=True)
class VectorTarget:
    """A steering vector at a site; it is not normalised. ``name`` is only for display."""

    site: Site
    values: tuple[float, ...]
    scales: Scales = UNKNOWN
    name: str = ""


@dataclass(frozen=True, slots=True)
class SiteTarget:
    """A whole site, for operations without a direction. ``sae``: the SAE that reconstructs its residual."""

    site: Site
    scales: Scales = UNKNOWN
    sae: SAEIdentity | None = None


@dataclass(frozen=True, slots=True)
class GateSpec:
    """A gate that is open where a value is above or below ``threshold`` (in ``unit``).

    The value is the activation of a feature; or of a vector ``v``, its ``measure``: the projection of the residual on
    ``v`` at length 1, or the cosine of both. It is read before the edits at the target's site, which may be an earlier
    one than that of the edit. ``scope``: on each token, or once on the prompt's mean or last token for the whole
    generation.
    """

    target: FeatureTarget | VectorTarget
    threshold: float = 0.0
    unit: Unit = "max_act"
    side: GateSide = "above"
    measure: GateMeasure = "projection"
    scope: GateScope = "token"

    @property
    def raw(self) -> float:
        """The raw threshold; 0 is the same in every unit.

        Raise MissingScaleError if a number that the unit refers to is not known.
        """
        if not self.threshold:
            return 0.0
        if isinstance(self.target, FeatureTarget):
            return coefficient(self.threshold, self.unit, self.target.scales)
        return coefficient(self.threshold, self.unit, replace(self.target.scales, direction_norm=1.0))


@dataclass(frozen=True, slots=True)
class EditSpec:
    """One edit. ``strength`` is in ``unit`` for add, clamp, at_least, at_most and projection_cap (its upper end, with
    ``lower`` as the lower one); a plain factor for scale and orthogonal; unused for ablate, norm_preserving and
    reconstruct.

    The edit applies to the tokens that ``phase``, ``scope`` and ``window`` (or any of ``ranges``, instead) select. It
    applies to special tokens only with ``special_tokens``, to attention sinks only with ``sink_tokens``, and only where
    ``gate`` is open and, with ``only_if_active``, the feature itself is above 0.
    """

    target: FeatureTarget | VectorTarget | SiteTarget
    operation: Operation = "add"
    strength: float = 1.0
    unit: Unit = "max_act"
    phase: Phase = "both"
    lower: float | None = None
    window: Window = ALL_TOKENS
    scope: Scope = EVERYTHING
    only_if_active: bool = False
    gate: GateSpec | None = None
    special_tokens: bool = False
    ranges: tuple[Window, ...] = ()
    sink_tokens: bool = False

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of the phase to which the edit applies; they do not overlap."""
        return self.ranges or (self.window,)

    @property
    def norm_limit(self) -> float | None:
        """The norm above which a token counts as an attention sink and is not edited.

        None if all tokens may be edited, or if norms at the site are not known.
        """
        typical = self.target.scales.typical_norm
        return None if self.sink_tokens or not typical else SINK_FACTOR * typical

    @property
    def raw(self) -> float:
        """The number that the operation uses: coefficient, target activation, bound or factor.

        Raise MissingScaleError if the unit refers to a number that is not known.
        """
        match self.operation:
            case "ablate" | "norm_preserving" | "reconstruct":
                return 0.0
            case "scale" | "orthogonal":
                return self.strength + 0.0
            case "projection_cap":
                return self._projection(self.strength)
            case _:
                return coefficient(self.strength, self.unit, self.target.scales)

    @property
    def raw_lower(self) -> float | None:
        """The raw lower end of a projection_cap, or None."""
        return None if self.lower is None else self._projection(self.lower)

    @property
    def saes(self) -> tuple[SAEIdentity, ...]:
        """The SAEs that the edit reads through, including the SAE of its gate."""
        targets = (self.target, self.gate.target if self.gate else None)
        saes = (getattr(target, "sae", None) for target in targets)
        return tuple(sae for sae in saes if sae is not None)

    @property
    def is_gated(self) -> bool:
        return self.only_if_active or self.gate is not None

    @property
    def push(self) -> float | None:
        """The largest expected step as a fraction of the mean norm of the residual; None if it cannot be computed.

        For clamp and bounds the activation is assumed to lie between 0 and its maximum.
        """
        change = self._largest_change()
        return None if change is None else push(change, self.target.scales)

    @property
    def is_no_op(self) -> bool:
        """Whether the edit never changes the residual."""
        return (self.operation == "add" and self.raw == 0) or (
            self.operation in ("scale", "orthogonal") and self.raw == 1
        )

    def _projection(self, value: float) -> float:
        """Return the raw number for a direction of length 1; resid_norm is a fraction of the mean residual norm."""
        return coefficient(value, self.unit, replace(self.target.scales, direction_norm=1.0))

    def _largest_change(self) -> float | None:
        raw, maximum = self.raw, self.target.scales.max_activation
        match self.operation:
            case "orthogonal" | "projection_cap" | "norm_preserving" | "reconstruct":
                return None
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
