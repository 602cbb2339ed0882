"""Describe edits in words, and the differences between two lists of edits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from inference.interventions import GateScope, Site, Window
from steering.spec.edit import (
    EditSpec,
    FeatureTarget,
    GateMeasure,
    GateSpec,
    Operation,
    Phase,
    Scope,
    SiteTarget,
    VectorTarget,
)
from steering.spec.rendering import effect_key
from steering.spec.units import Unit

_VERBS: dict[Operation, str] = {
    "add": "add",
    "clamp": "clamp to",
    "scale": "scale by",
    "ablate": "ablate",
    "at_least": "keep at least",
    "at_most": "keep at most",
    "orthogonal": "scale the direction by",
    "projection_cap": "cap the projection at",
    "norm_preserving": "keep the norm",
    "reconstruct": "replace by the reconstruction of",
}
_UNITS: dict[Unit, str] = {
    "raw": " raw",
    "max_act": " × max activation",
    "p99": " × p99",
    "p999": " × p99.9",
    "resid_norm": " × residual norm",
}
_SCOPES: dict[Scope, str] = {
    "everything": "",
    "thinking": ", in the thinking",
    "answer": ", in the answer",
    "outside_calls": ", outside tool calls",
}
_PHASES: dict[Phase, str] = {
    "prompt": ", prompt only",
    "generation": ", generation only",
    "from_last_prompt_token": ", from the last prompt token on",
    "both": "",
}


_MEASURES: dict[GateMeasure, str] = {"projection": "projection on", "cosine": "cosine with"}
_GATE_SCOPES: dict[GateScope, str] = {
    "token": "only where",
    "prompt_mean": "only if over the prompt's mean",
    "prompt_last": "only if at the prompt's last token",
}


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a comparison."""

    kind: Literal["added", "removed", "changed"]
    text: str


def describe_edit(edit: EditSpec) -> str:
    """Return a description such as "tiny-sae #3 rain: add 0.5 × max activation, prompt only"."""
    return f"{describe_target(edit)}: {describe_action(edit)}"


def describe_target(edit: EditSpec) -> str:
    if isinstance(edit.target, FeatureTarget):
        return _feature(edit.target)
    if isinstance(edit.target, VectorTarget):
        return f"vector {edit.target.name}".rstrip() + f" at {edit.target.site.label}"
    return f"residual at {edit.target.site.label}"


def changes(old: Sequence[EditSpec], new: Sequence[EditSpec]) -> list[Change]:
    """Return the differences between two lists of edits; edits of the same target are matched."""
    before = {effect_key(edit): edit for edit in old}
    after = {effect_key(edit): edit for edit in new}
    gone = [edit for key, edit in before.items() if key not in after]
    lines = []
    for edit in (edit for key, edit in after.items() if key not in before):
        former = next((one for one in gone if _is_same_place(one, edit)), None)
        if former is None:
            lines.append(Change("added", describe_edit(edit)))
            continue
        gone.remove(former)
        lines.append(Change("changed", f"{describe_target(edit)}: {describe_action(former)} → {describe_action(edit)}"))
    return [*lines, *(Change("removed", describe_edit(edit)) for edit in gone)]


def _is_same_place(one: EditSpec, other: EditSpec) -> bool:
    if isinstance(one.target, FeatureTarget) and isinstance(other.target, FeatureTarget):
        return (one.target.sae.checksum, one.target.index) == (other.target.sae.checksum, other.target.index)
    return one.target == other.target


def describe_action(edit: EditSpec) -> str:
    """Return what an edit does, without its target, such as "add 0.5 × max activation, prompt only"."""
    return f"{_VERBS[edit.operation]}{_amount(edit)}{''.join(_conditions(edit))}"


def _amount(edit: EditSpec) -> str:
    match edit.operation:
        case "ablate" | "norm_preserving":
            return ""
        case "reconstruct":
            assert isinstance(edit.target, SiteTarget), "the parser checks it"
            return f" {edit.target.sae.name}" if edit.target.sae else ""
        case "scale" | "orthogonal":
            return f" {edit.strength:g}"
        case _:
            lower = "" if edit.lower is None else f" {edit.lower:g} to"
            return f"{lower} {edit.strength:g}{_UNITS[edit.unit]}"


def _conditions(edit: EditSpec) -> Iterator[str]:
    yield _PHASES[edit.phase]
    yield _SCOPES[edit.scope]
    if edit.window.after:
        yield f", after {edit.window.after} tokens"
    if edit.window.first is not None:
        yield f", first {edit.window.first} tokens"
    if edit.ranges:
        yield f", tokens {', '.join(map(_range, edit.ranges))}"
    if edit.only_if_active:
        yield ", only where active"
    if edit.gate is not None:
        yield f", {_describe_gate(edit.gate, edit.target.site)}"
    if edit.special_tokens:
        yield ", special tokens too"
    if edit.sink_tokens:
        yield ", attention sinks too"


def _describe_gate(gate: GateSpec, site: Site) -> str:
    """Return words such as "only where tiny-sae #7 is above 0.5 raw" for a gate of an edit at ``site``."""
    if isinstance(gate.target, FeatureTarget):
        name = _feature(gate.target)
        unit = _UNITS[gate.unit] if gate.threshold else ""
    else:
        name = f"the {_MEASURES[gate.measure]} vector {gate.target.name}".rstrip()
        unit = _UNITS[gate.unit] if gate.threshold and gate.measure == "projection" else ""
    place = "" if gate.target.site == site else f" at {gate.target.site.label}"
    return f"{_GATE_SCOPES[gate.scope]} {name}{place} is {gate.side} {gate.threshold:g}{unit}"


def _range(window: Window) -> str:
    return f"from {window.after}" if window.first is None else f"{window.after} to {window.first - 1}"


def _feature(target: FeatureTarget) -> str:
    return f"{target.sae.name} #{target.index} {target.label}".rstrip()
