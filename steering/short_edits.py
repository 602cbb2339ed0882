"""Edits as people write them: a feature by its SAE's name and its index, not with all that a version keeps of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inference.models import LanguageModel
from steering.inline import FeaturePlace, feature_json, feature_place, feature_targets, named_sae
from steering.models import SAE
from steering.spec.edit import EditSpec, FeatureTarget
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.parsing import MAX_EDITS, parse_edits, with_request_defaults


def read_short_edits(model: LanguageModel, items: Sequence[Any]) -> tuple[EditSpec, ...]:
    """Edits with ``sae`` and ``index``, or in a version's own form; InvalidSpecError names what is wrong by field.

    The model's only SAE need not be named. A gate is written in the same way: ``{"index": 3, "above": 0.2}``.
    """
    if len(items) > MAX_EDITS:
        raise InvalidSpecError([Problem("edits", f"Expected at most {MAX_EDITS} edits, found {len(items)}.")])
    saes = {sae.name: sae for sae in SAE.objects.filter(model=model)}
    full = [_with_places(item, f"edits[{number}]", model.name, saes) for number, item in enumerate(items)]
    targets = feature_targets([place for edit in full for place in _places_in(edit)])
    return parse_edits([with_request_defaults(_filled(edit, targets)) for edit in full])


def _with_places(item: Any, path: str, model_name: str, saes: dict[str, SAE]) -> Any:
    """In the form of a version's JSON, with places where features belong; what else is wrong, the parser names."""
    if not isinstance(item, dict):
        return item
    full = _with_place(item, path, model_name, saes)
    gate = full.get("gate")
    if isinstance(gate, dict):
        full["gate"] = _with_place(gate, f"{path}.gate", model_name, saes)
    return full


def _with_place(item: dict[str, Any], path: str, model_name: str, saes: dict[str, SAE]) -> dict[str, Any]:
    if "index" not in item:
        return dict(item)
    rest = {name: value for name, value in item.items() if name not in {"sae", "index"}}
    sae = named_sae(item.get("sae"), f"{path}.sae", model_name, saes)
    return {**rest, "feature": feature_place(sae, item["index"], f"{path}.index")}


def _places_in(edit: Any) -> list[FeaturePlace]:
    objects = [edit, edit.get("gate")] if isinstance(edit, dict) else []
    found = [one.get("feature") for one in objects if isinstance(one, dict)]
    return [place for place in found if isinstance(place, FeaturePlace)]


def _filled(edit: Any, targets: Mapping[FeaturePlace, FeatureTarget]) -> Any:
    if not isinstance(edit, dict):
        return edit
    filled = {name: _filled(value, targets) if name == "gate" else value for name, value in edit.items()}
    if isinstance(place := edit.get("feature"), FeaturePlace):
        filled["feature"] = feature_json(targets[place])
    return filled
