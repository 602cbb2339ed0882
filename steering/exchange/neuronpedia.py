"""Requests of Neuronpedia's steering: ``features`` by source and index, or ``vectors`` by hook.

``SIMPLE_ADDITIVE`` adds ``strength * strength_multiplier`` times the decoder's row (at length 1 with
``normalize_steering``); ``ORTHOGONAL_DECOMP`` multiplies the part of the residual along the row by that number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import cast

from inference.interventions import Site, SiteKind
from steering.exchange.decoder_steps import find_sae, raw_edit
from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile
from steering.exchange.sae_choice import SAEHint
from steering.spec.edit import EditSpec, FeatureTarget, Operation, VectorTarget
from steering.spec.fields import Fields
from steering.spec.parsing import MAX_EDITS, MAX_WIDTH
from steering.spec.units import MAX_STRENGTH, Scales

NAME = "Neuronpedia"
METHODS: dict[str, Operation] = {"SIMPLE_ADDITIVE": "add", "ORTHOGONAL_DECOMP": "orthogonal"}
_SOURCE = re.compile(r"(\d{1,4})-\S{1,200}")
_HOOK = re.compile(r"blocks\.(\d{1,4})\.hook_(resid_pre|resid_post|mlp_out)")
# Generation parameters belong to requests, not to profiles.
_OF_REQUESTS = frozenset(
    {
        "prompt",
        "defaultChatMessages",
        "steeredChatMessages",
        "messages",
        "temperature",
        "n_tokens",
        "n_completion_tokens",
    }
    | {"freq_penalty", "seed", "types", "stream", "n_logprobs", "id", "version"}
)


@dataclass(frozen=True, slots=True)
class _Method:
    operation: Operation
    multiplier: float
    is_normalized: bool
    special_tokens: bool


def recognises(value: object) -> bool:
    if not isinstance(value, dict) or not ("modelId" in value or "model" in value):
        return False
    return isinstance(value.get("features"), list) or isinstance(value.get("vectors"), list)


def read(value: object, reading: ImportContext) -> list[ImportedProfile]:
    fields = Fields(value, "file", reading.problems)
    model = fields.text("modelId", required=False) or fields.text("model", required=False)
    method = _method(fields, reading)
    edits = [
        *(
            edit
            for child in fields.children("features", max_length=MAX_EDITS)
            for edit in _feature(child, reading, method)
        ),
        *(
            edit
            for child in fields.children("vectors", max_length=MAX_EDITS)
            for edit in _vector(child, reading, method)
        ),
    ]
    reading.left_out([name for name in fields.others() if name not in _OF_REQUESTS])
    reading.doubt(f"The file was exported for the model {model[:100]}; it is imported for {reading.saes.model_name}.")
    return [ImportedProfile("file", reading.stem, "", tuple(edits))]


def _method(fields: Fields, reading: ImportContext) -> _Method:
    if "strength_multiplier" not in fields:
        reading.doubt("The file has no strength_multiplier; 1 is used.")
    name = fields.choice("steer_method", tuple(METHODS), "SIMPLE_ADDITIVE")
    return _Method(
        METHODS[name],
        fields.number("strength_multiplier", limit=MAX_STRENGTH, default=1.0),
        fields.flag("normalize_steering"),
        fields.flag("steer_special_tokens"),
    )


def _feature(fields: Fields, reading: ImportContext, method: _Method) -> list[ImportedEdit]:
    if "steeringVector" in fields or "steering_vector" in fields:
        fields.report("steeringVector", "Put custom vectors into `vectors`, with their `hook`.")
        return []
    name = "source" if "source" in fields else "layer"
    source = fields.text(name, max_length=200)
    match = _SOURCE.fullmatch(source)
    if match is None:
        fields.report(name, f"Expected a source such as 6-res-jb, got {source[:60]!r}.")
        return []
    sae = find_sae(reading, SAEHint(source, int(match[1])), f"{fields.path}.{name}")
    index = _integer(fields)
    strength = _strength(fields)
    target = reading.saes.feature(sae, index, f"{fields.path}.index", reading.problems) if sae else None
    return [] if target is None else _edit(target, fields, strength, method)


def _integer(fields: Fields) -> object:
    """Parse an index. Neuronpedia's own files also have indices as strings."""
    value = fields.value("index")
    is_text = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 10
    return int(value) if isinstance(value, str) and is_text else value


def _strength(fields: Fields) -> float:
    if "strength" not in fields:
        fields.report("strength", "Expected a number, got nothing.")
    return fields.number("strength", limit=MAX_STRENGTH, default=0.0)


def _vector(fields: Fields, reading: ImportContext, method: _Method) -> list[ImportedEdit]:
    hook = fields.text("hook", max_length=200)
    values = fields.numbers("steering_vector", max_length=MAX_WIDTH, limit=MAX_STRENGTH)
    strength = _strength(fields)
    match = _HOOK.fullmatch(hook)
    if match is None:
        fields.report("hook", f"Expected a hook such as blocks.6.hook_resid_post, got {hook[:60]!r}.")
        return []
    if not any(values):
        fields.report("steering_vector", "The vector must not be zero.")
        return []
    norm = sum(value * value for value in values) ** 0.5
    target = VectorTarget(Site(int(match[1]), cast("SiteKind", match[2])), values, Scales(direction_norm=norm))
    return _edit(target, fields, strength, method)


def _edit(target: FeatureTarget | VectorTarget, fields: Fields, strength: float, method: _Method) -> list[ImportedEdit]:
    """Build the edit. A strength out of bounds is reported by the check of the whole edit, which names it."""
    raw = strength * method.multiplier
    norm = target.scales.direction_norm
    if method.operation == "add" and method.is_normalized:
        if not norm:
            fields.report("", "`normalize_steering` needs the norm of the feature's decoder row, which is not known.")
            return []
        raw /= norm
    if isinstance(target, FeatureTarget):
        spec = raw_edit(target, method.operation, raw, special_tokens=method.special_tokens)
    else:
        spec = EditSpec(target, method.operation, raw, "raw", special_tokens=method.special_tokens)
    return [ImportedEdit(fields.path, spec)]
