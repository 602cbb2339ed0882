"""Reads edits from untrusted JSON."""

from __future__ import annotations

import math

from inference.interventions import SITE_KINDS, Site
from steering.spec.conflicts import find_conflicts
from steering.spec.edit import OPERATIONS, PHASES, UNITS, EditSpec, FeatureTarget, SAEIdentity, VectorTarget
from steering.spec.errors import InvalidSpecError, MissingScaleError, Problem
from steering.spec.fields import Fields, describe
from steering.spec.units import MAX_STRENGTH, Scales

MAX_EDITS = 256
MAX_WIDTH = 1 << 17
_MAX_LAYER = 10_000
_MAX_D_SAE = 1 << 24


def parse_edits(value: object) -> tuple[EditSpec, ...]:
    """The edits in a JSON list; InvalidSpecError names every wrong field, duplicate and contradiction."""
    if not isinstance(value, list):
        raise InvalidSpecError([Problem("edits", f"Expected a list of edits, found {describe(value)}.")])
    if len(value) > MAX_EDITS:
        raise InvalidSpecError([Problem("edits", f"Expected at most {MAX_EDITS} edits, found {len(value)}.")])
    problems: list[Problem] = []
    edits = [_parse_edit(item, f"edits[{number}]", problems) for number, item in enumerate(value)]
    if not problems:
        problems += find_conflicts(edits)
    if problems:
        raise InvalidSpecError(problems)
    return tuple(edits)


def _parse_edit(value: object, path: str, problems: list[Problem]) -> EditSpec:
    fields = Fields(value, path, problems)
    if ("feature" in fields) == ("vector" in fields):
        fields.report("", "Expected either a feature or a vector.")
    target = _parse_vector(fields.child("vector")) if "vector" in fields else _parse_feature(fields.child("feature"))
    edit = EditSpec(
        target=target,
        operation=fields.choice("operation", OPERATIONS, "add"),
        strength=fields.number("strength", limit=MAX_STRENGTH, default=1.0),
        unit=fields.choice("unit", UNITS, "max_act"),
        phase=fields.choice("phase", PHASES, "both"),
    )
    fields.refuse_others()
    problems += check_edit(edit, path)
    return edit


def check_edit(edit: EditSpec, path: str) -> list[Problem]:
    """What is wrong with an edit whose fields are each well-formed."""
    if isinstance(edit.target, VectorTarget) and edit.operation != "add":
        return [Problem(f"{path}.operation", f"A plain vector can only be added, not {edit.operation}.")]
    try:
        raw = edit.raw
    except MissingScaleError as error:
        return [Problem(f"{path}.unit", str(error))]
    if abs(raw) > MAX_STRENGTH:
        return [Problem(f"{path}.strength", f"The raw coefficient is {raw:g}; at most {MAX_STRENGTH:g} is allowed.")]
    return []


def _parse_feature(fields: Fields) -> FeatureTarget:
    sae = _parse_sae(fields.child("sae"))
    target = FeatureTarget(
        sae=sae,
        index=fields.integer("index", minimum=0, maximum=sae.d_sae - 1, code="invalid_feature"),
        scales=_parse_scales(fields),
        label=fields.text("label", required=False),
    )
    fields.refuse_others()
    return target


def _parse_sae(fields: Fields) -> SAEIdentity:
    identity = SAEIdentity(
        name=fields.text("name"),
        checksum=fields.text("checksum"),
        site=_parse_site(fields),
        d_in=fields.integer("d_in", minimum=1, maximum=MAX_WIDTH),
        d_sae=fields.integer("d_sae", minimum=1, maximum=_MAX_D_SAE),
    )
    fields.refuse_others()
    return identity


def _parse_vector(fields: Fields) -> VectorTarget:
    values = fields.numbers("values", max_length=MAX_WIDTH, limit=MAX_STRENGTH)
    scales = Scales(direction_norm=math.hypot(*values), reference_norm=fields.positive("reference_norm"))
    target = VectorTarget(site=_parse_site(fields), values=values, scales=scales)
    fields.refuse_others()
    return target


def _parse_site(fields: Fields) -> Site:
    return Site(fields.integer("layer", minimum=0, maximum=_MAX_LAYER), fields.choice("site", SITE_KINDS, "resid_post"))


def _parse_scales(fields: Fields) -> Scales:
    return Scales(
        max_activation=fields.positive("max_activation"),
        direction_norm=fields.positive("direction_norm"),
        reference_norm=fields.positive("reference_norm"),
    )
