"""The CSV files of lm-evaluation-harness' ``steered`` model: one row per feature.

``add`` adds ``steering_coefficient`` times the decoder's row. ``clamp`` moves the residual along the row until its
projection, counted from the decoder's bias, is the coefficient: with ``u`` the row at length 1, ``(h - b) u = c``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from steering.exchange.decoder_steps import find_sae, raw_edit, step
from steering.exchange.documents import Table
from steering.exchange.plan import ImportContext, ImportedEdit, ImportedProfile
from steering.exchange.sae_choice import SAEHint
from steering.models import SAE
from steering.spec.edit import FeatureTarget

NAME = "lm-evaluation-harness"
_COLUMNS = ("feature_index", "steering_coefficient", "sparse_model", "hookpoint")
_KNOWN = frozenset({*_COLUMNS, "loader", "action", "sae_id", "description"})
_LAYER = re.compile(r"(?:^|.*\.)(?:layers|blocks|h)\.(\d{1,4})(?:\..*)?")
_LOADERS = ("sparsify", "sae_lens")
BiasProjection = Callable[[SAE, int], float]
"""``b u``: the decoder's bias along a feature's row at length 1. Reads the SAE's weights."""


def recognises(value: object) -> bool:
    return isinstance(value, Table) and {"feature_index", "steering_coefficient"} <= set(value.header)


class LmEvalReader:
    def __init__(self, bias_projection: BiasProjection) -> None:
        self._bias_projection = bias_projection

    def read(self, value: object, reading: ImportContext) -> list[ImportedProfile]:
        assert isinstance(value, Table)
        _check_header(value, reading)
        hooks = [row.get("hookpoint", "") for row in value.rows]
        if len(set(hooks)) < len(hooks):
            reading.doubt("The harness applies only the last row of each hookpoint; here all rows apply.")
        edits = [edit for number, row in enumerate(value.rows) for edit in self._row(row, f"row {number + 1}", reading)]
        return [ImportedProfile("file", reading.stem, "", tuple(edits))]

    def _row(self, row: dict[str, str], path: str, reading: ImportContext) -> list[ImportedEdit]:
        loader, action = row.get("loader", "sparsify"), row.get("action", "add")
        if loader not in _LOADERS:
            reading.refuse(f"{path}.loader", f"Expected one of {', '.join(_LOADERS)}, got {loader[:60]!r}.")
        if action not in ("add", "clamp"):
            reading.refuse(f"{path}.action", f"Expected add or clamp, got {action[:60]!r}.")
            return []
        hint = _hint(row)
        sae = find_sae(reading, hint, f"{path}.sparse_model")
        strength = _number(row.get("steering_coefficient", ""), f"{path}.steering_coefficient", reading)
        index = _index(row.get("feature_index", ""))
        if strength is None:
            return []
        if action == "add":
            return step(reading, sae, index, path, strength, index_path=f"{path}.feature_index")
        target = reading.saes.feature(sae, index, f"{path}.feature_index", reading.problems) if sae else None
        return [] if target is None or sae is None else [self._clamp(target, sae, path, strength)]

    def _clamp(self, target: FeatureTarget, sae: SAE, path: str, value: float) -> ImportedEdit:
        end = value + self._bias_projection(sae, target.index)
        return ImportedEdit(path, raw_edit(target, "projection_cap", end, special_tokens=True, lower=end))


def _check_header(table: Table, reading: ImportContext) -> None:
    for name in _COLUMNS:
        if name not in table.header:
            reading.refuse("line 1", f"The column {name} is missing.")
    reading.left_out([name for name in table.header if name and name not in _KNOWN])


def _hint(row: dict[str, str]) -> SAEHint:
    """Return the SAE of a row. The layer is that of the hookpoint, or else that in the SAE id of SAELens."""
    match = _LAYER.fullmatch(row.get("hookpoint", "")) or _LAYER.fullmatch(row.get("sae_id", ""))
    return SAEHint(row.get("sparse_model", ""), int(match[1]) if match else None)


def _index(text: str) -> object:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else text


def _number(text: str, path: str, reading: ImportContext) -> float | None:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        reading.refuse(path, f"Expected a finite number, got {text[:60]!r}.")
        return None
    return number
