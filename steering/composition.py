"""Compiled interventions scaled, and put one after the other, without the engine knowing.

With ``P(h)`` the residual that an intervention makes of ``h`` at a site: scaled by k it makes ``h + k (P(h) - h)``, and
followed by another one, Q, it makes ``Q(P(h))``. The engine adds up what all edits of a site make of the same ``h``; so
the edits of Q read through an :class:`AfterReader` where P acts too, which first does what P does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from inference.interventions import (
    Edit,
    FeatureColumns,
    FeatureReader,
    FeatureRule,
    Gate,
    Intervention,
    NormEdit,
    Phase,
    ReaderEdit,
    VectorEdit,
    Window,
)
from steering.errors import PolicyConflictError

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def scaled(intervention: Intervention, intensity: float) -> Intervention:
    """``intensity`` times what each edit changes; 1 is the same object, 0 changes nothing. Norms are kept as before."""
    if intensity == 1:
        return intervention
    edits = [part for edit in intervention.edits for part in _scaled_edit(edit, intensity)] if intensity else []
    identity = _identity("scaled", intervention.fingerprint, intensity + 0.0)
    return replace(intervention, fingerprint=identity, edits=tuple(edits))


def followed_by(first: Intervention, then: Intervention) -> Intervention:
    """``then`` acts on what ``first`` leaves; PolicyConflictError where one of them keeps norms at a shared site."""
    assert first.skip_token_ids == then.skip_token_ids, "both belong to one model"
    _check_norms(first, then)
    after = [part for edit in then.edits for part in _after(edit, first.edits)]
    identity = _identity("then", first.fingerprint, then.fingerprint)
    return replace(first, fingerprint=identity, edits=(*first.edits, *after))


def _identity(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, allow_nan=False).encode()).hexdigest()


# Readers


class _Wrapper:
    """A reader with another one inside."""

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
    """Writes ``factor`` times as much: for bounds, of which no rule makes a fraction."""

    def __init__(self, inner: FeatureReader, factor: float) -> None:
        super().__init__(inner, _identity("scaled", inner.key, factor))
        self._factor = factor

    def columns(self, features: Tensor) -> FeatureColumns:
        columns = self._inner.columns(features)
        return replace(columns, write=self._factor * columns.write)


class AfterReader(_Wrapper):
    """Reads the residual as ``edits``, which act on the same tokens of one site, leave it.

    What it writes does not depend on the residual: SAEs that normalise their input cannot be ``inner``.
    """

    def __init__(self, inner: FeatureReader, edits: Sequence[Edit]) -> None:
        self._steps = [_step(edit) for edit in edits]
        super().__init__(inner, _identity("after", inner.key, *(step.key for step in self._steps)))

    def columns(self, features: Tensor) -> FeatureColumns:
        columns = self._inner.columns(features)
        assert columns.normalization == "none", "policies are refused with such SAEs"
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
        return self._vector.on(h.device)


class _RuleStep:
    """The formula is that of :mod:`inference.interventions`."""

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
    """A tensor, copied once to each device where it is needed."""

    def __init__(self, tensor: Tensor) -> None:
        self._copies: dict[torch.device, Tensor] = {tensor.device: tensor}
        self._first = tensor

    def on(self, device: torch.device) -> Tensor:
        if device not in self._copies:
            self._copies[device] = self._first.to(device)
        return self._copies[device]


def _step(edit: Edit) -> _VectorStep | _RulesStep:
    assert not isinstance(edit, NormEdit), "checked before"
    return _VectorStep(edit) if isinstance(edit, VectorEdit) else _RulesStep(edit)


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
    """The engine keeps a norm last, whoever asked for it, so that it would undo what comes between."""
    norms = {edit.site for edit in (*first.edits, *then.edits) if isinstance(edit, NormEdit)}
    shared = {edit.site for edit in first.edits} & {edit.site for edit in then.edits} & norms
    if shared:
        raise PolicyConflictError(
            f"The profile cannot be used under this server's policy: one of the two keeps the norm at {min(shared)},"
            " where the other acts too."
        )


def _after(edit: Edit, earlier: Sequence[Edit]) -> list[Edit]:
    """The edit as it is where nothing acts before it, else one for each set of tokens on which other edits do."""
    if not isinstance(edit, ReaderEdit):
        return [edit]
    here = [other for other in earlier if other.site == edit.site]
    phases: tuple[Phase, ...] = ("prompt", "generation") if edit.phase == "both" else (edit.phase,)
    pieces = [(phase, window, acting) for phase in phases for window, acting in _pieces(edit, here, phase)]
    if all(acting == pieces[0][2] for _, _, acting in pieces):
        return [_reading_after(edit, [here[n] for n in pieces[0][2]])]
    return [
        _reading_after(replace(edit, phase=phase, window=window), [here[n] for n in acting])
        for phase, window, acting in pieces
    ]


def _pieces(edit: ReaderEdit, here: Sequence[Edit], phase: Phase) -> Iterator[tuple[Window, tuple[int, ...]]]:
    """The edit's window cut where others begin or end, each part with the places of those that act in it."""
    cuts = {end for other in here for end in (other.window.after, other.window.first) if end is not None}
    starts = sorted({edit.window.after} | {cut for cut in cuts if cut in edit.window})
    for start, end in zip(starts, [*starts[1:], edit.window.first], strict=True):
        yield Window(start, end), tuple(n for n, other in enumerate(here) if other.acts(phase, start, is_special=False))


def _reading_after(edit: ReaderEdit, earlier: Sequence[Edit]) -> ReaderEdit:
    if not earlier:
        return edit
    rules = tuple(replace(rule, gates=tuple(_gate_after(gate, earlier) for gate in rule.gates)) for rule in edit.rules)
    return replace(edit, reader=AfterReader(edit.reader, earlier), rules=rules)


def _gate_after(gate: Gate, earlier: Sequence[Edit]) -> Gate:
    return replace(gate, reader=AfterReader(gate.reader, earlier))
