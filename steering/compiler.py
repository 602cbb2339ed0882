"""Compiles a profile's edits into an intervention of the hook protocol.

Additions without a gate, of plain vectors and through SAEs that do not normalise their input, fold into one vector per
site and set of tokens. Directions that are removed there without a gate (``orthogonal`` 0) become one orthonormal basis
of all of them, so that each is gone afterwards however similar they are. Everything else becomes rules that read the
residual through the SAE or along the direction. The result does not depend on the order of the edits, bit by bit: they
are sorted by effect, and summed in float64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypedDict

import torch

from inference.interventions import (
    Edit,
    FeatureReader,
    FeatureRule,
    Gate,
    InertEdit,
    Intervention,
    NormEdit,
    Phase,
    ReaderEdit,
    Removal,
    Site,
    VectorEdit,
    Window,
)
from inference.segments import Segment
from steering.saes.direction import Cosine, Direction, Negated, Reconstruction
from steering.saes.sae import SparseAutoencoder
from steering.spec.checks import check_conflicts
from steering.spec.edit import (
    DIRECTION_OPERATIONS,
    EditSpec,
    FeatureTarget,
    GateSpec,
    Scope,
    SiteTarget,
    VectorTarget,
    segments_of,
    windows_of,
)
from steering.spec.errors import InvalidSpecError, Problem
from steering.spec.rendering import effect_key, fingerprint

if TYPE_CHECKING:
    from torch import Tensor

SAEs = Mapping[str, SparseAutoencoder]
"""Loaded SAEs by checksum."""


class TokenChoice(TypedDict):
    """The fields of :class:`~inference.interventions.ChosenTokens`."""

    phase: Phase
    window: Window
    segments: frozenset[Segment]
    segment_window: Window
    special_tokens: bool
    sink_tokens: bool
    norm_limit: float


@dataclass(frozen=True, slots=True, order=True)
class _Tokens:
    """A site, and the tokens to which edits apply together there."""

    site: Site
    phase: Phase
    after: int
    first: float  # infinite where the window is open
    special_tokens: bool
    scope: Scope
    sink_tokens: bool
    norm_limit: float

    @classmethod
    def of(cls, edit: EditSpec) -> _Tokens:
        first = float("inf") if edit.window.first is None else edit.window.first
        limit = float("inf") if edit.norm_limit is None else edit.norm_limit
        place = (edit.target.site, edit.phase, edit.window.after, first)
        return cls(*place, edit.special_tokens, edit.scope, edit.sink_tokens, limit)

    @property
    def choice(self) -> TokenChoice:
        window, segment_window = windows_of(
            self.scope, Window(self.after, None if self.first == float("inf") else int(self.first))
        )
        return {
            "phase": self.phase,
            "window": window,
            "segments": segments_of(self.scope),
            "segment_window": segment_window,
            "special_tokens": self.special_tokens,
            "sink_tokens": self.sink_tokens,
            "norm_limit": self.norm_limit,
        }


def compile_edits(edits: Sequence[EditSpec], saes: SAEs, skip_token_ids: frozenset[int] = frozenset()) -> Intervention:
    """Compile edits into an intervention, without the edits that change nothing.

    ``saes`` holds at least the SAEs that the edits name. Raise InvalidSpecError for contradictory edits, and for
    features or widths that an SAE does not have.
    """
    check_conflicts(edits)
    _check_features(edits, saes)
    _check_directions(edits, saes)
    acting = sorted((edit for edit in edits if not edit.is_no_op), key=effect_key)
    active = [replace(edit, window=window, ranges=()) for edit in acting for window in edit.windows]
    removals, others = _split_removals(active)
    compiled: tuple[Edit, ...] = (
        *_compile_vectors([edit for edit in others if _is_foldable(edit, saes)], saes),
        *_compile_rules([edit for edit in others if not _is_foldable(edit, saes)], removals, saes),
        *_compile_norms(active),
    )
    needed = frozenset(part for edit in active if edit.scope == "thinking" for part in segments_of(edit.scope))
    joint = tuple(Removal(t.site, len(mine), len(_basis(mine, saes))) for t, mine in sorted(removals.items()))
    inert = tuple(InertEdit(number, reason) for number, edit in enumerate(edits) if (reason := _why_inert(edit, saes)))
    return Intervention(fingerprint(edits), compiled, skip_token_ids, needed, joint, inert)


def _why_inert(edit: EditSpec, saes: SAEs) -> str:
    """Return why the edit can never change anything; empty if it can."""
    if edit.is_no_op:
        return f"`{edit.operation}` with {edit.raw:g} changes nothing."
    if isinstance(edit.target, SiteTarget) or bool(_direction(edit, saes).any()):
        return ""
    if isinstance(edit.target, FeatureTarget):
        return f"Feature {edit.target.index} of {edit.target.sae.name} has a decoder row of zeros."
    return "The vector is zero."


def _check_features(edits: Sequence[EditSpec], saes: SAEs) -> None:
    problems = []
    for number, edit in enumerate(edits):
        targets = ((edit.target, "feature"), (edit.gate.target if edit.gate else None, "gate.feature"))
        for target, field in targets:
            if isinstance(target, FeatureTarget) and not 0 <= target.index < _sae(target, saes).d_sae:
                last = _sae(target, saes).d_sae - 1
                message = f"{target.sae.name} has features 0 to {last}, got {target.index}."
                problems.append(Problem(f"edits[{number}].{field}.index", message, "invalid_feature"))
    if problems:
        raise InvalidSpecError(problems)


def _check_directions(edits: Sequence[EditSpec], saes: SAEs) -> None:
    """Refuse features with a decoder row of zeros: they have no direction."""
    problems = [
        Problem(f"edits[{number}].feature.index", _no_direction(edit.target, edit.operation), "invalid_feature")
        for number, edit in enumerate(edits)
        if edit.operation in DIRECTION_OPERATIONS
        and isinstance(edit.target, FeatureTarget)
        and not bool(_sae(edit.target, saes).decoder_row(edit.target.index).any())
    ]
    if problems:
        raise InvalidSpecError(problems)


def _no_direction(target: FeatureTarget, operation: str) -> str:
    return f"Feature {target.index} of {target.sae.name} has a decoder row of zeros, so {operation} has no direction."


# Vectors


def _is_foldable(edit: EditSpec, saes: SAEs) -> bool:
    if edit.operation != "add" or edit.is_gated:
        return False
    return not (isinstance(edit.target, FeatureTarget) and _sae(edit.target, saes).is_normalized)


def _compile_vectors(edits: Sequence[EditSpec], saes: SAEs) -> list[VectorEdit]:
    """Return one float64 sum per site and tokens; sums of zero are left out."""
    sums: dict[_Tokens, Tensor] = {}
    for edit in edits:
        step = edit.raw * _direction(edit, saes)
        tokens = _Tokens.of(edit)
        sums[tokens] = sums[tokens] + step if tokens in sums else step
    return [
        VectorEdit(t.site, total, **t.choice)
        for t, total in sorted(sums.items(), key=lambda item: item[0])
        if bool(total.float().any())
    ]


def _direction(edit: EditSpec, saes: SAEs) -> Tensor:
    """Return ``[d]`` float64."""
    if isinstance(edit.target, FeatureTarget):
        return _sae(edit.target, saes).decoder_row(edit.target.index).double()
    assert isinstance(edit.target, VectorTarget)
    return torch.tensor(edit.target.values, dtype=torch.float64)


# Removed directions

_Removals = Mapping[_Tokens, Sequence[EditSpec]]
_SAME_DIRECTION = 1e-5  # smaller singular values are rounding errors of float32


def _split_removals(edits: Sequence[EditSpec]) -> tuple[_Removals, list[EditSpec]]:
    """Separate edits that remove several directions from the same tokens from all others."""
    found: dict[_Tokens, list[EditSpec]] = defaultdict(list)
    for edit in edits:
        if edit.operation == "orthogonal" and edit.raw == 0 and not edit.is_gated:
            found[_Tokens.of(edit)].append(edit)
    several = {tokens: mine for tokens, mine in found.items() if len(mine) > 1}
    joint = {id(edit) for mine in several.values() for edit in mine}
    return several, [edit for edit in edits if id(edit) not in joint]


def _basis(edits: Sequence[EditSpec], saes: SAEs) -> Tensor:
    """Return ``[rank, d]`` float64: orthonormal, with the same span as the edits' directions."""
    directions = torch.stack([_direction(edit, saes) for edit in edits])
    units = directions / directions.norm(dim=1, keepdim=True)
    _, sizes, basis = torch.linalg.svd(units, full_matrices=False)
    independent: Tensor = basis[sizes > _SAME_DIRECTION]
    return independent


# Rules


def _compile_rules(edits: Sequence[EditSpec], removals: _Removals, saes: SAEs) -> list[ReaderEdit]:
    """Return one edit per site, tokens and reader, with its rules in the order of their effects."""
    rules: dict[tuple[_Tokens, str, Site], list[FeatureRule]] = defaultdict(list)
    readers: dict[str, FeatureReader] = {}
    found = [(_Tokens.of(edit), *_rule(edit, saes)) for edit in edits if edit.operation != "norm_preserving"]
    for tokens, mine in removals.items():
        found += [(tokens, tokens.site, Direction(vector), FeatureRule(0, gain=0.0)) for vector in _basis(mine, saes)]
    for tokens, site, reader, rule in found:
        readers[reader.key] = reader
        rules[tokens, reader.key, site].append(rule)
    return [
        ReaderEdit(t.site, readers[key], tuple(mine), None if site == t.site else site, **t.choice)
        for (t, key, site), mine in sorted(rules.items(), key=lambda item: item[0])
    ]


def _rule(edit: EditSpec, saes: SAEs) -> tuple[Site, FeatureReader, FeatureRule]:
    """Return the rule, its reader, and the site where that reads."""
    gates = _gates(edit, saes)
    if isinstance(edit.target, SiteTarget):
        assert edit.target.sae is not None, "the parser checks it"
        sae = saes[edit.target.sae.checksum]
        return sae.read_site(edit.target.site), Reconstruction(sae), FeatureRule(0, offset=1.0, gates=gates)
    if edit.operation in DIRECTION_OPERATIONS or isinstance(edit.target, VectorTarget):
        return edit.target.site, *_direction_rule(edit, saes, gates)
    assert isinstance(edit.target, FeatureTarget)
    raw, sae = edit.raw, _sae(edit.target, saes)
    rule = {
        "add": {"offset": raw},
        "scale": {"gain": raw},
        "clamp": {"gain": 0.0, "offset": raw},
        "ablate": {"gain": 0.0},
        "at_least": {"lower": raw},
        "at_most": {"upper": raw},
    }[edit.operation]
    whole = FeatureRule(edit.target.index, **rule, only_if_active=edit.only_if_active, gates=gates)
    return sae.read_site(edit.target.site), sae, whole


def _direction_rule(edit: EditSpec, saes: SAEs, gates: tuple[Gate, ...]) -> tuple[FeatureReader, FeatureRule]:
    """Return the direction at length 1; the vector of a gated addition is returned as it is."""
    if edit.only_if_active:
        assert isinstance(edit.target, FeatureTarget)
        sae = _sae(edit.target, saes)
        there = sae.read_site(edit.target.site)
        gates = (*gates, Gate(sae, edit.target.index, 0.0, None if there == edit.target.site else there))
    vector, raw = _direction(edit, saes), edit.raw
    if edit.operation == "add":
        return Direction(vector), FeatureRule(0, offset=raw, gates=gates)
    unit = Direction(vector / vector.norm())
    if edit.operation == "orthogonal":
        return unit, FeatureRule(0, gain=raw, gates=gates)
    lower = float("-inf") if edit.raw_lower is None else edit.raw_lower
    return unit, FeatureRule(0, lower=lower, upper=raw, gates=gates)


def _gates(edit: EditSpec, saes: SAEs) -> tuple[Gate, ...]:
    spec = edit.gate
    if spec is None:
        return ()
    site, reader, feature = _gate_reader(spec, saes)
    is_here = site == edit.target.site and spec.scope == "token"
    gate = Gate(
        reader,
        feature,
        spec.raw,
        None if is_here else site,
        spec.scope,
        pools_residual=isinstance(spec.target, VectorTarget) and spec.scope != "token",
    )
    return (replace(gate, reader=Negated(reader), above=-spec.raw) if spec.side == "below" else gate,)


def _gate_reader(spec: GateSpec, saes: SAEs) -> tuple[Site, FeatureReader, int]:
    """Return the site, the reader there, and the feature whose activation is the gate's value."""
    site = spec.target.site
    if isinstance(spec.target, FeatureTarget):
        sae = _sae(spec.target, saes)
        return sae.read_site(site), sae, spec.target.index
    vector = torch.tensor(spec.target.values, dtype=torch.float64)
    unit = vector / vector.norm()
    return site, (Cosine(unit) if spec.measure == "cosine" else Direction(unit)), 0


# Norms


def _compile_norms(edits: Sequence[EditSpec]) -> list[NormEdit]:
    tokens = sorted({_Tokens.of(edit) for edit in edits if edit.operation == "norm_preserving"})
    return [NormEdit(t.site, **t.choice) for t in tokens]


def _sae(target: FeatureTarget, saes: SAEs) -> SparseAutoencoder:
    return saes[target.sae.checksum]
