"""Converts between a draft (rows of FeatureEdit) and edits (:mod:`steering.spec`), and audits drafts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from django.contrib.auth.models import User

from audit.models import AuditEvent
from audit.record import plain, record
from inference.interventions import SITE_KINDS, Site, SiteKind
from steering.models import SAE, Feature, FeatureEdit, PlainVector, SteeringProfile
from steering.spec.edit import SITE_OPERATIONS, EditSpec, FeatureTarget, GateSpec, SAEIdentity, SiteTarget, VectorTarget
from steering.spec.errors import InvalidSpecError, MissingScaleError, Problem
from steering.spec.parsing import parse_edits
from steering.spec.rendering import edit_to_json, feature_to_json
from steering.spec.units import Scales
from steering.spec.wording import describe_edit


def draft_rows(profile: SteeringProfile) -> list[FeatureEdit]:
    """Return the draft's rows with the related rows that their edits need."""
    return list(profile.edits.select_related("feature__sae", "gate_feature__sae", "plain_vector__vector_set"))


def draft_edits(profile: SteeringProfile) -> tuple[EditSpec, ...]:
    """Return the draft's edits, fully validated. Raises InvalidSpecError."""
    return edits_of(profile.model_id, draft_rows(profile))


def edits_of(model_id: int, rows: Iterable[FeatureEdit]) -> tuple[EditSpec, ...]:
    """Convert the rows of one draft, saved or not, to edits. Raises InvalidSpecError."""
    norms = mean_norms(model_id)
    return parse_edits([_row_to_json(row, norms) for row in rows])


def edit_of(row: FeatureEdit) -> EditSpec:
    """Convert one row to an edit, for display. Raises InvalidSpecError if it is incomplete."""
    return parse_edits([_row_to_json(row, {} if row.feature else mean_norms(row.profile.model_id))])[0]


def sae_identity(sae: SAE) -> SAEIdentity:
    """Return the SAE as edits name it."""
    return SAEIdentity(sae.name, sae.checksum, Site(sae.layer, cast("SiteKind", sae.site)), sae.d_in, sae.d_sae)


def feature_target(feature: Feature) -> FeatureTarget:
    """Return the feature with the current values of the figures that strengths refer to."""
    sae, quantiles = feature.sae, feature.quantiles
    return FeatureTarget(
        sae=sae_identity(sae),
        index=feature.index,
        scales=Scales(
            feature.max_activation,
            feature.decoder_norm,
            sae.reference_norm,
            sae.typical_norm,
            *(None, None) if quantiles is None else (quantiles.p99, quantiles.p999),
        ),
        label=feature.label,
    )


def vector_target(vector: PlainVector) -> VectorTarget:
    """Return the registered vector with the current values of the figures that strengths refer to."""
    norm = residual_norm(vector)
    scales = Scales(None, math.hypot(*vector.values), norm, norm)
    return VectorTarget(vector.place, vector.values, scales, vector.vector_set.name)


def residual_norm(vector: PlainVector) -> float | None:
    """Return the mean norm of the residual at the vector's site, None where it was not measured."""
    return vector.reference_norm or mean_norms(vector.vector_set.model_id).get(vector.place)


def rows_of(profile: SteeringProfile, edits: Iterable[EditSpec]) -> list[FeatureEdit]:
    """Convert edits to unsaved draft rows. Raises InvalidSpecError if the model lacks an SAE that they need."""
    return [_row_of(profile, edit, f"edits[{number}]") for number, edit in enumerate(edits)]


def _row_to_json(row: FeatureEdit, norms: Mapping[Site, float]) -> dict[str, Any]:
    values = {
        "operation": row.operation,
        "strength": row.strength,
        "unit": row.unit,
        "phase": row.phase,
        "lower": row.lower,
        "window": {"after": row.after, "first": row.first},
        "scope": row.scope,
        "only_if_active": row.only_if_active,
        "gate": _gate_to_json(row, norms),
        "special_tokens": row.special_tokens,
        "ranges": row.ranges,
        "sink_tokens": row.sink_tokens,
    }
    if row.feature is not None:
        return {"feature": feature_to_json(feature_target(row.feature), row.unit), **values}
    if row.plain_vector is not None:
        return {"vector": registered_to_json(row.plain_vector, norms), **values}
    if row.operation in SITE_OPERATIONS:
        return {"site": row.vector, **values}
    return {"vector": vector_to_json(row.vector, norms), **values}


def _gate_to_json(row: FeatureEdit, norms: Mapping[Site, float]) -> dict[str, Any] | None:
    if row.gate_feature is not None:
        target: dict[str, Any] = {"feature": feature_to_json(feature_target(row.gate_feature), row.gate_unit)}
    elif row.gate_vector is not None:
        target = {"vector": vector_to_json(row.gate_vector, norms), "measure": row.gate_measure}
    else:
        return None
    return {**target, row.gate_side: row.gate_above, "unit": row.gate_unit, "scope": row.gate_scope}


def registered_to_json(vector: PlainVector, norms: Mapping[Site, float]) -> dict[str, Any]:
    """Return a vector of a set (with its ``vector_set``) in the form of a version's JSON."""
    return {
        "name": vector.vector_set.name,
        "layer": vector.layer,
        "site": vector.site,
        "values": list(vector.values),
        "reference_norm": vector.reference_norm or norms.get(vector.place),
        "typical_norm": vector.reference_norm or norms.get(vector.place),
    }


def vector_to_json(vector: object, norms: Mapping[Site, float]) -> object:
    """Return the row's vector with the residual norm of its site. Wrong fields are left for the parser to report."""
    if not isinstance(vector, dict) or vector.get("reference_norm") is not None:
        return vector
    layer, kind = vector.get("layer"), vector.get("site", "resid_post")
    if not isinstance(layer, int) or kind not in SITE_KINDS:
        return vector
    norm = norms.get(Site(layer, kind))
    return {"typical_norm": norm, **vector, "reference_norm": norm}


def mean_norms(model_id: int) -> dict[Site, float]:
    """Return mean residual norms by site, as measured when SAEs were trained there."""
    return norms_of(SAE.objects.filter(model_id=model_id, mean_resid_norm__isnull=False).order_by("pk"))


def norms_of(rows: Iterable[SAE]) -> dict[Site, float]:
    """Return the mean residual norms that were measured for these SAEs, by site."""
    return {Site(row.layer, cast("SiteKind", row.site)): row.mean_resid_norm for row in rows if row.mean_resid_norm}


def _row_of(profile: SteeringProfile, edit: EditSpec, path: str) -> FeatureEdit:
    row = FeatureEdit(
        profile=profile,
        operation=edit.operation,
        strength=edit.strength,
        unit=edit.unit,
        phase=edit.phase,
        lower=edit.lower,
        after=edit.window.after or None,
        first=edit.window.first,
        scope=edit.scope,
        only_if_active=edit.only_if_active,
        special_tokens=edit.special_tokens,
        ranges=[[window.after, window.first] for window in edit.ranges] or None,
        sink_tokens=edit.sink_tokens,
    )
    if edit.gate is not None:
        _set_gate(row, edit, edit.gate, f"{path}.gate")
    match edit.target:
        case VectorTarget():
            row.plain_vector = _find_vector(profile, edit.target)
            row.vector = edit_to_json(edit)["vector"] if row.plain_vector is None else None
            _keep_vector_effect(row, edit)
        case SiteTarget():
            row.vector = edit_to_json(edit)["site"]
        case FeatureTarget():
            row.feature = _find_feature(profile, edit.target, path)
            _keep_effect(row, edit)
    return row


def _set_gate(row: FeatureEdit, edit: EditSpec, gate: GateSpec, path: str) -> None:
    """Set the gate, with a raw threshold if the max activation that it refers to has changed since."""
    row.gate_above, row.gate_unit = gate.threshold, gate.unit
    row.gate_side, row.gate_measure, row.gate_scope = gate.side, gate.measure, gate.scope
    if isinstance(gate.target, VectorTarget):
        row.gate_vector = edit_to_json(edit)["gate"]["vector"]
        return
    row.gate_feature = _find_feature(row.profile, gate.target, path)
    if not _keeps(gate, feature_target(row.gate_feature), "raw"):
        row.gate_above, row.gate_unit = gate.raw, FeatureEdit.GateUnit.RAW


def _find_feature(profile: SteeringProfile, target: FeatureTarget, path: str) -> Feature:
    sae = SAE.objects.filter(
        model_id=profile.model_id, checksum=target.sae.checksum, layer=target.site.layer, site=target.site.kind
    )
    feature: Feature | None = Feature.objects.filter(sae__in=sae, index=target.index).select_related("sae").first()
    if feature is None:
        message = (
            f"The model {profile.model} has no SAE {target.sae.name} with this checksum and feature {target.index}."
        )
        raise InvalidSpecError([Problem(f"{path}.feature", message, "invalid_feature")])
    return feature


def _find_vector(profile: SteeringProfile, target: VectorTarget) -> PlainVector | None:
    """Return the registered vector of that name, if it is unchanged."""
    rows = PlainVector.objects.filter(
        vector_set__model_id=profile.model_id,
        vector_set__name=target.name,
        layer=target.site.layer,
        site=target.site.kind,
    )
    vector = rows.select_related("vector_set").first() if target.name else None
    return vector if vector is not None and vector.values == target.values else None


def _keep_vector_effect(row: FeatureEdit, edit: EditSpec) -> None:
    """Store the strength as a raw value if the residual norm at the site has changed. Vectors with their own norm keep
    it."""
    if row.plain_vector is None or edit.unit != "resid_norm":
        return
    try:
        now = edit_of(row)
    except InvalidSpecError:
        now = None
    if now is None or (now.raw, now.raw_lower) != (edit.raw, edit.raw_lower):
        row.strength, row.lower, row.unit = edit.raw, edit.raw_lower, FeatureEdit.Unit.RAW


def _keep_effect(row: FeatureEdit, edit: EditSpec) -> None:
    """Store the strength as a raw value if the values behind its unit have changed."""
    assert row.feature is not None
    if not _keeps(edit, feature_target(row.feature), "raw", "raw_lower"):
        row.strength, row.lower, row.unit = edit.raw, edit.raw_lower, FeatureEdit.Unit.RAW


def _keeps(stored: EditSpec | GateSpec, target: FeatureTarget, *numbers: str) -> bool:
    """Return whether these raw numbers are the same with the feature's current figures."""
    now = replace(stored, target=target)
    try:
        return all(getattr(now, name) == getattr(stored, name) for name in numbers)
    except MissingScaleError:  # measured elsewhere only
        return False


def draft_words(profile: SteeringProfile) -> list[str]:
    """Describe the draft, one line per edit; fall back to the rows if the draft is invalid."""
    try:
        return [describe_edit(edit) for edit in draft_edits(profile)]
    except InvalidSpecError:
        return [str(row) for row in profile.edits.all()]


def record_draft(
    *, profile: SteeringProfile, before: Sequence[str], user: User | None = None, detail: str = ""
) -> None:
    """Record the draft's edits in the audit trail if they changed."""
    after = draft_words(profile)
    if list(before) != after:
        changes = {"edits": [plain(list(before)), plain(after)]}
        record(AuditEvent.Action.CHANGE, profile, user=user, model=profile.model.name, detail=detail, changes=changes)
