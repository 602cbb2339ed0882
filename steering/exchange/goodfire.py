"""Goodfire's variants: ``{"base_model", "edits": [{"index_in_sae", "value", "mode"}], "scopes"}``.

What a value is a multiple of was never published. It is read as multiples of the feature's maximal activation, which is
what its usual range of -1 to 1 suggests, and the import reports it.
"""

from __future__ import annotations

from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile
from steering.exchange.sae_choice import SAEHint
from steering.models import SAE
from steering.spec.edit import EditSpec, Operation
from steering.spec.fields import Fields
from steering.spec.parsing import MAX_EDITS
from steering.spec.units import MAX_STRENGTH

NAME = "Goodfire"
_MODES: dict[str, Operation] = {"nudge": "add", "pin": "clamp"}
_DOUBT = (
    "Goodfire does not document the unit of its values; they are imported as multiples of the max activation. Check "
    "the relative sizes and try the profile before you publish it."
)


def recognises(value: object) -> bool:
    return isinstance(value, dict) and "base_model" in value and "edits" in value


def read(value: object, reading: ImportContext) -> list[ImportedProfile]:
    fields = Fields(value, "file", reading.problems)
    model = fields.text("base_model")
    if fields.value("scopes"):
        fields.report("scopes", "Conditional edits are not supported; remove them, and set gates in the admin.")
    children = fields.children("edits", max_length=MAX_EDITS)
    sae = reading.saes.find(SAEHint(format="goodfire"), "file.base_model", reading.problems, reading.doubts)
    edits = [edit for child in children for edit in _edit(child, reading, sae)]
    reading.left_out(fields.others())
    reading.doubt(_DOUBT)
    reading.doubt(f"The file was exported for the model {model[:100]}; it is imported for {reading.saes.model_name}.")
    return [ImportedProfile("file", reading.stem, "", tuple(edits))]


def _edit(fields: Fields, reading: ImportContext, sae: SAE | None) -> list[ImportedEdit]:
    for name in ("feature_id", "feature_label"):
        fields.text(name, required=False)
    fields.number_or_none("max_activation_strength", limit=MAX_STRENGTH)
    operation = _MODES[fields.choice("mode", tuple(_MODES), "nudge")]
    if "value" not in fields:
        fields.report("value", "Expected a number, got nothing.")
    value = fields.number("value", limit=MAX_STRENGTH, default=0.0)
    index = fields.value("index_in_sae")
    fields.refuse_others()
    target = reading.saes.feature(sae, index, f"{fields.path}.index_in_sae", reading.problems) if sae else None
    return [] if target is None else [ImportedEdit(fields.path, EditSpec(target, operation, value, "max_act"))]
