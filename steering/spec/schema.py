"""The JSON schema of a list of edits, for documentation.

The parser (:func:`steering.spec.parsing.parse_edits`) is authoritative and checks more than a schema can express, such
as which operations a target supports, and contradictions.
"""

from __future__ import annotations

from typing import Any

from inference.interventions import SITE_KINDS
from steering.spec.checks import MAX_WINDOWS
from steering.spec.edit import GATE_MEASURES, GATE_SCOPES, GATE_UNITS, OPERATIONS, PHASES, SCOPES, UNITS
from steering.spec.parsing import MAX_D_SAE, MAX_EDITS, MAX_LAYER, MAX_TOKENS, MAX_WIDTH
from steering.spec.units import MAX_STRENGTH

Schema = dict[str, Any]


def edits_schema() -> Schema:
    """Return the schema in JSON Schema 2020-12, the dialect of OpenAPI 3.1, without references."""
    return {
        "type": "array",
        "maxItems": MAX_EDITS,
        "items": {
            **_object(
                {
                    "feature": _feature(),
                    "vector": _vector(),
                    "site": _object({**_place(), "sae": _sae()}, required=("layer",)),
                    "operation": _choice(OPERATIONS, "add"),
                    "strength": {**_number(), "default": 1.0},
                    "unit": _choice(UNITS, "max_act"),
                    "phase": _choice(PHASES, "both"),
                    "lower": _number("The lower end of `projection_cap`."),
                    "window": _window(),
                    "scope": _choice(SCOPES, "everything"),
                    "only_if_active": {"type": "boolean", "default": False},
                    "gate": _gate(),
                    "ranges": _ranges(),
                    "special_tokens": {"type": "boolean", "default": False},
                    "sink_tokens": {
                        "type": "boolean",
                        "default": False,
                        "description": (
                            "Also applies to attention sinks: a prompt's first token unless it is a special token, "
                            "and tokens whose residual norm is more than 10 times the usual."
                        ),
                    },
                }
            ),
            "oneOf": [{"required": [name]} for name in ("feature", "vector", "site")],
        },
    }


def _sae() -> Schema:
    return _object(
        {
            "name": {"type": "string"},
            "checksum": {"type": "string"},
            **_place(),
            "d_in": _integer(1, MAX_WIDTH),
            "d_sae": _integer(1, MAX_D_SAE),
        },
        required=("name", "checksum", "layer", "d_in", "d_sae"),
    )


def _feature() -> Schema:
    names = ("max_activation", "p99", "p999", "direction_norm", "reference_norm", "typical_norm")
    scales = {name: _scale() for name in names}
    properties = {"sae": _sae(), "index": _integer(0, MAX_D_SAE - 1), "label": {"type": ["string", "null"]}, **scales}
    return _object(properties, required=("sae", "index"))


def _vector() -> Schema:
    values = {"type": "array", "minItems": 1, "maxItems": MAX_WIDTH, "items": _number()}
    name = {"type": ["string", "null"], "maxLength": 100}
    properties = {"name": name, **_place(), "values": values, "reference_norm": _scale()}
    properties["typical_norm"] = _scale()
    return _object(properties, required=("layer", "values"))


def _gate() -> Schema:
    properties = {
        "feature": _feature(),
        "vector": _vector(),
        "above": {**_number(), "default": 0.0},
        "below": _number("Instead of `above`."),
        "unit": {"type": "string", "enum": list(GATE_UNITS), "description": "Default: `max_act`; of a vector `raw`."},
        "measure": _choice(GATE_MEASURES, "projection"),
        "scope": _choice(GATE_SCOPES, "token"),
    }
    text = (
        "Applies only where a feature, or the projection or cosine of the residual with a vector, is above or below "
        "the threshold: at each token, or once for the whole generation, on the prompt's mean or last token. It may be "
        "at an earlier site than the edit."
    )
    targets = [{"required": [name]} for name in ("feature", "vector")]
    return {**_object(properties, text=text), "oneOf": targets}


def _window() -> Schema:
    properties = {"after": _integer(0, MAX_TOKENS), "first": _integer(1, MAX_TOKENS)}
    return _object(properties, text="Skips the phase's tokens before `after`, and those from `first` on.")


def _ranges() -> Schema:
    ends = [{"type": "integer", "minimum": 0, "maximum": MAX_TOKENS}, {"type": ["integer", "null"]}]
    pair = {"type": "array", "prefixItems": ends, "minItems": 2, "maxItems": 2}
    text = "Instead of a window: [start, end] pairs of the phase's tokens. The end is exclusive; null means no end."
    return {"type": "array", "items": pair, "minItems": 1, "maxItems": MAX_WINDOWS, "description": text}


def _place() -> Schema:
    return {"layer": _integer(0, MAX_LAYER), "site": _choice(SITE_KINDS, "resid_post")}


def _object(properties: Schema, required: tuple[str, ...] = (), text: str = "") -> Schema:
    described = {"description": text} if text else {}
    return {
        "type": "object",
        **described,
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _choice(choices: tuple[str, ...], default: str) -> Schema:
    return {"type": "string", "enum": list(choices), "default": default}


def _integer(minimum: int, maximum: int) -> Schema:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


def _number(text: str = "") -> Schema:
    described = {"description": text} if text else {}
    return {"type": "number", "minimum": -MAX_STRENGTH, "maximum": MAX_STRENGTH, **described}


def _scale() -> Schema:
    return {"type": ["number", "null"], "minimum": 0}
