"""The programs of an intervention: which of its edits act together on a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference.interventions import Edit, Intervention, Phase, Site

Program = tuple[Edit, ...]


@dataclass(frozen=True, slots=True)
class PhasePrograms:
    """Programs by the token's index in its phase: ``programs[i]`` from ``starts[i]`` on. Empty where nothing acts."""

    starts: tuple[int, ...]
    programs: tuple[Program, ...]
    special_programs: tuple[Program, ...]  # of special tokens


def phase_programs(intervention: Intervention, phase: Phase) -> PhasePrograms:
    """``phase`` is prompt or generation."""
    edits = [edit for edit in intervention.edits if edit.phase in {phase, "both"}]
    ends = {end for edit in edits for end in (edit.window.after, edit.window.first) if end is not None}
    starts = tuple(sorted({0} | ends))
    return PhasePrograms(
        starts,
        tuple(_acting(edits, phase, start, is_special=False) for start in starts),
        tuple(_acting(edits, phase, start, is_special=True) for start in starts),
    )


def by_site(program: Program) -> dict[Site, Program]:
    """The part of a program at each of its sites, in the sites' order."""
    sites = sorted({edit.site for edit in program})
    return {site: tuple(edit for edit in program if edit.site == site) for site in sites}


def _acting(edits: Sequence[Edit], phase: Phase, index: int, *, is_special: bool) -> Program:
    return tuple(edit for edit in edits if edit.acts(phase, index, is_special=is_special))
