"""The programs of an intervention: which of its edits act together on a token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from inference.interventions import Edit, Intervention, Site, TokenPlace, Window, Zone
from inference.segments import Part

Program = tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class PlacePrograms:
    """The programs of a zone's tokens, or of those of one part of it.

    ``programs[i][k]`` from the ``starts[i]``-th token of the prompt, or of what is generated, and the part's
    ``part_starts[k]``-th token on. Empty where
    nothing acts.
    """

    starts: tuple[int, ...]
    part_starts: tuple[int, ...]
    programs: tuple[tuple[Program, ...], ...]
    special_programs: tuple[tuple[Program, ...], ...]  # of special tokens


def place_programs(intervention: Intervention, zone: Zone, part: Part | None = None) -> PlacePrograms:
    """With a ``part`` for what is generated, and without one for the prompt."""
    edits = [edit for edit in intervention.edits if edit.starts_in(zone) and (part is None or part in edit.parts)]
    starts = tuple(sorted({0}.union(*(edit.starts_in(zone) for edit in edits))))
    part_starts = _starts(edit.part_window for edit in edits) if part is not None else (0,)
    places = [[TokenPlace(zone, start, part, part_start) for part_start in part_starts] for start in starts]
    return PlacePrograms(
        starts,
        part_starts,
        tuple(tuple(_acting(edits, place, is_special=False) for place in row) for row in places),
        tuple(tuple(_acting(edits, place, is_special=True) for place in row) for row in places),
    )


def by_site(program: Program) -> dict[Site, Program]:
    """The part of a program at each of its sites, in the sites' order."""
    sites = sorted({edit.site for edit in program})
    return {site: tuple(edit for edit in program if edit.site == site) for site in sites}


def _starts(windows: Iterable[Window]) -> tuple[int, ...]:
    """Where something begins or ends."""
    ends = {end for window in windows for end in (window.after, window.first) if end is not None}
    return tuple(sorted({0} | ends))


def _acting(edits: Sequence[Edit], place: TokenPlace, *, is_special: bool) -> Program:
    return tuple(edit for edit in edits if edit.acts(place, is_special=is_special))
