"""The scope of an edit: the parts of an answer on which it acts."""

from __future__ import annotations

from typing import Literal, get_args

from inference.interventions import ALL_TOKENS, Window
from inference.segments import ALL_PARTS, Part

Scope = Literal["everything", "thinking", "answer", "outside_calls"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
EVERYTHING: Scope = "everything"

_PARTS: dict[Scope, frozenset[Part]] = {
    "everything": ALL_PARTS,
    "thinking": frozenset({"thinking"}),
    "answer": frozenset({"answer"}),
    "outside_calls": frozenset({"thinking", "answer"}),
}


def parts_of(scope: Scope) -> frozenset[Part]:
    return _PARTS[scope]


def is_one_part(scope: Scope) -> bool:
    """Whether a window counts the tokens of that part; else it counts those of the phase."""
    return len(_PARTS[scope]) == 1


def windows_of(scope: Scope, window: Window) -> tuple[Window, Window]:
    """What the window says of the phase's tokens, and of the part's."""
    return (ALL_TOKENS, window) if is_one_part(scope) else (window, ALL_TOKENS)


def may_meet(one: Scope, window: Window, other: Scope, other_window: Window) -> bool:
    """Whether two edits of one phase can act on the same token."""
    if _PARTS[one].isdisjoint(_PARTS[other]):
        return False
    if is_one_part(one) == is_one_part(other):
        return window.overlaps(other_window)
    # A part's k-th token is the phase's k-th or a later one.
    of_part, of_phase = (window, other_window) if is_one_part(one) else (other_window, window)
    return of_phase.first is None or of_part.after < of_phase.first
