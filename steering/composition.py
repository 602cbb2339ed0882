"""Scale compiled interventions, and apply one after the other, on top of the hook protocol.

With ``P(h)`` the residual that an intervention makes of ``h`` at a site: scaled by k it makes ``h + k (P(h) - h)``, and
followed by another one, Q, it makes ``Q(P(h))``. The engine adds up what all edits of a site make of the same ``h``; so
the edits of Q read through an :class:`AfterReader` where P acts too, which first does what P does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from inference.interventions import (
    MAX_PROMPT_GATES,
    Edit,
    FeatureColumns,
    FeatureReader,
    FeatureRule,
    Gate,
    Intervention,
    NormEdit,
    Phase,
    ReaderEdit,
    Reconstructor,
    Site,
    TokenPlace,
    VectorEdit,
    Window,
    Zone,
)
from inference.segments import ALL_SEGMENTS
from steering.errors import PolicyConflictError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def scaled(intervention: Intervention, intensity: float) -> Intervention:
    """Return the intervention with ``intensity`` times its effect. 1 returns the same object, 0 changes nothing. Norm
    edits are not scaled."""
    if intensity == 1:
        return intervention
    edits = [part for edit in intervention.edits for part in _scaled_edit(edit, intensity)] if intensity else []
    identity = _identity("scaled", intervention.fingerprint, intensity + 0.0)
    return replace(intervention, fingerprint=identity, edits=tuple(edits))


def without_norm_limits(intervention: Intervention) -> Intervention:
    """Return the intervention without norm limits, so that a request's edits at other sites cannot disable a policy."""
    if all(edit.norm_limit == float("inf") for edit in intervention.edits):
        return intervention
    edits = tuple(replace(edit, norm_limit=float("inf")) for edit in intervention.edits)
    return replace(intervention, fingerprint=_identity("any norm", intervention.fingerprint), edits=edits)


def followed_by(first: Intervention, then: Intervention) -> Intervention:
    """Return ``first`` and then ``then``. Raise PolicyConflictError if one of them keeps norms at a site of both, or if
    what ``then`` reads cannot be computed from one residual."""
    assert first.skip_token_ids == then.skip_token_ids, "both interventions belong to the same model"
    _check_norms(first, then)
    _check_reads(first, then)
    if any(isinstance(reader, Reconstructor) for edit in then.edits for reader in getattr(edit, "readers", ())):
        raise PolicyConflictError("A policy cannot replace a residual by its reconstruction.")
    after = [part for edit in then.edits for part in _after(edit, first.edits)]
    identity = _identity("then", first.fingerprint, then.fingerprint)
    needed = first.required_segments | then.required_segments
    removals = (*first.removals, *then.removals)
    return replace(
        first, fingerprint=identity, edits=(*first.edits, *after), required_segments=needed, removals=removals
    )


def _identity(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, allow_nan=False).encode()).hexdigest()


# Readers


class _Wrapper:
    """A reader that wraps another reader."""

    def __init__(self, inner: FeatureReader, key: str) -> None:
        self._inner = inner
        self.key = key
        self.d_in = inner.d_in
        self.d_sae = inner.d_sae

    def columns(self, features: Tensor) -> FeatureColumns:
        return self._inner.columns(features)

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        return self._inner.activations(h, features)


class ScaledReader(_Wrapper):
    """Multiplies what the inner reader writes by ``factor``. Used for bounds, which rules cannot scale."""

    def __init__(self, inner: FeatureReader, factor: float) -> None:
        super().__init__(inner, _identity("scaled", inner.key, factor))
        self._factor = factor

    def columns(self, features: Tensor) -> FeatureColumns:
        columns = self._inner.columns(features)
        return replace(columns, write=self._factor * columns.write)


class AfterReader(_Wrapper):
    """Reads the residual as it is after ``edits``, which apply to the same tokens of one site.

    What it writes does not depend on the residual: SAEs that normalise their input cannot be ``inner``.
    """

    def __init__(self, inner: FeatureReader, edits: Sequence[Edit]) -> None:
        self._steps = [_step(edit) for edit in edits]
        super().__init__(inner, _identity("after", inner.key, *(step.key for step in self._steps)))

    def columns(self, features: Tensor) -> FeatureColumns:
        columns = self._inner.columns(features)
        assert columns.normalization == "none", "policies cannot use SAEs that normalise their input"
        return FeatureColumns(write=columns.write)

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        total = h
        for step in self._steps:
            total = total + step(h)
        return self._inner.activations(total, features)


# What an edit adds to a residual


class _VectorStep:
    def __init__(self, edit: VectorEdit) -> None:
        vector = edit.vector.float().cpu()
        self.key = _identity("vector", hashlib.sha256(vector.numpy().tobytes()).hexdigest())
        self._vector = _Placed(vector)

    def __call__(self, h: Tensor) -> Tensor:
        return self._vector.on(h.device).expand_as(h)


class _LimitedStep:
    """A step that does not change residuals whose norm exceeds the limit."""

    def __init__(self, step: _VectorStep | _RulesStep, limit: float) -> None:
        self.key = _identity("limited", step.key, limit)
        self._step, self._limit = step, limit

    def __call__(self, h: Tensor) -> Tensor:
        return self._step(h).masked_fill(h.norm(dim=-1, keepdim=True) > self._limit, 0.0)


class _RuleStep:
    """Applies the rules by the formula of :mod:`inference.interventions`."""

    def __init__(self, reader: FeatureReader, rule: FeatureRule) -> None:
        import torch

        self._reader, self._rule = reader, rule
        gates = [(gate.reader.key, gate.feature, gate.above) for gate in rule.gates]
        bounds = (str(rule.lower), str(rule.upper))  # JSON has no infinity
        numbers = (rule.feature, rule.gain, rule.offset, *bounds, rule.only_if_active)
        self.key = _identity("rule", reader.key, *numbers, gates)
        self._feature = _Placed(torch.tensor([rule.feature]))
        columns = reader.columns(torch.tensor([rule.feature]))
        self._normalization = columns.normalization
        self._write = _Placed(columns.write.float())
        self._gates = [(gate, _Placed(torch.tensor([gate.feature]))) for gate in rule.gates]

    def __call__(self, h: Tensor) -> Tensor:
        from steering.saes.normalization import NORMALIZERS

        rule = self._rule
        a = self._reader.activations(h, self._feature.on(h.device))
        change = ((rule.gain - 1) * a + rule.offset).clamp(rule.lower - a, rule.upper - a)
        if rule.only_if_active:
            change = change.masked_fill(a <= 0, 0.0)
        for gate, feature in self._gates:
            is_shut = gate.reader.activations(h, feature.on(h.device)) <= gate.above
            change = change.masked_fill(is_shut, 0.0)
        if isinstance(self._reader, Reconstructor):
            return change * (self._reader.reconstruct(h) - h)
        step = change @ self._write.on(h.device)
        return step if self._normalization == "none" else NORMALIZERS[self._normalization](h).restore_step(step)


class _RulesStep:
    def __init__(self, edit: ReaderEdit) -> None:
        self._steps = [_RuleStep(edit.reader, rule) for rule in edit.rules]
        self.key = _identity("rules", *(step.key for step in self._steps))

    def __call__(self, h: Tensor) -> Tensor:
        total = h.new_zeros(h.shape)
        for step in self._steps:
            total = total + step(h)
        return total


class _Placed:
    """A tensor with a cached copy per device."""

    def __init__(self, tensor: Tensor) -> None:
        self._copies: dict[torch.device, Tensor] = {tensor.device: tensor}
        self._first = tensor

    def on(self, device: torch.device) -> Tensor:
        if device not in self._copies:
            self._copies[device] = self._first.to(device)
        return self._copies[device]


def _step(edit: Edit) -> _VectorStep | _RulesStep | _LimitedStep:
    assert not isinstance(edit, NormEdit), "norm edits are handled separately"
    step = _VectorStep(edit) if isinstance(edit, VectorEdit) else _RulesStep(edit)
    return step if edit.norm_limit == float("inf") else _LimitedStep(step, edit.norm_limit)


# Scaling


def _scaled_edit(edit: Edit, factor: float) -> Iterator[Edit]:
    if isinstance(edit, VectorEdit):
        yield replace(edit, vector=factor * edit.vector)
    elif isinstance(edit, NormEdit):
        yield edit
    else:
        bounded = tuple(rule for rule in edit.rules if _is_bounded(rule))
        free = tuple(_scaled_rule(rule, factor) for rule in edit.rules if not _is_bounded(rule))
        if free:
            yield replace(edit, rules=free)
        if bounded:
            yield replace(edit, rules=bounded, reader=ScaledReader(edit.reader, factor))


def _is_bounded(rule: FeatureRule) -> bool:
    return rule.lower != float("-inf") or rule.upper != float("inf")


def _scaled_rule(rule: FeatureRule, factor: float) -> FeatureRule:
    return replace(rule, gain=1 + factor * (rule.gain - 1), offset=factor * rule.offset)


# Order


def _check_norms(first: Intervention, then: Intervention) -> None:
    """Refuse norms at shared sites: the engine restores norms after all edits of a site, which would undo edits in
    between."""
    norms = {edit.site for edit in (*first.edits, *then.edits) if isinstance(edit, NormEdit)}
    shared = {edit.site for edit in first.edits} & {*then.sites, *then.read_sites} & norms
    if shared:
        raise PolicyConflictError(
            "The profile cannot be combined with this server's policy: one of them keeps the norm at "
            f"{min(shared).label}, where the other one also has edits."
        )


def _check_reads(first: Intervention, then: Intervention) -> None:
    """Refuse interventions whose reading of the changed residual depends on other sites, or on other tokens."""
    read = {edit.site for edit in then.edits if isinstance(edit, ReaderEdit) and _reads_own(edit)} | then.read_sites
    for edit in first.edits:
        if not isinstance(edit, ReaderEdit) or edit.site not in read:
            continue
        if edit.read_sites or any(gate.scope != "token" for gate in edit.gates):
            raise PolicyConflictError(
                "The profile cannot be combined with this server's policy: the policy reads the residual at "
                f"{edit.site.label}, which the profile changes depending on another site or on the whole prompt."
            )
    for gate in then.prompt_gates:
        if any(edit.site == gate.site and edit.phase != "generation" for edit in first.edits):
            assert gate.site is not None, "a gate that the prompt decides has a site"
            raise PolicyConflictError(
                "The profile cannot be combined with this server's policy: the policy is decided on the prompt's "
                f"residual at {gate.site.label}, which the profile changes."
            )
    if len({*first.prompt_gates, *then.prompt_gates}) > MAX_PROMPT_GATES:
        raise PolicyConflictError(
            f"Profile and policies together have more than {MAX_PROMPT_GATES} gates that the prompt decides."
        )


def _after(edit: Edit, earlier: Sequence[Edit]) -> list[Edit]:
    """Return the edit if no other edit precedes it; else one edit for each set of tokens on which others do."""
    if not isinstance(edit, ReaderEdit):
        return [edit]
    sites = {edit.site, *edit.read_sites}
    here = [other for other in earlier if other.site in sites]
    pieces = [(piece, _acting(piece, here)) for piece in _pieces(edit, here)]
    if all(acting == pieces[0][1] for _, acting in pieces):
        return [_reading_after(edit, [here[n] for n in pieces[0][1]])]
    return [_reading_after(piece, [here[n] for n in acting]) for piece, acting in pieces]


def _pieces(edit: ReaderEdit, here: Sequence[Edit]) -> Iterator[ReaderEdit]:
    """Yield parts of the edit such that the same other edits apply to all tokens of a part: by zone, segment, and
    window ends."""
    depends_on_segments = any(each.depends_on_segments for each in (edit, *here))
    tells_last = any(each.depends_on_last_prompt_token for each in (edit, *here))
    for phase, zone in _ZONE_PIECES if tells_last else _PHASE_PIECES:
        whole = edit.window_in(zone)
        if whole is None:
            continue
        piece = replace(edit, phase=phase)
        if not depends_on_segments or zone != "generation":
            pieces = (replace(piece, window=window) for window in _cut(whole, _starts((edit, *here), zone)))
            yield from (each for each in pieces if edit.special_tokens or _acting(each, [each]))
            continue
        for part in sorted(edit.segments):
            others = [other for other in here if part in other.segments]
            for window in _cut(whole, _starts(others, zone)):
                for segment_window in _cut(edit.segment_window, _part_starts(others)):
                    yield replace(piece, segments=frozenset({part}), window=window, segment_window=segment_window)


_PHASE_PIECES: tuple[tuple[Phase, Zone], ...] = (("prompt", "prompt"), ("generation", "generation"))
_ZONE_PIECES: tuple[tuple[Phase, Zone], ...] = (
    ("before_last_prompt_token", "prompt"),
    ("last_prompt_token", "last_prompt_token"),
    ("generation", "generation"),
)
_ZONE_OF: Mapping[Phase, Zone] = dict((*_PHASE_PIECES, *_ZONE_PIECES))


def _starts(edits: Sequence[Edit], zone: Zone) -> frozenset[int]:
    """Return the positions where the windows of the edits may start or end."""
    return frozenset().union(*(edit.starts_in(zone) for edit in edits))


def _part_starts(edits: Sequence[Edit]) -> frozenset[int]:
    windows = [edit.segment_window for edit in edits]
    return frozenset(end for window in windows for end in (window.after, window.first) if end is not None)


def _cut(window: Window, cuts: frozenset[int]) -> Iterator[Window]:
    """Split the window at the cuts."""
    starts = sorted({window.after} | {cut for cut in cuts if cut in window})
    for start, end in zip(starts, [*starts[1:], window.first], strict=True):
        yield Window(start, end)


def _acting(piece: ReaderEdit, here: Sequence[Edit]) -> tuple[int, ...]:
    """Return the indices of the edits that apply to the part's tokens."""
    zone = _ZONE_OF[piece.phase]
    part = None if zone != "generation" or piece.segments == ALL_SEGMENTS else next(iter(piece.segments))
    place = TokenPlace(zone, piece.window.after, part, piece.segment_window.after)
    return tuple(n for n, other in enumerate(here) if other.acts(place, is_special=False))


def _reading_after(edit: ReaderEdit, earlier: Sequence[Edit]) -> ReaderEdit:
    """Return the edit with readers that see what ``earlier`` ones make of the residual at their site."""

    def after(reader: FeatureReader, site: Site) -> FeatureReader:
        mine = [other for other in earlier if other.site == site]
        return AfterReader(reader, mine) if mine else reader

    def gate_after(gate: Gate) -> Gate:
        return replace(gate, reader=after(gate.reader, gate.site or edit.site)) if gate.scope == "token" else gate

    rules = tuple(replace(rule, gates=tuple(map(gate_after, rule.gates))) for rule in edit.rules)
    if not any(map(_needs_activation, edit.rules)):
        return replace(edit, rules=rules)
    return replace(edit, reader=after(edit.reader, edit.reads_at or edit.site), rules=rules)


def _reads_own(edit: ReaderEdit) -> bool:
    """Return whether the edit depends on the residual at its own site."""
    if edit.reads_at in {None, edit.site} and any(map(_needs_activation, edit.rules)):
        return True
    return any(gate.site in {None, edit.site} for gate in edit.gates)


def _needs_activation(rule: FeatureRule) -> bool:
    return rule.gain != 1 or rule.only_if_active or _is_bounded(rule)
