"""Edits of tools that add rows of the decoder as they are: a number times ``W_dec[i]``, on every token."""

from __future__ import annotations

from dataclasses import replace

from steering.exchange.plan import ImportContext, ImportedEdit
from steering.exchange.sae_choice import SAEHint
from steering.models import SAE
from steering.spec.edit import EditSpec, FeatureTarget, Operation
from steering.spec.units import MAX_STRENGTH


def find_sae(reading: ImportContext, hint: SAEHint, path: str) -> SAE | None:
    """Return the SAE whose decoder rows are meant. SAEs that rescale their input are refused: they would rescale the
    step too."""
    sae = reading.saes.find(hint, path, reading.problems, reading.doubts)
    if sae is not None and sae.normalization != "none":
        reading.refuse(
            path,
            f"{sae} rescales what it reads ({sae.normalization}), and so would be every step; the file means rows of"
            " the decoder as they are. Set the strengths again in the console.",
        )
        return None
    return sae


def step(
    reading: ImportContext,
    sae: SAE | None,
    index: object,
    path: str,
    strength: float,
    *,
    operation: Operation = "add",
    index_path: str = "",
    special_tokens: bool = True,
) -> list[ImportedEdit]:
    """Return the edit as a list of one; empty after a problem was reported."""
    target = reading.saes.feature(sae, index, index_path or path, reading.problems) if sae else None
    if target is None or not _is_usable(reading, strength, path):
        return []
    return [ImportedEdit(path, raw_edit(target, operation, strength, special_tokens=special_tokens))]


def raw_edit(
    target: FeatureTarget, operation: Operation, strength: float, *, special_tokens: bool, lower: float | None = None
) -> EditSpec:
    """Formats that leave no special token alone know nothing of attention sinks either."""
    edit = EditSpec(target, operation, strength, "raw", special_tokens=special_tokens, lower=lower)
    return replace(edit, sink_tokens=special_tokens)


def _is_usable(reading: ImportContext, strength: float, path: str) -> bool:
    if abs(strength) <= MAX_STRENGTH:
        return True
    reading.refuse(path, f"The strength comes to {strength:g}; at most {MAX_STRENGTH:g} is allowed.")
    return False
