"""Scale the strength of edits by a factor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from inference.interventions import Site
from steering.spec.edit import EditSpec

MAX_FACTOR = 64.0
_STEPS = 60


def with_factor(edit: EditSpec, factor: float) -> EditSpec:
    """Return the edit with ``factor`` times its strength.

    For scale and orthogonal, the distance of the strength from 1 is multiplied. ablate, norm_preserving and reconstruct
    have no strength.
    """
    match edit.operation:
        case "ablate" | "norm_preserving" | "reconstruct":
            return edit
        case "scale" | "orthogonal":
            return replace(edit, strength=1 + factor * (edit.strength - 1))
        case _:
            lower = None if edit.lower is None else factor * edit.lower
            return replace(edit, strength=factor * edit.strength, lower=lower)


def has_strength(edits: Iterable[EditSpec]) -> bool:
    """Return whether a factor changes any of the edits."""
    return any(with_factor(edit, 2.0) != edit for edit in edits)


def largest_push(edits: Iterable[EditSpec]) -> float | None:
    """Return the largest known push of the edits, or None if no push is known."""
    known = [edit.push for edit in edits if edit.push is not None]
    return max(known, default=None)


def combined_pushes(edits: Iterable[EditSpec]) -> dict[Site, float]:
    """Return the sum of the known pushes at each site: the most by which the edits can move the residual together."""
    pushes: dict[Site, float] = {}
    for edit in edits:
        if edit.push is not None:
            pushes[edit.target.site] = pushes.get(edit.target.site, 0.0) + edit.push
    return dict(sorted(pushes.items()))


def largest_factor(edits: Sequence[EditSpec], push_cap: float) -> float:
    """Return the largest factor up to MAX_FACTOR at which no push exceeds ``push_cap``, or 0 if there is none."""

    def is_within(factor: float) -> bool:
        push = largest_push([with_factor(edit, factor) for edit in edits])
        return push is None or push <= push_cap

    if is_within(MAX_FACTOR):
        return MAX_FACTOR
    low, high = 0.0, MAX_FACTOR
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_within(middle) else (low, middle)
    return low
