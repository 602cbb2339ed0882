"""Previews of the edits of an unsaved draft: description, raw strength, relative size, and the slider's scale."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from steering.models import Evaluation, Feature, FeatureEdit, PlainVector, SteeringProfile
from steering.models.effects import BREAKING_FLUENCY, CalibratedEffect
from steering.profiles.display import coefficient_text
from steering.profiles.draft_form import DraftCard
from steering.profiles.drafts import edit_of
from steering.sae_registry.health import summary
from steering.spec.edit import SITE_OPERATIONS, EditSpec, FeatureTarget
from steering.spec.errors import InvalidSpecError, MissingScaleError
from steering.spec.factor import with_factor
from steering.spec.parsing import parse_edits
from steering.spec.units import DEFAULT_STRENGTH, FELT_PUSH, STRONG_PUSH, push
from steering.spec.wording import describe_edit

STEPS = 200
_FAR = {"max_act": 2.0, "p99": 2.0, "p999": 2.0, "resid_norm": 1.0, "raw": 10.0}
"""The end of a slider whose relative size is unknown."""


def edit_choices() -> dict[str, Any]:
    """Return what pages with rows of edits offer: values with their labels, and the levels of relative sizes."""
    return {
        "operations": [choice for choice in FeatureEdit.Operation.choices if choice[0] not in SITE_OPERATIONS],
        "units": FeatureEdit.Unit.choices,
        "phases": FeatureEdit.Phase.choices,
        "levels": {"felt": FELT_PUSH, "strong": STRONG_PUSH},
        "strength": DEFAULT_STRENGTH,
    }


@dataclass(frozen=True, slots=True)
class StrengthScale:
    """The scale of a strength slider.

    ``raw_per_one`` is the raw value of strength 1. ``points`` are strengths in ascending order with their relative
    sizes, linear in between; empty if the size is unknown. ``levels`` are the relative sizes from which the edit is
    strong and likely breaks text, if the feature's effect was measured.
    """

    low: float
    high: float
    step: float
    raw_per_one: float
    points: tuple[tuple[float, float], ...]
    levels: tuple[float, float] | None = None


def strength_scale(edit: EditSpec) -> StrengthScale | None:
    """Return the scale, or None if the operation has no strength or its unit refers to an unknown figure."""
    if edit.operation in {"ablate", "norm_preserving", "reconstruct"}:
        return None
    try:
        raw_per_one = replace(edit, strength=1.0).raw
    except MissingScaleError:
        return None
    low, high = _ends(edit, raw_per_one)
    marks = {low, high, *(mark for mark in _bends(edit, raw_per_one) if low < mark < high)}
    pushes = [(mark, replace(edit, strength=mark).push) for mark in sorted(marks)]
    points = tuple((mark, found) for mark, found in pushes if found is not None)
    return StrengthScale(low, high, (high - low) / STEPS, raw_per_one, points if len(points) == len(pushes) else ())


def _ends(edit: EditSpec, raw_per_one: float) -> tuple[float, float]:
    """Return a range that ends where the step is as large as the residual, and includes the current strength."""
    if edit.operation in {"scale", "orthogonal"}:
        return min(-1.0 if edit.operation == "orthogonal" else 0.0, -_round_up(-edit.strength)), _factor_end(edit)
    scales = edit.target.scales
    if edit.operation == "projection_cap":  # of a direction of length 1
        scales = replace(scales, direction_norm=1.0)
    whole = push(raw_per_one, scales)
    far = _round_up(max(1 / whole if whole else _FAR[edit.unit], abs(edit.strength)))
    is_signed = edit.operation in {"add", "projection_cap"} or edit.strength < 0
    return -far if is_signed else 0.0, far


def _factor_end(edit: EditSpec) -> float:
    """Return the end for factors: where a feature at its maximum is as large as the residual, at least 2."""
    scales = edit.target.scales
    whole = push(scales.max_activation, scales) if scales.max_activation is not None else None
    end = 1 + 1 / whole if whole and edit.operation == "scale" else 2.0
    return _round_up(max(end, 2.0, edit.strength))


def _bends(edit: EditSpec, raw_per_one: float) -> Iterator[float]:
    """Yield the strengths at which the slope of the relative size may change; it is piecewise linear."""
    yield from (0.0, 1.0)
    maximum = edit.target.scales.max_activation
    if maximum is not None and raw_per_one:
        yield from (maximum / raw_per_one, maximum / raw_per_one / 2)


def _round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten; return 0 for values up to 0."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1.0, 2.0, 5.0) if value <= step * power * (1 + 1e-9)), 10 * power)


@dataclass(frozen=True, slots=True)
class CalibratedStrength:
    strength: float
    words: str


@dataclass(frozen=True, slots=True)
class EditPreview:
    """The preview of one edit: of the card named by ``prefix``, if any. With a ``problem``, other fields are empty.

    ``curve`` has the strengths (raw) and divergences that were measured for an added feature or vector.
    """

    prefix: str
    words: str = ""
    coefficient: str = ""
    figure: str = ""
    push: float | None = None
    scale: StrengthScale | None = None
    calibrated: CalibratedStrength | None = None
    curve: Sequence[Sequence[float]] = ()
    warning: str = ""
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def edit_previews(profile: SteeringProfile, cards: Sequence[DraftCard]) -> list[EditPreview]:
    calibrated = calibrated_strengths(profile)
    return [_card_preview(card, calibrated) for card in cards]


def _card_preview(card: DraftCard, calibrated: Mapping[object, CalibratedStrength]) -> EditPreview:
    prefix = card.form.prefix
    if (problem := next(card.problems(), None)) is not None:
        return EditPreview(prefix, problem=f"{problem.place.removeprefix(f'{card.name}, ')}: {problem.message}")
    try:
        edit = edit_of(card.row)
    except InvalidSpecError as error:
        return EditPreview(prefix, problem=error.problems[0].message)
    return preview_edit(edit, card.row.feature or card.row.plain_vector, calibrated, prefix=prefix)


def preview_edit(
    edit: EditSpec,
    source: Feature | PlainVector | None,
    calibrated: Mapping[object, CalibratedStrength],
    *,
    prefix: str = "",
) -> EditPreview:
    """Return the preview of an edit of ``source``, or of one that is not registered."""
    try:
        words, coefficient, push = describe_edit(edit), coefficient_text(edit), edit.push
    except MissingScaleError as error:
        return EditPreview(prefix, problem=str(error))
    feature = source if isinstance(source, Feature) else None
    effect: CalibratedEffect | None = getattr(source, "effect", None) if edit.operation == "add" else None
    scale = strength_scale(edit)
    if scale is not None and effect is not None:
        scale = replace(scale, levels=effect.levels)
    found = calibrated.get(_key(edit)) or _measured(effect, edit)
    figure = "" if scale is None or feature is None or edit.operation == "scale" else feature.unit_words(edit.unit)
    curve = [] if effect is None else effect.curve
    return EditPreview(prefix, words, coefficient, figure, push, scale, found, curve, _warning(feature))


def _measured(effect: CalibratedEffect | None, edit: EditSpec) -> CalibratedStrength | None:
    """Return the calibrated strength of the edit's feature or vector, in the unit of the edit."""
    strength = effect.in_unit(edit.unit) if effect is not None and effect.strength else None
    if effect is None or strength is None:
        return None
    words = f"Calibrated strength {strength:.3g}: moves the output by {effect.kl:.2g} nats per token"
    if effect.fluency is not None:
        words += f", perplexity × {effect.fluency:.2g}"
    words += f"{', at the cap' if effect.is_capped else ''}."
    if effect.fluency is not None and effect.fluency > BREAKING_FLUENCY:
        words += " Texts read worse there; try less."
    return CalibratedStrength(float(f"{strength:.4g}"), words)


def _warning(feature: Feature | None) -> str:
    if feature is None or not summary(feature.sae).is_warning:
        return ""
    return f"The SAE {feature.sae} looks wrong (see its page), so its relative sizes may be wrong."


def calibrated_strengths(profile: SteeringProfile) -> dict[object, CalibratedStrength]:
    """Return the strengths that the profile's newest calibration proposes, by edit."""
    rows = Evaluation.objects.filter(version__profile=profile, kind=Evaluation.Kind.CALIBRATION)
    evaluation = rows.select_related("version__profile").first()
    if evaluation is None or evaluation.version is None:
        return {}
    proposal = evaluation.result["proposal"]
    reached = f"{proposal['kl']:.2g} nats per token" if proposal["kl"] is not None else "the closest to its target"
    edits = [with_factor(edit, proposal["factor"]) for edit in parse_edits(evaluation.version.edits)]
    return {
        _key(edit): CalibratedStrength(
            edit.strength, f"The calibration of {evaluation.version} found {edit.strength:.3g}: {reached}."
        )
        for edit in edits
    }


def calibrated_strength(profile: SteeringProfile, edit: EditSpec) -> CalibratedStrength | None:
    """Return the strength of one edit that the profile's newest calibration proposes."""
    return calibrated_strengths(profile).get(_key(edit))


def _key(edit: EditSpec) -> object:
    target = edit.target
    what = (target.sae.checksum, target.index) if isinstance(target, FeatureTarget) else target
    return (what, edit.operation, edit.unit, edit.phase)
