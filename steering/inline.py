"""Edits that a request brings along: features by SAE and index, everything else as in a profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import close_old_connections, connection

from steering.drafts import feature_target
from steering.errors import InlineSteeringError
from steering.models import SAE, Feature
from steering.published import PublishedVersion, source_of
from steering.spec.edit import EditSpec, FeatureTarget
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edit_to_json, edits_to_json, fingerprint
from steering.spec.units import MAX_PUSH

INLINE = "inline"
"""Stands where a version's name@number would: no version is called so."""
MAX_FEATURES = 64


def read_inline(model: int, model_name: str, value: object) -> PublishedVersion:
    """The version that ``{"features": [...]}`` would be if it were published; InlineSteeringError names the field.

    Asks the database what the features' strengths refer to, so it runs in a thread of its own.
    """
    close_old_connections()
    try:
        saes = {sae.name: sae for sae in SAE.objects.filter(model_id=model)}
        edits = _parse(_features(value), model_name, saes)
    except InvalidSpecError as error:
        raise InlineSteeringError.from_spec(error) from error
    finally:
        if not connection.in_atomic_block:
            connection.close()
    by_checksum = {sae.checksum: sae for sae in saes.values()}
    checksums = sorted({identity.checksum for edit in edits for identity in edit.saes})
    sources = tuple(source_of(by_checksum[checksum]) for checksum in checksums)
    return PublishedVersion(INLINE, 0, fingerprint(edits), edits_to_json(edits), sources)


def _features(value: object) -> list[Any]:
    if not isinstance(value, dict) or not isinstance(value.get("features"), list):
        raise InlineSteeringError("Expected “steering” to be an object with a list “features”.", "steering.features")
    if others := sorted(str(name) for name in value.keys() - {"features"}):
        raise InlineSteeringError(f"“steering” has no field {others[0][:100]!r}.", "steering", "unknown_parameter")
    features: list[Any] = value["features"]
    if not 1 <= len(features) <= MAX_FEATURES:
        message = f"Expected 1 to {MAX_FEATURES} edits in “steering.features”, found {len(features)}."
        raise InlineSteeringError(message, "steering.features")
    return features


def _parse(items: list[Any], model_name: str, saes: Mapping[str, SAE]) -> tuple[EditSpec, ...]:
    edits = parse_edits([_edit(item, f"edits[{number}]", model_name, saes) for number, item in enumerate(items)])
    problems = [
        Problem(f"edits[{number}].strength", f"The edit would push the residual by {edit.push:.3g} times its norm.")
        for number, edit in enumerate(edits)
        if edit.push is not None and edit.push > MAX_PUSH
    ]
    if problems:
        raise InvalidSpecError(problems)
    return edits


def _edit(item: Any, path: str, model_name: str, saes: Mapping[str, SAE]) -> Any:
    """In the form of a version's JSON, the feature filled in; the parser names what else is wrong."""
    if not isinstance(item, dict):
        return item
    rest = {name: value for name, value in item.items() if name not in {"sae", "index"}}
    if not rest.keys().isdisjoint({"feature", "vector", "site", "gate"}):
        message = "A request's own edits are of features, by “sae” and “index”; publish a profile for anything else."
        raise InvalidSpecError([Problem(path, message)])
    sae = named_sae(item.get("sae"), f"{path}.sae", model_name, saes)
    target = feature_at(sae, item.get("index"), f"{path}.index")
    return {**rest, "feature": edit_to_json(EditSpec(target, "add", 0.0, "raw"))["feature"]}


def named_sae(name: object, path: str, model_name: str, saes: Mapping[str, SAE]) -> SAE:
    """The named one, or the model's only one."""
    if name is None and len(saes) == 1:
        return next(iter(saes.values()))
    if isinstance(name, str) and name in saes:
        return saes[name]
    known = ", ".join(sorted(saes)[:10]) or "none"
    found = f"no SAE {name[:100]!r}" if isinstance(name, str) else "more than one SAE, or none: name it"
    raise InvalidSpecError([Problem(path, f"The model {model_name} has {found}. It has: {known}.", "sae_not_found")])


def feature_at(sae: SAE, index: object, path: str) -> FeatureTarget:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < sae.d_sae:
        message = f"{sae.name} has features 0 to {sae.d_sae - 1}; expected is one of these numbers."
        raise InvalidSpecError([Problem(path, message, "invalid_feature")])
    feature = Feature.objects.select_related("sae").get(sae=sae, index=index)
    return feature_target(feature)
