"""Edits as the studio holds them: the short form of the management API, small enough for an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Q

from core.errors import MillmError
from inference.interventions import Site
from inference.models import LanguageModel
from steering.errors import InvalidProfileError
from steering.features.admin import feature_url
from steering.models import Feature, PlainVector, SteeringProfile
from steering.profiles.draft_form import UnsavedDraft, unsaved_draft
from steering.profiles.drafts import edits_of, rows_of
from steering.profiles.edit_preview import calibrated_strengths, preview_edit
from steering.profiles.inline_edits import read_short_edits
from steering.spec.checks import check_conflicts
from steering.spec.edit import EditSpec, FeatureTarget, SiteTarget, VectorTarget
from steering.spec.errors import InvalidSpecError
from steering.spec.parsing import MAX_EDITS
from steering.spec.rendering import edit_to_json
from steering.spec.wording import describe_target
from steering.vectors.dashboard import vector_url


def read_edits(model: LanguageModel, items: Sequence[Any], user: User) -> tuple[EditSpec, ...]:
    """Parse edits in the short form. Raise InvalidProfileError, which names each problem."""
    try:
        return read_short_edits(model, items, viewer=user)
    except InvalidSpecError as error:
        raise InvalidProfileError.from_spec(error) from error


def read_unsaved(
    model: LanguageModel, profile: SteeringProfile | None, items: Sequence[Any], user: User
) -> UnsavedDraft:
    """Return what saving the edits would make. Raise InvalidProfileError or SAEUnavailableError."""
    owner = profile or SteeringProfile(name="studio", model=model)
    try:
        return unsaved_draft(owner, rows_of(owner, read_edits(model, items, user)))
    except InvalidSpecError as error:
        raise InvalidProfileError.from_spec(error) from error


def current_edits(profile: SteeringProfile, edits: Sequence[EditSpec]) -> tuple[EditSpec, ...]:
    """Return edits of a version as restoring it would make them: with the figures of today, and the same effect."""
    return edits_of(profile.model_id, rows_of(profile, edits))


def short_form(model: LanguageModel, edits: Sequence[EditSpec]) -> list[dict[str, Any]]:
    """Write edits in the short form: features by SAE and index, registered vectors by their set."""
    names = {edit.target.name for edit in edits if isinstance(edit.target, VectorTarget)}
    rows = PlainVector.objects.filter(vector_set__model=model, vector_set__name__in=names)
    registered = {(row.vector_set.name, row.place): row.values for row in rows.select_related("vector_set")}
    return [_short(edit, registered) for edit in edits]


def _short(edit: EditSpec, registered: Mapping[Any, Sequence[float]]) -> dict[str, Any]:
    full = edit_to_json(edit)
    left_out = {"feature", "vector", "site", "gate", "sink_tokens"}
    rest = {name: value for name, value in full.items() if name not in left_out}
    if edit.sink_tokens:
        rest["sink_tokens"] = True  # the short form leaves them out by default
    if "gate" in full:
        rest["gate"] = _short_place(full["gate"])
    match edit.target:
        case VectorTarget() as target if registered.get((target.name, target.site)) == target.values:
            return {"set": target.name, "layer": target.site.layer, "site": target.site.kind, **rest}
        case SiteTarget() as target if edit.operation == "reconstruct" and target.sae is not None:
            return {"sae": target.sae.name, **rest}
        case SiteTarget():
            return {"site": full["site"], **rest}
    return {**_short_place({name: full[name] for name in ("feature", "vector") if name in full}), **rest}


def _short_place(value: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a feature by its SAE's name and its index. Vectors stay whole."""
    if "feature" not in value:
        return dict(value)
    rest = {name: field for name, field in value.items() if name != "feature"}
    return {"sae": value["feature"]["sae"]["name"], "index": value["feature"]["index"], **rest}


def describe_edits(
    model: LanguageModel, profile: SteeringProfile | None, items: Sequence[Any], user: User
) -> dict[str, Any]:
    """Describe each edit, or its problem, and the problems of all together. Raise InvalidProfileError for too many."""
    calibrated = {} if profile is None else calibrated_strengths(profile)
    found = _edits_or_problems(model, items, user)
    edits = [one for one in found if isinstance(one, EditSpec)]
    registered = {**_features(edits), **_vectors(edits)}
    rows = [
        _described(one, registered.get(_key(one)), calibrated) if isinstance(one, EditSpec) else {"problem": one}
        for one in found
    ]
    return {"edits": rows, "problem": _conflict(edits)}


def _edits_or_problems(model: LanguageModel, items: Sequence[Any], user: User) -> Sequence[EditSpec | str]:
    """Return each edit, or what is wrong with it. All are read at once if nothing is wrong."""
    try:
        return read_edits(model, items, user)
    except MillmError:
        if len(items) > MAX_EDITS:
            raise
    return [_edit_or_problem(model, item, user) for item in items]


def _edit_or_problem(model: LanguageModel, item: object, user: User) -> EditSpec | str:
    try:
        (edit,) = read_short_edits(model, [item], viewer=user)
    except InvalidSpecError as error:
        return error.problems[0].message
    except MillmError as error:
        return error.message
    return edit


def _conflict(edits: Sequence[EditSpec]) -> str:
    try:
        check_conflicts(edits)
    except InvalidSpecError as error:
        return error.problems[0].message
    return ""


def _described(
    edit: EditSpec, source: Feature | PlainVector | None, calibrated: Mapping[object, Any]
) -> dict[str, Any]:
    preview = preview_edit(edit, source, calibrated).to_json()
    return {**preview, "name": describe_target(edit), "url": _url(source), "strength": edit.strength}


def _url(source: Feature | PlainVector | None) -> str:
    match source:
        case Feature():
            return feature_url(source)
        case PlainVector():
            return vector_url(source)
    return ""


_Key = tuple[str, int] | tuple[str, Site, tuple[float, ...]]  # SAE and index, or vector set, site and numbers


def _key(edit: EditSpec) -> _Key | None:
    match edit.target:
        case FeatureTarget() as target:
            return target.sae.name, target.index
        case VectorTarget() as target if target.name:
            return target.name, target.site, target.values
    return None


def _features(edits: Sequence[EditSpec]) -> dict[_Key | None, Feature | PlainVector]:
    """Return the rows of the edits' features, with their effects, by one query."""
    targets = {edit.target for edit in edits if isinstance(edit.target, FeatureTarget)}
    if not targets:
        return {}
    places = reduce(or_, (Q(sae__name=target.sae.name, index=target.index) for target in targets))
    rows = Feature.objects.filter(places).select_related("sae", "effect__sae")
    return {(row.sae.name, row.index): row for row in rows}


def _vectors(edits: Sequence[EditSpec]) -> dict[_Key | None, Feature | PlainVector]:
    """Return the rows of the edits' registered vectors, with their effects, by one query."""
    targets = [edit.target for edit in edits if isinstance(edit.target, VectorTarget) and edit.target.name]
    if not targets:
        return {}
    places = {(target.name, target.site) for target in targets}
    wanted = (Q(vector_set__name=name, layer=site.layer, site=site.kind) for name, site in places)
    rows = PlainVector.objects.filter(reduce(or_, wanted)).select_related("vector_set", "effect")
    return {(row.vector_set.name, row.place, row.values): row for row in rows}
