"""Edits as people write them: a feature by its SAE's name and its index, not with all that a version keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inference.models import LanguageModel
from steering.inline import feature_at, named_sae
from steering.models import SAE
from steering.spec.edit import EditSpec
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.parsing import MAX_EDITS, parse_edits
from steering.spec.rendering import edit_to_json


def read_short_edits(model: LanguageModel, items: Sequence[Any]) -> tuple[EditSpec, ...]:
    """Edits with ``sae`` and ``index``, or in a version's own form; InvalidSpecError names what is wrong by field.

    The model's only SAE need not be named. A gate is written in the same way: ``{"index": 3, "above": 0.2}``.
    """
    if len(items) > MAX_EDITS:
        raise InvalidSpecError([Problem("edits", f"Expected at most {MAX_EDITS} edits, found {len(items)}.")])
    saes = {sae.name: sae for sae in SAE.objects.filter(model=model)}
    reader = _Reader(model.name, saes)
    return parse_edits([reader.edit(item, f"edits[{number}]") for number, item in enumerate(items)])


class _Reader:
    def __init__(self, model_name: str, saes: dict[str, SAE]) -> None:
        self._model_name = model_name
        self._saes = saes

    def edit(self, item: Any, path: str) -> Any:
        """In the form of a version's JSON; what else is wrong, the parser names."""
        if not isinstance(item, dict):
            return item
        full = self._with_feature(item, path)
        gate = full.get("gate")
        if isinstance(gate, dict):
            full["gate"] = self._with_feature(gate, f"{path}.gate")
        return full

    def _with_feature(self, item: dict[str, Any], path: str) -> dict[str, Any]:
        if "index" not in item:
            return dict(item)
        rest = {name: value for name, value in item.items() if name not in {"sae", "index"}}
        sae = named_sae(item.get("sae"), f"{path}.sae", self._model_name, self._saes)
        target = feature_at(sae, item["index"], f"{path}.index")
        return {**rest, "feature": edit_to_json(EditSpec(target, "add", 0.0, "raw"))["feature"]}
