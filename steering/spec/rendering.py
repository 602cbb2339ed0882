"""Render edits as JSON, and compute the fingerprint of their effect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from inference.interventions import Site
from steering.spec.edit import EVERYTHING, EditSpec, FeatureTarget, GateSpec, SAEIdentity, SiteTarget, VectorTarget
from steering.spec.units import Scales

_FORMAT = 1


def edits_to_json(edits: Iterable[EditSpec]) -> list[dict[str, Any]]:
    """Return the JSON that :func:`steering.spec.parsing.parse_edits` reads."""
    return [edit_to_json(edit) for edit in edits]


def edit_to_json(edit: EditSpec) -> dict[str, Any]:
    """Return one edit as JSON. Rarely used fields are left out if they have their default."""
    return {
        **_target_to_json(edit),
        "operation": edit.operation,
        "strength": edit.strength,
        "unit": edit.unit,
        "phase": edit.phase,
        **({} if edit.lower is None else {"lower": edit.lower}),
        **_conditions_to_json(edit),
        **({} if edit.gate is None else {"gate": _gate_to_json(edit.gate)}),
    }


def fingerprint(edits: Iterable[EditSpec]) -> str:
    """Return the SHA-256 of the effect: sites, SAE checksums, features, operations, raw values, gates and tokens.

    Order, names, labels and the unit of a strength do not matter. Raise MissingScaleError like :attr:`EditSpec.raw`.
    """
    return hashlib.sha256(_canonical({"format": _FORMAT, "edits": sorted(map(effect_key, edits))}).encode()).hexdigest()


def effect_key(edit: EditSpec) -> str:
    """Return canonical JSON of the effect of one edit. Edits are compiled in the order of these keys."""
    site = edit.target.site
    return _canonical(
        {
            **_target_effect(edit.target),
            "layer": site.layer,
            "site": site.kind,
            "operation": edit.operation,
            "value": float(edit.raw),
            "phase": edit.phase,
            **({} if edit.raw_lower is None else {"lower": float(edit.raw_lower)}),
            **_conditions_to_json(edit),
            **({} if edit.norm_limit is None else {"norm_limit": float(edit.norm_limit)}),
            **({} if edit.gate is None else {"gate": _gate_effect(edit.gate, site)}),
        }
    )


def _target_effect(target: FeatureTarget | VectorTarget | SiteTarget) -> dict[str, object]:
    match target:
        case FeatureTarget():
            return {"sae": target.sae.checksum, "feature": target.index}
        case VectorTarget():
            return {"vector": [value + 0.0 for value in target.values]}
        case SiteTarget():
            return {} if target.sae is None else {"sae": target.sae.checksum}


def _gate_effect(gate: GateSpec, site: Site) -> dict[str, object]:
    """Return the effect of a gate of an edit at ``site``."""
    there = gate.target.site
    return {
        **_target_effect(gate.target),
        gate.side: float(gate.raw),
        **_gate_choices(gate),
        **({} if there == site else _site_to_json(there)),
    }


def _gate_choices(gate: GateSpec) -> dict[str, str]:
    """Return the fields of a gate that have their default in most gates."""
    return {
        **({"measure": gate.measure} if isinstance(gate.target, VectorTarget) else {}),
        **({} if gate.scope == "token" else {"scope": gate.scope}),
    }


def _conditions_to_json(edit: EditSpec) -> dict[str, Any]:
    """Return the fields that select tokens within the phase."""
    window = {"after": edit.window.after} if edit.window.after else {}
    if edit.window.first is not None:
        window["first"] = edit.window.first
    return {
        **({"window": window} if window else {}),
        **({"ranges": [[window.after, window.first] for window in edit.ranges]} if edit.ranges else {}),
        **({} if edit.scope == EVERYTHING else {"scope": edit.scope}),
        **({"only_if_active": True} if edit.only_if_active else {}),
        **({"special_tokens": True} if edit.special_tokens else {}),
        **({} if edit.sink_tokens else {"sink_tokens": False}),
    }


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _target_to_json(edit: EditSpec) -> dict[str, Any]:
    match edit.target:
        case FeatureTarget():
            return {"feature": feature_to_json(edit.target, edit.unit)}
        case VectorTarget():
            return {"vector": _vector_to_json(edit.target)}
        case SiteTarget():
            sae = {} if edit.target.sae is None else {"sae": _sae_to_json(edit.target.sae)}
            return {"site": {**_site_to_json(edit.target.site), **sae}}


def _gate_to_json(gate: GateSpec) -> dict[str, Any]:
    if isinstance(gate.target, FeatureTarget):
        target = {"feature": feature_to_json(gate.target, gate.unit)}
    else:
        target = {"vector": _vector_to_json(gate.target)}
    return {**target, gate.side: gate.threshold, "unit": gate.unit, **_gate_choices(gate)}


def feature_to_json(target: FeatureTarget, unit: object) -> dict[str, Any]:
    """Return the feature with the figures that a strength in ``unit`` may refer to."""
    return {
        "sae": _sae_to_json(target.sae),
        "index": target.index,
        "label": target.label,
        **_scales_to_json(target.scales),
        **_percentile_to_json(target.scales, unit),
    }


def _sae_to_json(sae: SAEIdentity) -> dict[str, Any]:
    return {
        "name": sae.name,
        "checksum": sae.checksum,
        **_site_to_json(sae.site),
        "d_in": sae.d_in,
        "d_sae": sae.d_sae,
    }


def _vector_to_json(target: VectorTarget) -> dict[str, Any]:
    return {
        **({"name": target.name} if target.name else {}),
        **_site_to_json(target.site),
        "values": list(target.values),
        "reference_norm": target.scales.reference_norm,
        **_typical_norm_to_json(target.scales),
    }


def _site_to_json(site: Site) -> dict[str, Any]:
    return {"layer": site.layer, "site": site.kind}


def _typical_norm_to_json(scales: Scales) -> dict[str, float]:
    return {} if scales.typical_norm is None else {"typical_norm": scales.typical_norm}


def _percentile_to_json(scales: Scales, unit: object) -> dict[str, float]:
    """Return the percentile if it is the unit, so that edits in other units stay as they were."""
    found = scales.activation(unit) if unit in ("p99", "p999") else None
    return {} if found is None else {str(unit): found}


def _scales_to_json(scales: Scales) -> dict[str, float | None]:
    return {
        "max_activation": scales.max_activation,
        "direction_norm": scales.direction_norm,
        "reference_norm": scales.reference_norm,
        **_typical_norm_to_json(scales),
    }
