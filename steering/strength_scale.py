"""What a slider for an edit's strength needs to know: how far it goes, and what each place of it comes to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from steering.spec.edit import EditSpec
from steering.spec.errors import MissingScaleError
from steering.spec.units import push

STEPS = 200
_FAR = {"max_act": 2.0, "resid_norm": 1.0, "raw": 10.0}
"""How far a slider goes where no push says it."""


@dataclass(frozen=True, slots=True)
class StrengthScale:
    """``raw_per_one``: raw number of the strength 1, to which all others are in proportion.

    ``points``: strengths in rising order with their push, between which it changes evenly; none where it is unknown.
    """

    low: float
    high: float
    step: float
    raw_per_one: float
    points: tuple[tuple[float, float], ...]


def strength_scale(edit: EditSpec) -> StrengthScale | None:
    """None where the operation has no strength, or its unit refers to what is not known."""
    if edit.operation in {"ablate", "norm_preserving"}:
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
    """As far as the step is as large as the residual; always with the strength as it is."""
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
    """Of factors: what makes a feature at its maximum as large as the residual, at least 2."""
    scales = edit.target.scales
    whole = push(scales.max_activation, scales) if scales.max_activation is not None else None
    wanted = 1 + 1 / whole if whole and edit.operation == "scale" else 2.0
    return _round_up(max(wanted, 2.0, edit.strength))


def _bends(edit: EditSpec, raw_per_one: float) -> Iterator[float]:
    """Where the largest change of :class:`EditSpec` may turn: its formulas are made of straight lines."""
    yield from (0.0, 1.0)
    maximum = edit.target.scales.max_activation
    if maximum is not None and raw_per_one:
        yield from (maximum / raw_per_one, maximum / raw_per_one / 2)


def _round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten; 0 for what is not above 0."""
    if value <= 0:
        return 0.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in (1.0, 2.0, 5.0) if value <= step * power * (1 + 1e-9)), 10 * power)
