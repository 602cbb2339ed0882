"""Edits in formats that add unscaled decoder rows: a number times ``W_dec[i]``, on every token."""

from __future__ import annotations

from dataclasses import replace

from steering.exchange.plan import ImportContext, ImportedEdit
from steering.exchange.sae_choice import SAEHint
from steering.models import SAE
from steering.spec.edit import EditSpec, FeatureTarget, Operation
from steering.spec.units import MAX_STRENGTH


def find_sae(reading: ImportContext, hint: SAEHint, path: str) -> SAE | None:
    """Return the SAE of the decoder rows. SAEs that rescale their input are refused, because they would rescale the
    steps too."""
    sae = reading.saes.find(hint, path, reading.problems, reading.doubts)
    if sae is not None and sae.normalization != "none":
        reading.refuse(
            path,
            f"{sae} rescales its input ({sae.normalization}), and therefore every step; the file's steps are in "
            "multiples of unscaled decoder rows. Set the strengths again in the console.",
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
    """Return a raw edit. If it applies to special tokens, it also applies to attention sinks."""
    edit = EditSpec(target, operation, strength, "raw", special_tokens=special_tokens, lower=lower)
    return replace(edit, sink_tokens=special_tokens)


def _is_usable(reading: ImportContext, strength: float, path: str) -> bool:
    if abs(strength) <= MAX_STRENGTH:
        return True
    reading.refuse(path, f"The resulting strength is {strength:g}; the limit is {MAX_STRENGTH:g}.")
    return False
