"""miStudio's cluster definitions (``mistudio.cluster-definition``, version 1), and bundles of them.

A member's ``strength`` multiplies its decoder row. Where it is not negative, ``sign`` gives the direction; a negative
one has its direction already. ``budget.intensity`` multiplies all of them.
"""

from __future__ import annotations

from steering.exchange.decoder_steps import find_sae, step
from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile
from steering.exchange.sae_choice import SAEHint
from steering.models import SAE
from steering.saes.config import MAX_D_IN
from steering.spec.fields import Fields
from steering.spec.parsing import MAX_D_SAE, MAX_LAYER

NAME = "miStudio"
DEFINITION = "mistudio.cluster-definition"
BUNDLE = "mistudio.cluster-bundle"
MAX_MEMBERS = 20
MAX_DEFINITIONS = 50
_MAX_STRENGTH = 300.0
_MAX_INTENSITY = 2.0
# Its hook names and our sites; other names are refused.
_SITES = {
    "resid_post": "resid_post", "hook_resid_post": "resid_post", "residual": "resid_post",
    "resid_pre": "resid_pre", "hook_resid_pre": "resid_pre",
    "mlp": "mlp_raw", "mlp_out": "mlp_out", "hook_mlp_out": "mlp_out",
    "hook_z": "attn_out",
}  # fmt: skip


def recognises(value: object) -> bool:
    return isinstance(value, dict) and value.get("kind") in (DEFINITION, BUNDLE)


def read(value: object, reading: ImportContext) -> list[ImportedProfile]:
    fields = Fields(value, "file", reading.problems)
    if fields.text("kind") == BUNDLE:
        _version(fields)
        definitions = fields.children("definitions", max_length=MAX_DEFINITIONS)
        reading.left_out(fields.others())
        return [_definition(child, reading) for child in definitions]
    return [_definition(fields, reading)]


def _version(fields: Fields) -> None:
    if fields.text("schema_version") != "1":
        fields.report(
            "schema_version", "Only version 1 is supported; export the file in that version.", "unsupported_version"
        )


def _definition(fields: Fields, reading: ImportContext) -> ImportedProfile:
    fields.text("kind", required=False)
    _version(fields)
    name, text = fields.text("name", max_length=120), fields.text("narrative", required=False, max_length=10_000)
    sae = _sae(fields, reading)
    intensity = _intensity(fields, reading)
    members = fields.children("members", max_length=MAX_MEMBERS)
    edits = [edit for member in members for edit in _member(member, reading, sae, intensity)]
    if "model" in fields:
        _model(fields.child("model"), reading)
    reading.left_out([other for other in fields.others() if other not in ("provenance", "display_token")])
    return ImportedProfile(fields.path, name, text, tuple(edits))


def _model(model: Fields, reading: ImportContext) -> None:
    if hf_id := model.text("hf_id", required=False):
        reading.doubt(
            f"The file was exported for the model {hf_id[:100]}; it is imported for {reading.saes.model_name}."
        )


def _sae(fields: Fields, reading: ImportContext) -> SAE | None:
    sae = _optional(fields, "sae", reading)
    hook = sae.text("hook_type", required=False)
    if hook and hook not in _SITES:
        sae.report("hook_type", f"Expected one of {', '.join(_SITES)}, got {hook[:60]!r}.")
    named = sae.text("source_hint", required=False).removeprefix("hf:")
    hint = SAEHint(
        named or sae.text("mistudio_sae_id", required=False),
        layer=sae.count("layer", minimum=0, maximum=MAX_LAYER),
        site=_SITES.get(hook),
        d_sae=sae.count("n_features", minimum=1, maximum=MAX_D_SAE),
        d_in=sae.count("d_model", minimum=1, maximum=MAX_D_IN),
    )
    return find_sae(reading, hint, sae.path)


def _optional(fields: Fields, name: str, reading: ImportContext) -> Fields:
    """Return an optional object."""
    value = fields.value(name)
    return Fields({} if value is None else value, f"{fields.path}.{name}", reading.problems)


def _intensity(fields: Fields, reading: ImportContext) -> float:
    budget = _optional(fields, "budget", reading)
    intensity = budget.number("intensity", limit=_MAX_INTENSITY, default=1.0)
    if intensity < 0:
        budget.report("intensity", f"Expected 0 to {_MAX_INTENSITY:g}, got {intensity:g}.")
    if intensity != 1.0:
        reading.doubt(f"The intensity {intensity:g} is multiplied into the strengths.")
    return intensity


def _member(member: Fields, reading: ImportContext, sae: SAE | None, intensity: float) -> list[ImportedEdit]:
    sign = member.integer("sign", minimum=-1, maximum=1) if "sign" in member else 1
    if sign == 0:
        member.report("sign", "Expected 1 or -1, got 0.")
    strength = member.number("strength", limit=_MAX_STRENGTH, default=0.0)
    if "strength" not in member:
        member.report("strength", "Expected a number, got nothing.")
    signed = strength if strength < 0 else sign * strength
    return step(
        reading, sae, member.value("feature_idx"), member.path, intensity * signed,
        index_path=f"{member.path}.feature_idx",
    )  # fmt: skip
