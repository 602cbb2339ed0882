"""The strength "auto" of edits: the calibrated strength of the feature, resolved to a number when the edit is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steering.models import FeatureEffect
from steering.spec.errors import InvalidSpecError, Problem

AUTO = "auto"
_Place = tuple[str, int, str, int]  # checksum, layer, site and feature


@dataclass(frozen=True, slots=True)
class AutoStrength:
    """The number that "auto" stood for in the edit at position ``edit``, from 0."""

    edit: int
    strength: float
    unit: str


def with_auto_strengths(edits: Sequence[Any], path: str = "edits") -> list[Any]:
    """Return edits in a version's form with numbers for each strength "auto", by at most one query.

    The unit stays as given; by default it is ``max_act``, or ``raw`` without a maximal activation. Raise
    InvalidSpecError for features whose effect was not measured, and for edits that have no calibrated strength.
    """
    places = {number: _place(edit, f"{path}[{number}]") for number, edit in enumerate(edits) if _is_auto(edit)}
    if not places:
        return list(edits)
    known = _measured(set(places.values()))
    problems: list[Problem] = []
    resolved = list(edits)
    for number, place in places.items():
        name = f"{edits[number]['feature']['sae'].get('name')} #{place[3]}"
        if problem := _problem(known.get(place), name):
            problems.append(Problem(f"{path}[{number}].strength", problem, "effect_not_measured"))
        else:
            resolved[number] = edits[number] | _in_unit(edits[number], known[place])
    if problems:
        raise InvalidSpecError(problems)
    return resolved


def auto_strengths(items: object, edits: object) -> tuple[AutoStrength, ...]:
    """Return what "auto" stood for in the edits of a request, given the edits that were read from it."""
    if not isinstance(items, list) or not isinstance(edits, list):
        return ()
    return tuple(
        AutoStrength(number, edit["strength"], edit["unit"])
        for number, (item, edit) in enumerate(zip(items, edits, strict=False))
        if _is_auto(item)
    )


def _is_auto(edit: Any) -> bool:
    return isinstance(edit, dict) and edit.get("strength") == AUTO


def _place(edit: Mapping[str, Any], path: str) -> _Place:
    """Return the feature of an edit. Raise InvalidSpecError if it has none, or another operation than ``add``."""
    if (operation := edit.get("operation", "add")) != "add":
        message = f"`auto` is the calibrated strength of `add`; send a number for `{str(operation)[:40]}`."
        raise InvalidSpecError([Problem(f"{path}.strength", message)])
    feature = edit.get("feature")
    sae = feature.get("sae") if isinstance(feature, dict) else None
    index = feature.get("index") if isinstance(feature, dict) else None
    if not isinstance(sae, dict) or isinstance(index, bool) or not isinstance(index, int):
        message = "`auto` is the calibrated strength of a feature; send a number for anything else."
        raise InvalidSpecError([Problem(f"{path}.strength", message)])
    return str(sae.get("checksum")), sae.get("layer", -1), str(sae.get("site")), index


def _measured(places: set[_Place]) -> dict[_Place, FeatureEffect]:
    rows = FeatureEffect.objects.filter(
        sae__checksum__in={place[0] for place in places}, feature__index__in={place[3] for place in places}
    ).select_related("feature", "sae")
    found = {(row.sae.checksum, row.sae.layer, row.sae.site, row.feature.index): row for row in rows}
    return {place: found[place] for place in places if place in found}


def _problem(effect: FeatureEffect | None, name: str) -> str:
    if effect is None:
        return f'The effect of {name} was not measured. Start "Measure effects" on the SAE\'s page, or send a number.'
    if not effect.strength:
        return f"{name} has no calibrated strength: steering with it was unstable. Send a number."
    return ""


def _in_unit(edit: Mapping[str, Any], effect: FeatureEffect) -> dict[str, Any]:
    """Return strength and unit of the effect in the edit's unit. The parser reports unknown units."""
    unit = edit.get("unit") or ("max_act" if effect.feature.max_activation else "raw")
    strength = effect.in_unit(unit) if isinstance(unit, str) else None
    return {"strength": float(f"{effect.strength if strength is None else strength:.6g}"), "unit": unit}
