"""Profiles of miLLM 1: ``steering`` maps a feature's index to the number that its decoder's row is multiplied by.

Two shapes: the documented one, ``{"type": "millm_profile", "profile": {"name", "model", "sae", "layer", "steering"}}``;
and what its API answers, ``{"name", "model_id", "sae_id", "layer", "steering"}``, alone or as ``data`` of an answer.
"""

from __future__ import annotations

from steering.exchange.decoder_steps import find_sae, step
from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile
from steering.exchange.sae_choice import SAEHint
from steering.models import SAE
from steering.spec.fields import Fields
from steering.spec.parsing import MAX_EDITS, MAX_LAYER
from steering.spec.units import MAX_STRENGTH

NAME = "miLLM 1"


def recognises(value: object) -> bool:
    inner = _content(value)
    return inner is not None and "steering" in inner and "name" in inner


def read(value: object, reading: ImportContext) -> list[ImportedProfile]:
    content = _content(value)
    assert content is not None
    path = "file.profile" if "profile" in _object(value) else "file.data" if "data" in _object(value) else "file"
    fields = Fields(content, path, reading.problems)
    name, description = fields.text("name"), fields.text("description", required=False, max_length=10_000)
    model = fields.text("model", required=False) or fields.text("model_id", required=False)
    layer = fields.count("layer", minimum=0, maximum=MAX_LAYER)
    named = fields.text("sae", required=False) or fields.text("sae_id", required=False)
    sae = find_sae(reading, SAEHint(named, layer), f"{path}.sae")
    edits = [edit for number in _numbers(fields) for edit in _edit(reading, sae, number, fields)]
    reading.left_out([other for other in fields.others() if other not in _BOOKKEEPING])
    if model:
        reading.doubt(
            f"The file was exported for the model {model[:100]}; it is imported for {reading.saes.model_name}."
        )
    return [ImportedProfile(path, name, description, tuple(edits))]


_BOOKKEEPING = frozenset({"version", "created_at", "updated_at", "id", "is_active"})


def _object(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _content(value: object) -> dict[str, object] | None:
    outer = _object(value)
    for name in ("profile", "data"):
        if isinstance(inner := outer.get(name), dict):
            return inner
    return outer or None


def _numbers(fields: Fields) -> list[str]:
    """Return the keys of ``steering`` that are within bounds."""
    steering = fields.child("steering")
    names = steering.others()
    if len(names) > MAX_EDITS:
        steering.report("", f"Expected at most {MAX_EDITS} features, got {len(names)}.")
        return []
    return names


def _edit(reading: ImportContext, sae: SAE | None, key: str, fields: Fields) -> list[ImportedEdit]:
    steering = fields.child("steering")
    path = f"{steering.path}.{key[:50]}"
    index = int(key) if key.isdecimal() and key.isascii() and len(key) < 10 else key
    if key not in steering:
        steering.report(key[:50], "Expected a number, got nothing.")
        return []
    strength = steering.number(key, limit=MAX_STRENGTH, default=0.0)
    return step(reading, sae, index, path, strength)
