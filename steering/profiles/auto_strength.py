"""The strength "auto" of edits: the calibrated strength of a feature or vector, resolved when the edit is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from steering.models import FeatureEffect, VectorEffect
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.units import Unit

AUTO = "auto"


class _FeaturePlace(NamedTuple):
    checksum: str
    layer: int
    site: str
    number: int
    sae: str | None

    @property
    def title(self) -> str:
        return f"{self.sae} #{self.number}"

    @property
    def page(self) -> str:
        return "SAE"


class _VectorPlace(NamedTuple):
    name: str
    layer: int
    site: str
    values: tuple[Any, ...]

    @property
    def title(self) -> str:
        return f"{self.name} at layer {self.layer}"

    @property
    def page(self) -> str:
        return "vector"


_Place = _FeaturePlace | _VectorPlace


@dataclass(frozen=True, slots=True)
class AutoStrength:
    """The number that "auto" stood for in the edit at position ``edit``, from 0."""

    edit: int
    strength: float
    unit: str


def with_auto_strengths(edits: Sequence[Any], path: str = "edits") -> list[Any]:
    """Return edits in a version's form with numbers for each strength "auto", by a query each for features and vectors.

    The unit stays as given; by default it is ``max_act`` (for a vector ``resid_norm``), or ``raw`` where that is
    unknown. Raise InvalidSpecError for features and vectors whose effect was not measured, and for edits that have no
    calibrated strength.
    """
    places = {number: _place(edit, f"{path}[{number}]") for number, edit in enumerate(edits) if _is_auto(edit)}
    if not places:
        return list(edits)
    known = _measured(set(places.values()))
    problems: list[Problem] = []
    resolved = list(edits)
    for number, place in places.items():
        if problem := _problem(known.get(place), place):
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
    """Return what an edit adds. Raise InvalidSpecError if nothing else can have a calibrated strength."""
    if (operation := edit.get("operation", "add")) != "add":
        message = f"`auto` is the calibrated strength of `add`; send a number for `{str(operation)[:40]}`."
        raise InvalidSpecError([Problem(f"{path}.strength", message)])
    place = _feature_place(edit.get("feature")) or _vector_place(edit.get("vector"))
    if place is None:
        message = "`auto` is the calibrated strength of a feature or of a registered vector; send a number."
        raise InvalidSpecError([Problem(f"{path}.strength", message)])
    return place


def _feature_place(feature: object) -> _FeaturePlace | None:
    sae = feature.get("sae") if isinstance(feature, dict) else None
    index = feature.get("index") if isinstance(feature, dict) else None
    if not isinstance(sae, dict) or isinstance(index, bool) or not isinstance(index, int):
        return None
    return _FeaturePlace(str(sae.get("checksum")), sae.get("layer", -1), str(sae.get("site")), index, sae.get("name"))


def _vector_place(vector: object) -> _VectorPlace | None:
    """Return the place of a vector that came from its set, with its numbers."""
    if not isinstance(vector, dict):
        return None
    name, layer, site, values = (vector.get(field) for field in ("name", "layer", "site", "values"))
    if not isinstance(name, str) or not name or not isinstance(layer, int) or not isinstance(values, list):
        return None
    if not all(type(value) in (int, float) for value in values):
        return None
    return _VectorPlace(name, layer, site if isinstance(site, str) else "resid_post", tuple(values))


def _measured(places: set[_Place]) -> dict[_Place, FeatureEffect | VectorEffect]:
    features = [place for place in places if isinstance(place, _FeaturePlace)]
    vectors = [place for place in places if isinstance(place, _VectorPlace)]
    return {**_measured_features(features), **_measured_vectors(vectors)}


def _measured_features(places: Sequence[_FeaturePlace]) -> dict[_Place, FeatureEffect | VectorEffect]:
    if not places:
        return {}
    rows = FeatureEffect.objects.filter(
        sae__checksum__in={place.checksum for place in places}, feature__index__in={place.number for place in places}
    ).select_related("feature", "sae")
    found = {(row.sae.checksum, row.sae.layer, row.sae.site, row.feature.index): row for row in rows}
    known = ((place, found.get((place.checksum, place.layer, place.site, place.number))) for place in places)
    return {place: row for place, row in known if row is not None}


def _measured_vectors(places: Sequence[_VectorPlace]) -> dict[_Place, FeatureEffect | VectorEffect]:
    if not places:
        return {}
    names = {place.name for place in places if "\0" not in place.name}
    layers = {place.layer for place in places if 0 <= place.layer < 2**31}
    rows = VectorEffect.objects.filter(vector__vector_set__name__in=names, vector__layer__in=layers)
    rows = rows.select_related("vector__vector_set")
    found = {
        _VectorPlace(row.vector.vector_set.name, row.vector.layer, row.vector.site, row.vector.values): row
        for row in rows
    }
    return {place: found[place] for place in places if place in found}


def _problem(effect: FeatureEffect | VectorEffect | None, place: _Place) -> str:
    if effect is None:
        return (
            f'The effect of {place.title} was not measured. Start "Measure effects" on the page of the '
            f"{place.page}, or send a number."
        )
    if not effect.strength:
        return f"{place.title} has no calibrated strength: steering with it was unstable. Send a number."
    return ""


def _in_unit(edit: Mapping[str, Any], effect: FeatureEffect | VectorEffect) -> dict[str, Any]:
    """Return strength and unit of the effect in the edit's unit. The parser reports unknown units."""
    unit = edit.get("unit") or _default_unit(effect)
    strength = effect.in_unit(unit) if isinstance(unit, str) else None
    return {"strength": float(f"{effect.strength if strength is None else strength:.6g}"), "unit": unit}


def _default_unit(effect: FeatureEffect | VectorEffect) -> Unit:
    if isinstance(effect, VectorEffect):
        return "resid_norm" if effect.push else "raw"
    return "max_act" if effect.feature.max_activation else "raw"
