"""Edits that cannot both hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from inference.interventions import ZONES, Window, Zone, window_in
from steering.spec.edit import EditSpec, FeatureTarget, Operation, SiteTarget, VectorTarget
from steering.spec.errors import InvalidSpecError, MissingScaleError, Problem
from steering.spec.scope import may_meet

# Every other pair on one feature in one phase is contradictory: which of the two should win?
_COMPATIBLE: frozenset[frozenset[Operation]] = frozenset(
    {frozenset({"add", "scale"}), frozenset({"at_least", "at_most"})}
)

_Numbered = tuple[int, EditSpec]


def check_conflicts(edits: Sequence[EditSpec]) -> None:
    """InvalidSpecError naming all duplicate and contradictory edits."""
    if problems := find_conflicts(edits):
        raise InvalidSpecError(problems)


def find_conflicts(edits: Sequence[EditSpec]) -> list[Problem]:
    """Duplicate and contradictory edits of the same feature, direction or site on the same tokens."""
    groups: dict[object, list[_Numbered]] = defaultdict(list)
    for number, edit in enumerate(edits):
        if (subject := _subject(edit)) is not None:
            groups[subject].append((number, edit))
    return [problem for group in groups.values() for problem in _conflicts_of(group)]


def _subject(edit: EditSpec) -> object:
    """What no two edits may be at odds about; None where any number may act, as with added vectors."""
    match edit.target:
        case FeatureTarget():
            return edit.target.sae.checksum, edit.target.site, edit.target.index
        case VectorTarget():
            return None if edit.operation == "add" else (edit.target.site, edit.target.values)
        case SiteTarget():
            return edit.target.site


def _share_tokens(one: EditSpec, other: EditSpec) -> bool:
    """Whether both may act on one token."""
    zones = ZONES[one.phase] & ZONES[other.phase]
    pairs = product(one.windows, other.windows)
    return any(_meet_in(zone, one, window, other, other_window) for window, other_window in pairs for zone in zones)


def _meet_in(zone: Zone, one: EditSpec, window: Window, other: EditSpec, other_window: Window) -> bool:
    mine, others = window_in(zone, one.phase, window), window_in(zone, other.phase, other_window)
    if mine is None or others is None:
        return False
    return may_meet(one.scope, mine, other.scope, others)


def _conflicts_of(group: Sequence[_Numbered]) -> Iterator[Problem]:
    for (first_number, first), (number, edit) in combinations(group, 2):
        if _share_tokens(first, edit) and (reason := _conflict(first, edit)):
            message = f"{_name(edit)}: {reason} (see edits[{first_number}])."
            yield Problem(f"edits[{number}]", message, "contradictory_edits")


def _name(edit: EditSpec) -> str:
    if isinstance(edit.target, FeatureTarget):
        return f"Feature {edit.target.index} of {edit.target.sae.name}"
    return f"{'The vector' if isinstance(edit.target, VectorTarget) else 'The residual'} at {edit.target.site}"


def _conflict(first: EditSpec, second: EditSpec) -> str:
    if first.operation == second.operation:
        if first == second:
            return f"the same {first.operation} is listed twice"
        if first.operation == "add" and _condition(first) != _condition(second):
            return ""  # one for all tokens and a further one for some of them add up
        return f"two {first.operation} edits act in the same phase"
    if frozenset({first.operation, second.operation}) not in _COMPATIBLE:
        return f"{first.operation} and {second.operation} contradict each other in the same phase"
    return _empty_band(first, second) if first.operation in ("at_least", "at_most") else ""


def _condition(edit: EditSpec) -> tuple[object, ...]:
    return edit.phase, edit.windows, edit.scope, edit.only_if_active, edit.gate, edit.special_tokens, edit.sink_tokens


def _empty_band(first: EditSpec, second: EditSpec) -> str:
    low, high = (first, second) if first.operation == "at_least" else (second, first)
    try:
        is_empty = low.raw > high.raw
    except MissingScaleError:
        return ""  # reported where strengths are checked
    return f"at_least {low.raw:g} lies above at_most {high.raw:g}" if is_empty else ""
