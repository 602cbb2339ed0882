"""What can be wrong with edits whose fields are each well-formed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from inference.interventions import ALL_TOKENS
from steering.spec.edit import VECTOR_OPERATIONS, EditSpec, FeatureTarget, SiteTarget, VectorTarget
from steering.spec.errors import MissingScaleError, Problem
from steering.spec.scope import EVERYTHING, is_one_part
from steering.spec.units import MAX_STRENGTH

MAX_WINDOWS = 16  # each makes rows in the engine's tables


def check_edit(edit: EditSpec, path: str) -> list[Problem]:
    """What is wrong with one edit by itself."""
    problems = (_operation_problems, _scope_problems, _range_problems, _gate_problems)
    return [problem for of in problems for problem in of(edit, path)] or [*_strength_problems(edit, path)]


def check_windows(edits: Sequence[EditSpec]) -> list[Problem]:
    windows = {window for edit in edits for window in edit.windows} - {ALL_TOKENS}
    if len(windows) <= MAX_WINDOWS:
        return []
    return [Problem("edits", f"Expected at most {MAX_WINDOWS} different windows, found {len(windows)}.")]


def _operation_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    operation, target = edit.operation, edit.target
    if isinstance(target, SiteTarget) != (operation == "norm_preserving"):
        message = f"norm_preserving takes a site and nothing else does; found {operation} of {_kind(edit)}."
        yield Problem(f"{path}.operation", message)
    elif isinstance(target, VectorTarget) and operation not in VECTOR_OPERATIONS:
        message = f"A plain vector takes {', '.join(VECTOR_OPERATIONS)}, not {operation}."
        yield Problem(f"{path}.operation", message)
    elif isinstance(target, VectorTarget) and operation != "add" and not any(target.values):
        yield Problem(f"{path}.vector.values", "A vector of zeros has no direction.")
    if operation == "projection_cap" and edit.unit == "max_act":
        yield Problem(f"{path}.unit", "projection_cap takes raw or resid_norm, not max_act.")
    if edit.lower is not None and operation != "projection_cap":
        yield Problem(f"{path}.lower", f"Only projection_cap has a lower end, {operation} does not.")


def _scope_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    """A prompt has no parts."""
    if is_one_part(edit.scope) and edit.phase != "generation":
        message = f"Only what the model writes has a “{edit.scope}”; choose the phase generation, not {edit.phase}."
        yield Problem(f"{path}.phase", message)
    elif edit.scope != EVERYTHING and edit.phase == "prompt":
        yield Problem(f"{path}.scope", f"The scope {edit.scope} says nothing about a prompt; leave it out.")


def _range_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    if edit.ranges and edit.window != ALL_TOKENS:
        yield Problem(f"{path}.ranges", "Expected either a window or ranges, found both.")
    for one, other in pairwise(edit.ranges):
        if one.first is None or other.after < one.first:
            yield Problem(f"{path}.ranges", "Expected ranges in rising order that do not overlap.")


def _gate_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    if edit.only_if_active and not isinstance(edit.target, FeatureTarget):
        yield Problem(f"{path}.only_if_active", f"Only a feature can be active, {_kind(edit)} cannot.")
    if edit.gate is None:
        return
    if isinstance(edit.target, SiteTarget):
        yield Problem(f"{path}.gate", "norm_preserving takes no gate.")
    elif edit.gate.feature.site != edit.target.site:
        message = f"The gate must read where the edit acts, at {edit.target.site}, not at {edit.gate.feature.site}."
        yield Problem(f"{path}.gate.feature", message)
    try:
        _ = edit.gate.raw
    except MissingScaleError as error:
        yield Problem(f"{path}.gate.unit", str(error))


def _strength_problems(edit: EditSpec, path: str) -> Iterator[Problem]:
    try:
        raw, lower = edit.raw, edit.raw_lower
    except MissingScaleError as error:
        yield Problem(f"{path}.unit", str(error))
        return
    if abs(raw) > MAX_STRENGTH:
        message = f"The raw coefficient is {raw:g}; at most {MAX_STRENGTH:g} is allowed."
        yield Problem(f"{path}.strength", message)
    if lower is not None and lower > raw:
        yield Problem(f"{path}.lower", f"The lower end {lower:g} lies above the upper one, {raw:g}.")


def _kind(edit: EditSpec) -> str:
    match edit.target:
        case FeatureTarget():
            return "a feature"
        case VectorTarget():
            return "a vector"
        case SiteTarget():
            return "a site"
