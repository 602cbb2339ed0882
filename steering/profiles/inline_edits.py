"""Parses edits that name a feature by SAE and index: those of requests, and the short form of the management API."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.db import close_old_connections, connection
from django.db.models import Q

from inference.models import LanguageModel
from inference.steering_refs import PublishedVersion
from steering.errors import InlineSteeringError
from steering.models import SAE, Feature
from steering.profiles.auto_strength import with_auto_strengths
from steering.profiles.drafts import feature_target
from steering.profiles.snapshot import registered_saes, source_of
from steering.spec.edit import EditSpec, FeatureTarget
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import describe
from steering.spec.parsing import MAX_EDITS, parse_edits, with_request_defaults
from steering.spec.rendering import edit_to_json, edits_to_json, fingerprint
from steering.spec.units import MAX_PUSH

INLINE = "inline"
"""The name of inline edits, in place of a version's name@number."""
MAX_FEATURES = 64
_FIGURES = ("sae_id", "index", "max_activation", "decoder_norm", "label")


@dataclass(frozen=True, slots=True)
class FeaturePlace:
    """A feature of an SAE."""

    sae: SAE
    index: int


def read_inline(model: int, model_name: str, value: object) -> PublishedVersion:
    """Parse ``{"features": [...]}`` to a version. Raises InlineSteeringError, which names the field.

    Edits that are not cached cost one query, so call it in a thread.
    """
    features = _features(value)
    text = _canonical(features)
    with _own_connection():
        registered = registered_saes.get()
        saes = registered.of(model)
        if (known := registered.recent.find(model, text)) is not None:
            return known
        try:
            edits = _parse(features, model_name, saes)
        except InvalidSpecError as error:
            raise InlineSteeringError.from_spec(error) from error
    by_checksum = {sae.checksum: sae for sae in saes.values()}
    checksums = sorted({identity.checksum for edit in edits for identity in edit.saes})
    sources = tuple(source_of(by_checksum[checksum]) for checksum in checksums)
    version = PublishedVersion(INLINE, 0, fingerprint(edits), edits_to_json(edits), sources)
    registered.recent.keep(model, text, version)
    return version


async def find_inline(model: int, value: object) -> PublishedVersion | None:
    """Return the cached result of :func:`read_inline` for the same edits, or None. Makes no query."""
    text = _canonical(_features(value))
    return (await registered_saes.aget()).recent.find(model, text)


def _canonical(features: list[Any]) -> str:
    """Return a text that is equal for edits that differ only in the order of their fields."""
    try:
        return json.dumps(features, sort_keys=True, separators=(",", ":"))
    except RecursionError as error:
        message = "The values in `steering.features` are nested too deeply."
        raise InlineSteeringError(message, "steering.features") from error


@contextmanager
def _own_connection() -> Iterator[None]:
    """Close this thread's database connection afterwards, unless a transaction is open."""
    close_old_connections()
    try:
        yield
    finally:
        if not connection.in_atomic_block:
            connection.close()


def _features(value: object) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get("features"), list):
        raise InlineSteeringError("`steering` must be an object with a list `features`.", "steering.features")
    if others := sorted(str(name) for name in value.keys() - {"features"}):
        raise InlineSteeringError(f"`steering` has no field `{others[0][:100]}`.", "steering", "unknown_parameter")
    features: list[Any] = value["features"]
    if not 1 <= len(features) <= MAX_FEATURES:
        message = f"`steering.features` must contain 1 to {MAX_FEATURES} edits, got {len(features)}."
        raise InlineSteeringError(message, "steering.features")
    return features


def _parse(items: list[Any], model_name: str, saes: Mapping[str, SAE]) -> tuple[EditSpec, ...]:
    places = [_place(item, f"edits[{number}]", model_name, saes) for number, item in enumerate(items)]
    targets = feature_targets([place for place in places if place is not None])
    full = with_auto_strengths([_edit(item, place, targets) for item, place in zip(items, places, strict=True)])
    edits = parse_edits([with_request_defaults(edit) for edit in full])
    problems = [
        Problem(
            f"edits[{number}].strength",
            f"The edit would change the residual by {edit.push:.3g} times its norm; the limit is {MAX_PUSH:g}.",
        )
        for number, edit in enumerate(edits)
        if edit.push is not None and edit.push > MAX_PUSH
    ]
    if problems:
        raise InvalidSpecError(problems)
    return edits


def _place(item: Any, path: str, model_name: str, saes: Mapping[str, SAE]) -> FeaturePlace | None:
    """Return the place, or None if the item is not an object, which the parser reports."""
    if not isinstance(item, dict):
        return None
    if not item.keys().isdisjoint({"feature", "vector", "site", "gate"}):
        message = (
            "Edits in a request name their feature by `sae` and `index`. To use vectors, sites or gates, publish a "
            "profile."
        )
        raise InvalidSpecError([Problem(path, message)])
    sae = named_sae(item.get("sae"), f"{path}.sae", model_name, saes)
    return feature_place(sae, item.get("index"), f"{path}.index")


def _edit(item: Any, place: FeaturePlace | None, targets: Mapping[FeaturePlace, FeatureTarget]) -> Any:
    """Return the edit as a version's JSON, with its feature filled in; the parser reports other problems."""
    if place is None:
        return item
    rest = {name: value for name, value in item.items() if name not in {"sae", "index"}}
    return {**rest, "feature": feature_json(targets[place])}


def feature_json(target: FeatureTarget) -> Any:
    """Return the target in the form of a version's JSON."""
    return edit_to_json(EditSpec(target, "add", 0.0, "raw"))["feature"]


def named_sae(name: object, path: str, model_name: str, saes: Mapping[str, SAE]) -> SAE:
    """Return the named SAE, or the model's only one."""
    if name is None and len(saes) == 1:
        return next(iter(saes.values()))
    if isinstance(name, str) and name in saes:
        return saes[name]
    known = ", ".join(sorted(saes)[:10]) or "none"
    if isinstance(name, str):
        message = f"The model `{model_name}` has no SAE `{name[:100]}`. Available: {known}."
    else:
        message = f"The model `{model_name}` has more than one SAE, or none; set `sae`. Available: {known}."
    raise InvalidSpecError([Problem(path, message, "sae_not_found")])


def feature_place(sae: SAE, index: object, path: str) -> FeaturePlace:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < sae.d_sae:
        message = f"`{sae.name}` has features 0 to {sae.d_sae - 1}, got {describe(index)}."
        raise InvalidSpecError([Problem(path, message, "invalid_feature")])
    return FeaturePlace(sae, index)


def feature_targets(places: Sequence[FeaturePlace]) -> dict[FeaturePlace, FeatureTarget]:
    """Return the targets of features, with the figures that strengths refer to, by one query."""
    indices: dict[SAE, set[int]] = defaultdict(set)
    for place in places:
        indices[place.sae].add(place.index)
    if not indices:
        return {}
    query = reduce(or_, (Q(sae=sae, index__in=found) for sae, found in indices.items()))
    by_pk = {sae.pk: sae for sae in indices}
    targets = {}
    for row in Feature.objects.filter(query).only(*_FIGURES):
        row.sae = by_pk[row.sae_id]
        targets[FeaturePlace(row.sae, row.index)] = feature_target(row)
    if missing := set(places) - targets.keys():
        names = ", ".join(sorted({place.sae.name for place in missing}))
        raise InvalidSpecError([Problem("edits", f"The SAE `{names}` is being removed or replaced.", "sae_not_found")])
    return targets


def read_short_edits(model: LanguageModel, items: Sequence[Any]) -> tuple[EditSpec, ...]:
    """Parse edits with ``sae`` and ``index``, or in a version's form. Raises InvalidSpecError, by field.

    The model's only SAE need not be named. A gate is written in the same way: ``{"index": 3, "above": 0.2}``.
    """
    if len(items) > MAX_EDITS:
        raise InvalidSpecError([Problem("edits", f"Expected at most {MAX_EDITS} edits, got {len(items)}.")])
    saes = {sae.name: sae for sae in SAE.objects.filter(model=model)}
    full = [_with_places(item, f"edits[{number}]", model.name, saes) for number, item in enumerate(items)]
    targets = feature_targets([place for edit in full for place in _places_in(edit)])
    filled = with_auto_strengths([_filled(edit, targets) for edit in full])
    return parse_edits([with_request_defaults(edit) for edit in filled])


def _with_places(item: Any, path: str, model_name: str, saes: dict[str, SAE]) -> Any:
    """Return the edit with places in its feature fields; the parser reports other problems."""
    if not isinstance(item, dict):
        return item
    full = _with_place(item, path, model_name, saes)
    gate = full.get("gate")
    if isinstance(gate, dict):
        full["gate"] = _with_place(gate, f"{path}.gate", model_name, saes)
    return full


def _with_place(item: dict[str, Any], path: str, model_name: str, saes: dict[str, SAE]) -> dict[str, Any]:
    if "index" not in item:
        return dict(item)
    rest = {name: value for name, value in item.items() if name not in {"sae", "index"}}
    sae = named_sae(item.get("sae"), f"{path}.sae", model_name, saes)
    return {**rest, "feature": feature_place(sae, item["index"], f"{path}.index")}


def _places_in(edit: Any) -> list[FeaturePlace]:
    objects = [edit, edit.get("gate")] if isinstance(edit, dict) else []
    found = [one.get("feature") for one in objects if isinstance(one, dict)]
    return [place for place in found if isinstance(place, FeaturePlace)]


def _filled(edit: Any, targets: Mapping[FeaturePlace, FeatureTarget]) -> Any:
    if not isinstance(edit, dict):
        return edit
    filled = {name: _filled(value, targets) if name == "gate" else value for name, value in edit.items()}
    if isinstance(place := edit.get("feature"), FeaturePlace):
        filled["feature"] = feature_json(targets[place])
    return filled
