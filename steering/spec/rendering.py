"""Writes edits as JSON, and identifies their effect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from inference.interventions import Site
from steering.spec.edit import EditSpec, FeatureTarget, VectorTarget
from steering.spec.units import Scales

_FORMAT = 1


def edits_to_json(edits: Iterable[EditSpec]) -> list[dict[str, Any]]:
    """The form that :func:`steering.spec.parsing.parse_edits` reads back."""
    return [edit_to_json(edit) for edit in edits]


def edit_to_json(edit: EditSpec) -> dict[str, Any]:
    target = (
        {"feature": _feature_to_json(edit.target)}
        if isinstance(edit.target, FeatureTarget)
        else {"vector": _vector_to_json(edit.target)}
    )
    return {
        **target,
        "operation": edit.operation,
        "strength": edit.strength,
        "unit": edit.unit,
        "phase": edit.phase,
    }


def fingerprint(edits: Iterable[EditSpec]) -> str:
    """SHA-256 of the effect: sites, SAE checksums, features, operations, raw values and phases.

    Neither order, names, labels nor the unit in which a strength was given matter. MissingScaleError as for
    :attr:`EditSpec.raw`.
    """
    return hashlib.sha256(_canonical({"format": _FORMAT, "edits": sorted(map(effect_key, edits))}).encode()).hexdigest()


def effect_key(edit: EditSpec) -> str:
    """Canonical JSON of one edit's effect; also the order in which edits are compiled."""
    target: dict[str, object] = (
        {"sae": edit.target.sae.checksum, "feature": edit.target.index}
        if isinstance(edit.target, FeatureTarget)
        else {"vector": [value + 0.0 for value in edit.target.values]}
    )
    site = edit.target.site
    return _canonical(
        {
            **target,
            "layer": site.layer,
            "site": site.kind,
            "operation": edit.operation,
            "value": float(edit.raw),
            "phase": edit.phase,
        }
    )


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _feature_to_json(target: FeatureTarget) -> dict[str, Any]:
    sae = target.sae
    return {
        "sae": {
            "name": sae.name,
            "checksum": sae.checksum,
            **_site_to_json(sae.site),
            "d_in": sae.d_in,
            "d_sae": sae.d_sae,
        },
        "index": target.index,
        "label": target.label,
        **_scales_to_json(target.scales),
    }


def _vector_to_json(target: VectorTarget) -> dict[str, Any]:
    return {
        **_site_to_json(target.site),
        "values": list(target.values),
        "reference_norm": target.scales.reference_norm,
    }


def _site_to_json(site: Site) -> dict[str, Any]:
    return {"layer": site.layer, "site": site.kind}


def _scales_to_json(scales: Scales) -> dict[str, float | None]:
    return {
        "max_activation": scales.max_activation,
        "direction_norm": scales.direction_norm,
        "reference_norm": scales.reference_norm,
    }
