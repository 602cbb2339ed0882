"""Builders of edits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inference.interventions import Site
from steering.spec.edit import EditSpec, FeatureTarget, GateSpec, SAEIdentity, SiteTarget, VectorTarget
from steering.spec.units import Scales

SITE = Site(1)
SCALES = Scales(max_activation=8.0, direction_norm=2.0, reference_norm=40.0)


def identity(checksum: str = "c" * 64, *, site: Site = SITE, d_in: int = 12, d_sae: int = 40) -> SAEIdentity:
    return SAEIdentity("tiny-sae", checksum, site, d_in, d_sae)


def edit(operation: Any = "add", strength: float = 1.0, *, index: int = 3, **fields: Any) -> EditSpec:
    """An edit of a feature; ``unit`` is raw unless given. It acts on attention sinks too, so that all tokens count."""
    target = FeatureTarget(
        fields.pop("sae", identity()), index, fields.pop("scales", SCALES), fields.pop("label", "rain")
    )
    return replace(EditSpec(target, operation, strength, "raw", sink_tokens=True), **fields)


def gate(index: int = 7, above: float = 0.5, unit: Any = "raw", sae: SAEIdentity | None = None) -> GateSpec:
    """Another feature of the same SAE unless given."""
    return GateSpec(FeatureTarget(sae or identity(), index, SCALES), above, unit)


def keep_norm(site: Site = SITE, **fields: Any) -> EditSpec:
    return replace(EditSpec(SiteTarget(site), "norm_preserving", unit="raw", sink_tokens=True), **fields)


def vector_edit(values: Sequence[float], strength: float = 1.0, *, site: Site = SITE, **fields: Any) -> EditSpec:
    norm = math.hypot(*values)
    target = VectorTarget(site, tuple(values), Scales(direction_norm=norm, reference_norm=40.0))
    return replace(EditSpec(target, "add", strength, "raw", sink_tokens=True), **fields)
