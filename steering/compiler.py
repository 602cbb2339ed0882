"""Compiles a profile's edits into an intervention of the hook protocol.

Additions through SAEs that do not normalise their input, and plain vectors, fold into one vector per site and phase.
Everything else becomes rules that read the residual through the SAE. The result does not depend on the order of the
edits, bit by bit: they are sorted by effect, summed in float64 and rounded once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from inference.interventions import FeatureRule, Intervention, Phase, ReaderEdit, Site, VectorEdit
from steering.saes.sae import SparseAutoencoder
from steering.spec.conflicts import check_conflicts
from steering.spec.edit import EditSpec, FeatureTarget
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.rendering import effect_key, fingerprint

if TYPE_CHECKING:
    from torch import Tensor

SAEs = Mapping[str, SparseAutoencoder]
"""Loaded SAEs by checksum."""

_RulesByReader = dict[tuple[Site, str], dict[int, FeatureRule]]


def compile_edits(edits: Sequence[EditSpec], saes: SAEs, skip_token_ids: frozenset[int] = frozenset()) -> Intervention:
    """The intervention that has the edits' effect; edits without effect leave nothing behind.

    ``saes`` holds at least the SAEs that the edits name. InvalidSpecError for contradictory edits, and for features or
    widths that an SAE does not have.
    """
    check_conflicts(edits)
    _check_features(edits, saes)
    _check_reading(edits, saes)
    active = sorted((edit for edit in edits if not edit.is_no_op), key=effect_key)
    compiled: tuple[VectorEdit | ReaderEdit, ...] = (*_compile_vectors(active, saes), *_compile_rules(active, saes))
    return Intervention(fingerprint=fingerprint(edits), edits=compiled, skip_token_ids=skip_token_ids)


_READING = frozenset({"scale", "clamp", "ablate", "at_least", "at_most"})  # they depend on the feature's activation


def _check_reading(edits: Sequence[EditSpec], saes: SAEs) -> None:
    """What a transcoder writes can be used; what it reads is not at its site."""
    problems = [
        Problem(f"edits[{number}].operation", _unreadable(edit.target.sae.name, edit.operation))
        for number, edit in enumerate(edits)
        if isinstance(edit.target, FeatureTarget)
        and edit.operation in _READING
        and not saes[edit.target.sae.checksum].reads_its_site
    ]
    if problems:
        raise InvalidSpecError(problems)


def _unreadable(name: str, operation: str) -> str:
    return f"{name} is a transcoder: it reads the MLP's input, so {operation} is not possible at its output; use add."


def _check_features(edits: Sequence[EditSpec], saes: SAEs) -> None:
    problems = []
    for number, edit in enumerate(edits):
        if not isinstance(edit.target, FeatureTarget):
            continue
        sae = saes[edit.target.sae.checksum]
        if not 0 <= edit.target.index < sae.d_sae:
            message = f"{edit.target.sae.name} has features 0 to {sae.d_sae - 1}, not {edit.target.index}."
            problems.append(Problem(f"edits[{number}].feature.index", message, "invalid_feature"))
    if problems:
        raise InvalidSpecError(problems)


def _compile_vectors(edits: Sequence[EditSpec], saes: SAEs) -> tuple[VectorEdit, ...]:
    prompt = _sum_vectors((edit for edit in edits if edit.phase != "generation"), saes)
    generation = _sum_vectors((edit for edit in edits if edit.phase != "prompt"), saes)
    compiled: list[VectorEdit] = []
    for site in sorted(prompt.keys() | generation.keys()):
        before, after = prompt.get(site), generation.get(site)
        if before is not None and after is not None and torch.equal(before, after):
            compiled.append(VectorEdit(site, before, "both"))
            continue
        phases: tuple[tuple[Phase, Tensor | None], ...] = (("prompt", before), ("generation", after))
        compiled += [VectorEdit(site, vector, phase) for phase, vector in phases if vector is not None]
    return tuple(compiled)


def _sum_vectors(edits: Iterable[EditSpec], saes: SAEs) -> dict[Site, Tensor]:
    """Float32 sums per site; sites where they cancel out are left out."""
    sums: dict[Site, Tensor] = {}
    for edit in edits:
        if _is_foldable(edit, saes):
            step = edit.raw * _direction(edit, saes)
            site = edit.target.site
            sums[site] = sums[site] + step if site in sums else step
    return {site: total.to(torch.float32) for site, total in sums.items() if bool(total.any())}


def _is_foldable(edit: EditSpec, saes: SAEs) -> bool:
    if edit.operation != "add":
        return False
    return not (isinstance(edit.target, FeatureTarget) and saes[edit.target.sae.checksum].is_normalized)


def _direction(edit: EditSpec, saes: SAEs) -> Tensor:
    """``[d]`` float64."""
    if isinstance(edit.target, FeatureTarget):
        return saes[edit.target.sae.checksum].decoder_row(edit.target.index).double()
    return torch.tensor(edit.target.values, dtype=torch.float64)


def _compile_rules(edits: Sequence[EditSpec], saes: SAEs) -> tuple[ReaderEdit, ...]:
    prompt = _merge_rules((edit for edit in edits if edit.phase != "generation"), saes)
    generation = _merge_rules((edit for edit in edits if edit.phase != "prompt"), saes)
    compiled: list[ReaderEdit] = []
    for site, checksum in sorted(prompt.keys() | generation.keys()):
        before = frozenset(prompt.get((site, checksum), {}).values())
        after = frozenset(generation.get((site, checksum), {}).values())
        phases: tuple[tuple[Phase, frozenset[FeatureRule]], ...] = (
            ("both", before & after),
            ("prompt", before - after),
            ("generation", after - before),
        )
        for phase, rules in phases:
            if rules:
                ordered = tuple(sorted(rules, key=lambda rule: rule.feature))
                compiled.append(ReaderEdit(site, saes[checksum], ordered, phase))
    return tuple(compiled)


def _merge_rules(edits: Iterable[EditSpec], saes: SAEs) -> _RulesByReader:
    """One rule per feature: the edits that may share one (add and scale, at_least and at_most) set different parts."""
    merged: _RulesByReader = defaultdict(dict)
    for edit in edits:
        if isinstance(edit.target, FeatureTarget) and not _is_foldable(edit, saes):
            rules = merged[edit.target.site, edit.target.sae.checksum]
            index = edit.target.index
            rules[index] = _with_edit(rules.get(index, FeatureRule(index)), edit)
    return merged


def _with_edit(rule: FeatureRule, edit: EditSpec) -> FeatureRule:
    raw = edit.raw
    match edit.operation:
        case "add":
            return replace(rule, offset=rule.offset + raw)
        case "scale":
            return replace(rule, gain=raw)
        case "clamp" | "ablate":
            return replace(rule, gain=0.0, offset=raw)
        case "at_least":
            return replace(rule, lower=raw)
        case "at_most":
            return replace(rule, upper=raw)
