"""Parse edits from untrusted JSON."""

from __future__ import annotations

import math
import struct
from typing import Any

from inference.interventions import ALL_TOKENS, SITE_KINDS, Site, Window
from steering.spec.checks import MAX_WINDOWS, check_edit, check_prompt_gates, check_windows, find_conflicts
from steering.spec.edit import (
    EVERYTHING,
    GATE_MEASURES,
    GATE_SCOPES,
    GATE_UNITS,
    OPERATIONS,
    PHASES,
    SCOPES,
    UNITS,
    EditSpec,
    FeatureTarget,
    GateSide,
    GateSpec,
    SAEIdentity,
    SiteTarget,
    VectorTarget,
)
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.fields import Fields, describe
from steering.spec.units import MAX_STRENGTH, Scales

MAX_EDITS = 256
MAX_WIDTH = 1 << 17
MAX_LAYER = 10_000
MAX_D_SAE = 1 << 24
MAX_TOKENS = 1 << 24


def parse_edits(value: object) -> tuple[EditSpec, ...]:
    """Return the edits of a JSON list. Raise InvalidSpecError with every invalid field, duplicate and contradiction.

    Without ``sink_tokens`` an edit also applies to attention sinks, like versions published before that field existed.
    Pass edits of requests and forms through :func:`with_request_defaults` first.
    """
    if not isinstance(value, list):
        raise InvalidSpecError([Problem("edits", f"Expected a list of edits, got {describe(value)}.")])
    if len(value) > MAX_EDITS:
        raise InvalidSpecError([Problem("edits", f"Expected at most {MAX_EDITS} edits, got {len(value)}.")])
    problems: list[Problem] = []
    edits = [_parse_edit(item, f"edits[{number}]", problems) for number, item in enumerate(value)]
    if not problems:
        problems += [*check_windows(edits), *check_prompt_gates(edits), *find_conflicts(edits)]
    if problems:
        raise InvalidSpecError(problems)
    return tuple(edits)


def with_request_defaults(edit: object) -> object:
    """Return an edit of a request or a form with the defaults that apply there.

    The numbers of its vectors are rounded to float32, as files and base64 have them, so that the same vector has the
    same fingerprint however it is sent.
    """
    return {"sink_tokens": False, **_rounded(edit)} if isinstance(edit, dict) else edit


def _rounded(edit: dict[str, Any]) -> dict[str, Any]:
    found = {name: edit[name] for name in ("vector", "gate") if isinstance(edit.get(name), dict)}
    rounded = {name: _rounded(value) for name, value in found.items()}
    if isinstance(values := edit.get("values"), list):
        return {**edit, **rounded, "values": _float32(values)}
    return {**edit, **rounded}


def _float32(values: list[Any]) -> list[Any]:
    """Return the numbers rounded to float32; other values as they are, for the parser to report."""
    if not all(type(value) in (int, float) and abs(value) <= MAX_STRENGTH for value in values):
        return values
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def _parse_edit(value: object, path: str, problems: list[Problem]) -> EditSpec:
    fields = Fields(value, path, problems)
    edit = EditSpec(
        target=_parse_target(fields),
        operation=fields.choice("operation", OPERATIONS, "add"),
        strength=fields.number("strength", limit=MAX_STRENGTH, default=1.0),
        unit=fields.choice("unit", UNITS, "max_act"),
        phase=fields.choice("phase", PHASES, "both"),
        lower=fields.number_or_none("lower", limit=MAX_STRENGTH),
        window=_parse_window(fields.child("window")) if "window" in fields else ALL_TOKENS,
        ranges=_parse_ranges(fields),
        scope=fields.choice("scope", SCOPES, EVERYTHING),
        only_if_active=fields.flag("only_if_active"),
        gate=_parse_gate(fields.child("gate")) if "gate" in fields else None,
        special_tokens=fields.flag("special_tokens"),
        sink_tokens=fields.flag("sink_tokens", default=True),
    )
    fields.refuse_others()
    problems += check_edit(edit, path)
    return edit


def _parse_target(fields: Fields) -> FeatureTarget | VectorTarget | SiteTarget:
    given = [name for name in ("feature", "vector", "site") if name in fields]
    if len(given) != 1:
        fields.report("", "Expected exactly one of `feature`, `vector` and `site`.")
    match given[:1]:
        case ["vector"]:
            return _parse_vector(fields.child("vector"))
        case ["site"]:
            return _parse_place(fields.child("site"))
        case _:
            return _parse_feature(fields.child("feature"))


def _parse_place(fields: Fields) -> SiteTarget:
    sae = _parse_sae(fields.child("sae")) if "sae" in fields else None
    target = SiteTarget(_parse_site(fields), sae=sae)
    fields.refuse_others()
    return target


def _parse_window(fields: Fields) -> Window:
    after = fields.count("after", minimum=0, maximum=MAX_TOKENS)
    window = Window(after or 0, fields.count("first", minimum=1, maximum=MAX_TOKENS))
    if window.first is not None and window.first <= window.after:
        fields.report(
            "first", f"`first` must be greater than `after` ({window.after}), otherwise no token is selected."
        )
    fields.refuse_others()
    return window


def _parse_ranges(fields: Fields) -> tuple[Window, ...]:
    pairs = fields.pairs("ranges", max_length=MAX_WINDOWS, maximum=MAX_TOKENS)
    return tuple(Window(after, first) for after, first in pairs)


def _parse_gate(fields: Fields) -> GateSpec:
    is_vector = "vector" in fields
    if is_vector and "feature" in fields:
        fields.report("", "Expected either `feature` or `vector`, got both.")
    side: GateSide = "below" if "below" in fields else "above"
    if side == "below" and "above" in fields:
        fields.report("below", "Expected either `above` or `below`, got both.")
    gate = GateSpec(
        target=_parse_vector(fields.child("vector")) if is_vector else _parse_feature(fields.child("feature")),
        threshold=fields.number(side, limit=MAX_STRENGTH, default=0.0),
        unit=fields.choice("unit", GATE_UNITS, "raw" if is_vector else "max_act"),
        side=side,
        measure=fields.choice("measure", GATE_MEASURES, "projection") if is_vector else "projection",
        scope=fields.choice("scope", GATE_SCOPES, "token"),
    )
    fields.refuse_others()
    return gate


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
        d_sae=fields.integer("d_sae", minimum=1, maximum=MAX_D_SAE),
    )
    fields.refuse_others()
    return identity


def _parse_vector(fields: Fields) -> VectorTarget:
    values = fields.numbers("values", max_length=MAX_WIDTH, limit=MAX_STRENGTH)
    scales = Scales(
        direction_norm=math.hypot(*values),
        reference_norm=fields.positive("reference_norm"),
        typical_norm=fields.positive("typical_norm"),
    )
    name = fields.text("name", required=False, max_length=100)
    target = VectorTarget(site=_parse_site(fields), values=values, scales=scales, name=name)
    fields.refuse_others()
    return target


def _parse_site(fields: Fields) -> Site:
    return Site(fields.integer("layer", minimum=0, maximum=MAX_LAYER), fields.choice("site", SITE_KINDS, "resid_post"))


def _parse_scales(fields: Fields) -> Scales:
    return Scales(
        max_activation=fields.positive("max_activation"),
        p99=fields.positive("p99"),
        p999=fields.positive("p999"),
        direction_norm=fields.positive("direction_norm"),
        reference_norm=fields.positive("reference_norm"),
        typical_norm=fields.positive("typical_norm"),
    )
