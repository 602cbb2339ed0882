"""Checks of edits whose fields are each well-formed: single edits, and edits that contradict each other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, product

from inference.interventions import ALL_TOKENS, MAX_PROMPT_GATES, ZONES, Window, Zone, window_in
from steering.spec.edit import (
    EVERYTHING,
    PROMPT_GATE_PHASES,
    SITE_OPERATIONS,
    VECTOR_OPERATIONS,
    EditSpec,
    FeatureTarget,
    GateSpec,
    Operation,
    SiteTarget,
    VectorTarget,
    is_single_segment,
    may_meet,
)
from steering.spec.errors import InvalidSpecError, MissingScaleError, Problem
from steering.spec.units import ACTIVATION_UNITS, MAX_STRENGTH, Unit

MAX_WINDOWS = 16  # each one takes rows in the tables of the engine


def check_edit(edit: EditSpec, path: str) -> list[Problem]:
    """Return the problems of one edit, independent of others."""
    problems = (_operation_problems, _scope_problems, _range_problems, _gate_problems)
    return [problem for of in problems for problem in of(edit, path)] or [*_strength_problems(edit, path)]


def check_windows(edits: Sequence[EditSpec]) -> list[Problem]:
    windows = {window for edit in edits for window in edit.windows} - {ALL_TOKENS}
    if len(windows) <= MAX_WINDOWS:
        return []
    return [Problem("edits", f"Expected at most {MAX_WINDOWS} different windows, got {len(windows)}.")]


def _operation_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    operation, target = edit.operation, edit.target
    if isinstance(target, SiteTarget) != (operation in SITE_OPERATIONS):
        message = (
            f"`norm_preserving` and `reconstruct` must have a site as their target, other operations must not; got "
            f"`{operation}` of {_kind(edit)}."
        )
        yield Problem(f"{path}.operation", message)
    elif isinstance(target, SiteTarget) and (target.sae is None) == (operation == "reconstruct"):
        message = "`reconstruct` needs the SAE of the site." if target.sae is None else "Only `reconstruct` has an SAE."
        yield Problem(f"{path}.site.sae", message)
    elif isinstance(target, SiteTarget) and target.sae is not None and target.sae.site != target.site:
        message = f"The SAE is at {target.sae.site.label}, but the edit at {target.site.label}."
        yield Problem(f"{path}.site.sae", message)
    elif isinstance(target, VectorTarget) and operation not in VECTOR_OPERATIONS:
        message = f"A vector supports {', '.join(VECTOR_OPERATIONS)}, got `{operation}`."
        yield Problem(f"{path}.operation", message)
    elif isinstance(target, VectorTarget) and operation != "add" and not any(target.values):
        yield Problem(f"{path}.vector.values", "The vector must not be zero.")
    if operation == "projection_cap" and edit.unit in ACTIVATION_UNITS:
        message = f"`projection_cap` supports the units `raw` and `resid_norm`, got `{edit.unit}`."
        yield Problem(f"{path}.unit", message)
    if edit.lower is not None and operation != "projection_cap":
        yield Problem(f"{path}.lower", f"Only `projection_cap` has a `lower` end, got `{operation}`.")


def _scope_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    """Yield problems of the scope. A prompt has no segments."""
    if is_single_segment(edit.scope) and edit.phase != "generation":
        message = f"The scope `{edit.scope}` requires the phase `generation`, got `{edit.phase}`."
        yield Problem(f"{path}.phase", message)
    elif edit.scope != EVERYTHING and edit.phase == "prompt":
        yield Problem(f"{path}.scope", f"The scope `{edit.scope}` does not apply to a prompt; leave it out.")


def _range_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    if edit.ranges and edit.window != ALL_TOKENS:
        yield Problem(f"{path}.ranges", "Expected either a window or ranges, got both.")
    for one, other in pairwise(edit.ranges):
        if one.first is None or other.after < one.first:
            yield Problem(f"{path}.ranges", "Ranges must be in ascending order and must not overlap.")


def _gate_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    if edit.only_if_active and not isinstance(edit.target, FeatureTarget):
        yield Problem(f"{path}.only_if_active", f"`only_if_active` requires a feature, got {_kind(edit)}.")
    if edit.gate is not None:
        yield from _problems_of_gate(edit, edit.gate, f"{path}.gate")


def _problems_of_gate(edit: EditSpec, gate: GateSpec, path: str) -> Iterator[Problem]:
    kind = "feature" if isinstance(gate.target, FeatureTarget) else "vector"
    here, there = edit.target.site, gate.target.site
    if edit.operation == "norm_preserving":
        yield Problem(path, "`norm_preserving` does not support a gate.")
    elif there.comes_after(here):
        message = f"The gate must be at the edit's site, {here.label}, or an earlier one, got {there.label}."
        yield Problem(f"{path}.{kind}", message)
    if gate.scope != "token" and edit.phase not in PROMPT_GATE_PHASES:
        message = (
            f"A gate with the scope `{gate.scope}` needs the whole prompt, so the edit's phase must be "
            f"`from_last_prompt_token` or `generation`, got `{edit.phase}`."
        )
        yield Problem(f"{path}.scope", message)
    yield from _problems_of_gate_unit(gate, path)


def _problems_of_gate_unit(gate: GateSpec, path: str) -> Iterator[Problem]:
    if isinstance(gate.target, FeatureTarget):
        units: tuple[Unit, ...] = ("raw", *ACTIVATION_UNITS)
    else:
        units = ("raw", "resid_norm") if gate.measure == "projection" else ("raw",)
        if not any(gate.target.values):
            yield Problem(f"{path}.vector.values", "The vector must not be zero.")
    if gate.unit not in units:
        of = "feature" if isinstance(gate.target, FeatureTarget) else gate.measure
        yield Problem(f"{path}.unit", f"A gate on a {of} supports {', '.join(units)}, got `{gate.unit}`.")
        return
    try:
        _ = gate.raw
    except MissingScaleError as error:
        yield Problem(f"{path}.unit", str(error))


def check_prompt_gates(edits: Sequence[EditSpec]) -> list[Problem]:
    """Return a problem if the prompt would have to decide more gates than the engine supports."""
    gates = {
        (_subject_of_gate(edit.gate), edit.gate.side, edit.gate.threshold)
        for edit in edits
        if edit.gate is not None and edit.gate.scope != "token"
    }
    if len(gates) <= MAX_PROMPT_GATES:
        return []
    message = f"Expected at most {MAX_PROMPT_GATES} different gates that the prompt decides, got {len(gates)}."
    return [Problem("edits", message)]


def _subject_of_gate(gate: GateSpec) -> object:
    target = gate.target
    subject = (target.sae.checksum, target.index) if isinstance(target, FeatureTarget) else target.values
    return target.site, subject, gate.measure, gate.scope


def _strength_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    try:
        raw, lower = edit.raw, edit.raw_lower
    except MissingScaleError as error:
        yield Problem(f"{path}.unit", str(error))
        return
    if abs(raw) > MAX_STRENGTH:
        message = f"The raw strength is {raw:g}; the limit is {MAX_STRENGTH:g}."
        yield Problem(f"{path}.strength", message)
    if lower is not None and lower > raw:
        yield Problem(f"{path}.lower", f"The lower end {lower:g} must not exceed the upper end {raw:g}.")


def _kind(edit: EditSpec) -> str:
    match edit.target:
        case FeatureTarget():
            return "a feature"
        case VectorTarget():
            return "a vector"
        case SiteTarget():
            return "a site"


# Every other pair on one feature in one phase is contradictory, because neither edit has precedence.
_COMPATIBLE: frozenset[frozenset[Operation]] = frozenset(
    {frozenset({"add", "scale"}), frozenset({"at_least", "at_most"})}
)

_Numbered = tuple[int, EditSpec]


def check_conflicts(edits: Sequence[EditSpec]) -> None:
    """Raise InvalidSpecError if edits are duplicates or contradict each other; it lists all of them."""
    if problems := find_conflicts(edits):
        raise InvalidSpecError(problems)


def find_conflicts(edits: Sequence[EditSpec]) -> list[Problem]:
    """Return duplicate and contradictory edits of the same feature, direction or site on the same tokens."""
    groups: dict[object, list[_Numbered]] = defaultdict(list)
    for number, edit in enumerate(edits):
        if (subject := _subject(edit)) is not None:
            groups[subject].append((number, edit))
    return [problem for group in groups.values() for problem in _conflicts_of(group)]


def _subject(edit: EditSpec) -> object:
    """Return the key of the edit's target, or None if any number of edits may target it, as with added vectors."""
    match edit.target:
        case FeatureTarget():
            return edit.target.sae.checksum, edit.target.site, edit.target.index
        case VectorTarget():
            return None if edit.operation == "add" else (edit.target.site, edit.target.values)
        case SiteTarget():
            return edit.operation, edit.target.site


def _share_tokens(one: EditSpec, other: EditSpec) -> bool:
    """Return whether both edits may apply to the same token."""
    zones = ZONES[one.phase] & ZONES[other.phase]
    pairs = product(one.windows, other.windows)
    return any(_meet_in(zone, one, window, other, other_window) for window, other_window in pairs for zone in zones)


def _meet_in(zone: Zone, one: EditSpec, window: Window, other: EditSpec, other_window: Window) -> bool:
    first, second = window_in(zone, one.phase, window), window_in(zone, other.phase, other_window)
    if first is None or second is None:
        return False
    return may_meet(one.scope, first, other.scope, second)


def _conflicts_of(group: Sequence[_Numbered]) -> Iterator[Problem]:
    for (first_number, first), (number, edit) in combinations(group, 2):
        if _share_tokens(first, edit) and (reason := _conflict(first, edit)):
            message = f"{_name(edit)}: {reason} (see edits[{first_number}])."
            yield Problem(f"edits[{number}]", message, "contradictory_edits")


def _name(edit: EditSpec) -> str:
    if isinstance(edit.target, FeatureTarget):
        return f"Feature {edit.target.index} of {edit.target.sae.name}"
    return f"{'The vector' if isinstance(edit.target, VectorTarget) else 'The residual'} at {edit.target.site.label}"


def _conflict(first: EditSpec, second: EditSpec) -> str:
    if first.operation == second.operation:
        if first == second:
            return f"the same `{first.operation}` is listed twice"
        if first.operation == "add" and _condition(first) != _condition(second):
            return ""  # two adds on different sets of tokens add up
        return f"two `{first.operation}` edits apply to the same phase"
    if frozenset({first.operation, second.operation}) not in _COMPATIBLE:
        return f"`{first.operation}` and `{second.operation}` contradict each other in the same phase"
    return _empty_band(first, second) if first.operation in ("at_least", "at_most") else ""


def _condition(edit: EditSpec) -> tuple[object, ...]:
    return edit.phase, edit.windows, edit.scope, edit.only_if_active, edit.gate, edit.special_tokens, edit.sink_tokens


def _empty_band(first: EditSpec, second: EditSpec) -> str:
    low, high = (first, second) if first.operation == "at_least" else (second, first)
    try:
        is_empty = low.raw > high.raw
    except MissingScaleError:
        return ""  # _strength_problems reports it
    return f"`at_least` {low.raw:g} exceeds `at_most` {high.raw:g}" if is_empty else ""
