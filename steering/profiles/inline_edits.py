"""Parses edits of requests, by SAE and index or as vectors, and the short form of the management API."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from django.contrib.auth.models import AnonymousUser, User
from django.db.models import Q

from core.database import own_connection
from inference.interventions import Site
from inference.models import LanguageModel
from inference.steering_refs import PublishedVersion
from steering.errors import InlineSteeringError
from steering.model_shape import ModelShape, read_model_shape
from steering.models import SAE, Feature, PlainVector, VectorSet
from steering.profiles.auto_strength import AUTO, with_auto_strengths
from steering.profiles.drafts import feature_target, norms_of, registered_to_json, sae_identity, vector_to_json
from steering.profiles.snapshot import registered_saes, source_of
from steering.spec.edit import EditSpec, FeatureTarget, SiteTarget, VectorTarget
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import describe
from steering.spec.parsing import MAX_EDITS, parse_edits, with_request_defaults
from steering.spec.rendering import edit_to_json, edits_to_json, feature_to_json, fingerprint
from steering.spec.units import MAX_PUSH
from steering.visibility import visible_vector_sets

INLINE = "inline"
"""The name of inline edits, in place of a version's name@number."""
MAX_INLINE = 64  # features and vectors of a request
_LISTS = {"features", "vectors"}
_PLACE = ("name", "layer", "site", "values", "reference_norm", "typical_norm")  # of a vector
_FIGURES = ("sae_id", "index", "max_activation", "max_activation_source", "histogram", "decoder_norm", "label")


@dataclass(frozen=True, slots=True)
class FeaturePlace:
    """A feature of an SAE."""

    sae: SAE
    index: int


@dataclass(frozen=True, slots=True)
class InlineEdits:
    """The two lists of a request's ``steering``."""

    features: list[Any]
    vectors: list[Any]

    @property
    def names_sets(self) -> bool:
        return any(isinstance(item, dict) and "set" in item for item in self.vectors)

    @property
    def key(self) -> str:
        """Equal for edits that differ only in the order of their fields."""
        try:
            text = json.dumps([self.features, self.vectors], sort_keys=True, separators=(",", ":"))
        except RecursionError as error:
            name = "features" if self.features else "vectors"
            message = f"The values in `steering.{name}` are nested too deeply."
            raise InlineSteeringError(message, f"steering.{name}") from error
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read_inline(model: int, model_name: str, value: object, viewer: int | None = None) -> PublishedVersion:
    """Parse ``{"features": [...], "vectors": [...]}`` to a version. Raises InlineSteeringError, which names the field.

    ``viewer`` is the user whose vector sets may be named; None may name all. Edits that are not cached, and names of
    sets, cost queries, so call it in a thread.
    """
    given = _given(value)
    with own_connection():
        registered = registered_saes.get()
        saes = registered.of(model)
        try:
            edits = _with_sets(given, model, model_name, saes, viewer)
            if (known := registered.recent.find(model, edits.key)) is not None:
                return known
            parsed = _parse(edits, model, model_name, saes)
        except InvalidSpecError as error:
            raise InlineSteeringError.from_spec(error, len(given.features)) from error
    by_checksum = {sae.checksum: sae for sae in saes.values()}
    checksums = sorted({identity.checksum for edit in parsed for identity in edit.saes})
    sources = tuple(source_of(by_checksum[checksum]) for checksum in checksums)
    version = PublishedVersion(INLINE, 0, fingerprint(parsed), edits_to_json(parsed), sources)
    registered.recent.keep(model, edits.key, version)
    return version


async def find_inline(model: int, value: object) -> PublishedVersion | None:
    """Return the cached result of :func:`read_inline` for the same edits, or None. Makes no query.

    Edits that name vector sets are never found: who may see a set is asked for each request.
    """
    given = _given(value)
    return None if given.names_sets else (await registered_saes.aget()).recent.find(model, given.key)


def num_features(version: PublishedVersion) -> int:
    """Return how many of the version's inline edits are of `features`; the others are of `vectors`."""
    return sum("vector" not in edit for edit in version.edits) if isinstance(version.edits, list) else 0


def _given(value: object) -> InlineEdits:
    if not isinstance(value, dict) or not value.keys() & _LISTS:
        raise InlineSteeringError(
            "`steering` must be an object with a list `features`, a list `vectors`, or both.", "steering.features"
        )
    if others := sorted(str(name) for name in value.keys() - _LISTS):
        raise InlineSteeringError(f"`steering` has no field `{others[0][:100]}`.", "steering", "unknown_parameter")
    for name in sorted(value.keys()):
        if not isinstance(value[name], list):
            message = f"`steering.{name}` must be a list, got {describe(value[name])}."
            raise InlineSteeringError(message, f"steering.{name}")
    edits = InlineEdits(value.get("features", []), value.get("vectors", []))
    total = len(edits.features) + len(edits.vectors)
    if not 1 <= total <= MAX_INLINE:
        name = "features" if edits.features or not edits.vectors else "vectors"
        message = f"`steering` must contain 1 to {MAX_INLINE} edits, got {total}."
        raise InlineSteeringError(message, f"steering.{name}")
    return edits


def _with_sets(
    given: InlineEdits, model: int, model_name: str, saes: Mapping[str, SAE], viewer: int | None
) -> InlineEdits:
    """Replace names of vector sets by the vectors, if the viewer may see them."""
    if not given.names_sets:
        return given
    found = _visible_vectors(given.vectors, model, viewer)
    edits = _with_named_vectors(given.vectors, len(given.features), model_name, found, norms_of(saes.values()))
    return InlineEdits(given.features, [{**rest, **vector} if vector else rest for rest, vector in edits])


def _with_named_vectors(
    items: Sequence[Any],
    start: int,
    model_name: str,
    found: Mapping[str, Sequence[PlainVector]],
    norms: Mapping[Site, float],
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each edit with the vector that its ``set`` names in place of the name; {} if it names none."""
    for number, item in enumerate(items, start):
        if not _names_set(item):
            yield item, {}
            continue
        rest = {field: value for field, value in item.items() if field not in {"set", *_PLACE}}
        yield rest, registered_to_json(_named_vector(item, f"edits[{number}]", model_name, found), norms)


def _names_set(item: object) -> bool:
    return isinstance(item, dict) and "set" in item


def _visible_vectors(items: Sequence[Any], model: int, viewer: int | None) -> dict[str, list[PlainVector]]:
    """Return the vectors of the named sets that the viewer may see, by the name of their set."""
    names = {item["set"] for item in items if isinstance(item, dict) and isinstance(item.get("set"), str)}
    rows = VectorSet.objects.filter(model_id=model, name__in=[name for name in names if "\0" not in name])
    if viewer is not None:
        rows = visible_vector_sets(User.objects.filter(pk=viewer).first() or AnonymousUser(), rows)
    return {row.name: [*row.vectors.select_related("vector_set")] for row in rows}


def _named_vector(
    item: dict[str, Any], path: str, model_name: str, found: Mapping[str, Sequence[PlainVector]]
) -> PlainVector:
    name, layer, site = (item.get(field) for field in ("set", "layer", "site"))
    if "values" in item:
        raise InvalidSpecError([Problem(f"{path}.set", "Expected either `set` or `values`, got both.")])
    if not isinstance(name, str) or name not in found:
        message = f"The model `{model_name}` has no vector set {describe(name)}, or you do not have access to it."
        raise InvalidSpecError([Problem(f"{path}.set", message, "vector_set_not_found")])
    vectors = [one for one in found[name] if layer in {None, one.layer} and site in {None, one.site}]
    if len(vectors) != 1 or isinstance(layer, bool):
        places = ", ".join(one.place.label for one in found[name][:10])
        message = f"Expected `layer` and `site` of one vector of `{name}`. Available: {places}."
        raise InvalidSpecError([Problem(f"{path}.layer", message)])
    return vectors[0]


def _parse(given: InlineEdits, model: int, model_name: str, saes: Mapping[str, SAE]) -> tuple[EditSpec, ...]:
    start = len(given.features)
    full = [_feature_edit(item, f"edits[{number}]", model_name, saes) for number, item in enumerate(given.features)]
    norms = norms_of(saes.values())
    full += [
        _vector_edit(item, f"edits[{number}]", model_name, saes, norms)
        for number, item in enumerate(given.vectors, start)
    ]
    targets = feature_targets([place for edit in full for place in _places_in(edit)])
    filled = with_auto_strengths([_filled(edit, targets) for edit in full])
    edits = parse_edits([with_request_defaults(edit) for edit in filled])
    problems = [problem for number, edit in enumerate(edits) for problem in _push_problems(edit, f"edits[{number}]")]
    if any(isinstance(target, VectorTarget) for edit in edits for target in _targets(edit)):
        shape = read_model_shape(LanguageModel.objects.get(pk=model))
        problems += [problem for number, edit in enumerate(edits) for problem in _misfits(edit, shape, number)]
    if problems:
        raise InvalidSpecError(problems)
    return edits


def _push_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    if edit.push is not None and edit.push > MAX_PUSH:
        message = f"The edit would change the residual by {edit.push:.3g} times its norm; the limit is {MAX_PUSH:g}."
        yield Problem(f"{path}.strength", message)


def _targets(edit: EditSpec) -> list[object]:
    return [edit.target] if edit.gate is None else [edit.target, edit.gate.target]


def _misfits(edit: EditSpec, shape: ModelShape, number: int) -> Iterator[Problem]:
    """Yield the vectors of an edit whose place or width is not the model's."""
    for target, path in zip(_targets(edit), (f"edits[{number}].vector", f"edits[{number}].gate.vector"), strict=False):
        if not isinstance(target, VectorTarget):
            continue
        site = target.site
        if site.layer >= shape.num_layers:
            message = f"The model has layers 0 to {shape.num_layers - 1}, got layer {site.layer}."
            yield Problem(f"{path}.layer", message)
        elif shape.width(site) != len(target.values):
            width = shape.width(site)
            message = f"The vector has {len(target.values)} values, but the model has {width} at {site.label}."
            yield Problem(f"{path}.values", message)


def _feature_edit(item: Any, path: str, model_name: str, saes: Mapping[str, SAE]) -> Any:
    """Return the edit with its feature's place; the parser reports an item that is not an object."""
    if not isinstance(item, dict):
        return item
    if not item.keys().isdisjoint({"feature", "vector", "site"}):
        message = (
            "Edits in `features` name their feature by `sae` and `index`. Put vectors into `steering.vectors`; to "
            "preserve norms, publish a profile."
        )
        raise InvalidSpecError([Problem(path, message)])
    if item.get("operation") == "reconstruct":
        return _with_places(item, path, model_name, saes)
    sae = named_sae(item.get("sae"), f"{path}.sae", model_name, saes)
    rest = {name: value for name, value in item.items() if name not in {"sae", "index"}}
    edit = {**rest, "feature": feature_place(sae, item.get("index"), f"{path}.index")}
    return _with_places(edit, path, model_name, saes)


def _vector_edit(item: Any, path: str, model_name: str, saes: Mapping[str, SAE], norms: Mapping[Site, float]) -> Any:
    """Return the edit with its vector as in a version; the parser reports an item that is not an object."""
    if not isinstance(item, dict):
        return item
    if foreign := sorted(item.keys() & {"feature", "vector", "sae", "index"}):
        message = "Edits in `vectors` have `layer`, `site` and `values`, or `set`; put features into `features`."
        raise InvalidSpecError([Problem(f"{path}.{foreign[0]}", message)])
    rest = {name: value for name, value in item.items() if name not in _PLACE}
    given = {name: item[name] for name in _PLACE if name in item}
    if "reference_norm" in given:
        given = {"typical_norm": given["reference_norm"], **given}
    defaults = {} if rest.get("strength") == AUTO else {"unit": "raw"}
    edit = {**defaults, **rest, "vector": vector_to_json(given, norms)}
    return _with_places(edit, path, model_name, saes)


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


def read_short_edits(model: LanguageModel, items: Sequence[Any], *, viewer: User | None = None) -> tuple[EditSpec, ...]:
    """Parse edits with ``sae`` and ``index``, or in a version's form. Raises InvalidSpecError, by field.

    The model's only SAE need not be named. A gate is written in the same way: ``{"index": 3, "above": 0.2}``.
    ``reconstruct`` has only an ``sae``. A vector that ``viewer`` may see is named by ``set``, with ``layer`` and
    ``site`` if the set has several.
    """
    if len(items) > MAX_EDITS:
        raise InvalidSpecError([Problem("edits", f"Expected at most {MAX_EDITS} edits, got {len(items)}.")])
    saes = {sae.name: sae for sae in SAE.objects.filter(model=model)}
    if viewer is not None and any(map(_names_set, items)):
        found = _visible_vectors(items, model.pk, viewer.pk)
        edits = _with_named_vectors(items, 0, model.name, found, norms_of(saes.values()))
        items = [{**rest, "vector": vector} if vector else rest for rest, vector in edits]
    full = [_with_places(item, f"edits[{number}]", model.name, saes) for number, item in enumerate(items)]
    targets = feature_targets([place for edit in full for place in _places_in(edit)])
    filled = with_auto_strengths([_filled(edit, targets) for edit in full])
    return parse_edits([with_request_defaults(edit) for edit in filled])


def _with_places(item: Any, path: str, model_name: str, saes: Mapping[str, SAE]) -> Any:
    """Return the edit with places in its feature fields; the parser reports other problems."""
    if not isinstance(item, dict):
        return item
    if item.get("operation") == "reconstruct" and "site" not in item:
        full = _of_sae(item, path, model_name, saes)
    else:
        full = _with_place(item, path, model_name, saes)
    gate = full.get("gate")
    if isinstance(gate, dict):
        full["gate"] = _with_place(gate, f"{path}.gate", model_name, saes)
    return full


def _of_sae(item: dict[str, Any], path: str, model_name: str, saes: Mapping[str, SAE]) -> dict[str, Any]:
    """Return an edit that replaces the residual by the reconstruction of the SAE that it names."""
    identity = sae_identity(named_sae(item.get("sae"), f"{path}.sae", model_name, saes))
    target = EditSpec(SiteTarget(identity.site, sae=identity), "reconstruct")
    return {**{name: value for name, value in item.items() if name != "sae"}, "site": edit_to_json(target)["site"]}


def _with_place(item: dict[str, Any], path: str, model_name: str, saes: Mapping[str, SAE]) -> dict[str, Any]:
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
        filled["feature"] = feature_to_json(targets[place], edit.get("unit"))
    return filled
