"""Which edits of an intervention apply to which tokens, and which row of the steering tables each token uses.

A *program* is a set of edits that act together on a token; each program has one row in the tables.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inference.engine.output.segments import SequenceSegments
from inference.interventions import Decisions, Edit, Intervention, Site, TokenPlace, Window, Zone
from inference.segments import Segment

Program = tuple[Edit, ...]
Rows = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class PlaceRows:
    """The rows of the tokens of a zone or one segment, by their index in both.

    ``rows[i][k]`` applies from index ``starts[i]`` among the prompt's or the generated tokens, and index
    ``segment_starts[k]`` in the segment; 0 for none.
    """

    starts: tuple[int, ...]  # the first is 0
    segment_starts: tuple[int, ...]  # also 0 first
    rows: Rows
    special_rows: Rows  # of special tokens

    def of(self, index: int, segment_index: int, *, is_special: bool) -> int:
        rows = self.special_rows if is_special else self.rows
        return rows[bisect_right(self.starts, index) - 1][bisect_right(self.segment_starts, segment_index) - 1]


@dataclass(frozen=True, slots=True)
class SteeringRows:
    """The rows of an intervention's tokens. ``rows``: all rows that it owns.

    ``decided``: the rows of tokens once the prompt has decided the intervention's gates.
    """

    fingerprint: str
    prompt: PlaceRows
    last_prompt_token: PlaceRows
    generation: Mapping[Segment, PlaceRows]
    rows: frozenset[int]
    skip_token_ids: frozenset[int]
    decided: Mapping[Decisions, SteeringRows] = field(default_factory=dict)

    def of_tokens(
        self, token_ids: Sequence[int], start: int, num_prompt: int, segments: SequenceSegments | None = None
    ) -> list[int]:
        """Return the rows of a sequence's tokens from place ``start`` on; 0 for tokens that are not steered.

        ``segments`` covers all generated tokens before them; None if all of them are the answer.
        """
        num_own = min(max(num_prompt - start, 0), len(token_ids))
        rows = [self._row(self.prompt, token, start + i, 0) for i, token in enumerate(token_ids[:num_own])]
        if num_own and start + num_own == num_prompt:
            rows[-1] = self._row(self.last_prompt_token, token_ids[num_own - 1], num_prompt - 1, 0)
        first, rest = start + num_own - num_prompt, token_ids[num_own:]
        if segments is None:
            answer = self.generation["answer"]
            return rows + [self._row(answer, token, first + i, first + i) for i, token in enumerate(rest)]
        places = segments.places(rest, first)
        return rows + [
            self._row(self.generation[segment], token, first + i, segment_index)
            for i, (token, (segment, segment_index)) in enumerate(zip(rest, places, strict=True))
        ]

    def _row(self, rows: PlaceRows, token: int, index: int, segment_index: int) -> int:
        return rows.of(index, segment_index, is_special=token in self.skip_token_ids)


@dataclass(frozen=True, slots=True)
class PlacePrograms:
    """The programs of the tokens of a zone or one segment; see :class:`PlaceRows`. Empty if nothing applies."""

    starts: tuple[int, ...]
    segment_starts: tuple[int, ...]
    programs: tuple[tuple[Program, ...], ...]
    special_programs: tuple[tuple[Program, ...], ...]  # of special tokens


def place_programs(intervention: Intervention, zone: Zone, segment: Segment | None = None) -> PlacePrograms:
    """Return the programs of a zone. ``segment`` is given for generated tokens only."""
    edits = [
        edit for edit in intervention.edits if edit.starts_in(zone) and (segment is None or segment in edit.segments)
    ]
    starts = tuple(sorted({0}.union(*(edit.starts_in(zone) for edit in edits))))
    segment_starts = _starts(edit.segment_window for edit in edits) if segment is not None else (0,)
    places = [[TokenPlace(zone, start, segment, segment_start) for segment_start in segment_starts] for start in starts]
    return PlacePrograms(
        starts,
        segment_starts,
        tuple(tuple(_acting(edits, place, is_special=False) for place in row) for row in places),
        tuple(tuple(_acting(edits, place, is_special=True) for place in row) for row in places),
    )


def by_site(program: Program) -> dict[Site, Program]:
    """Split a program by site, in the order of sites."""
    sites = sorted({edit.site for edit in program})
    return {site: tuple(edit for edit in program if edit.site == site) for site in sites}


def _starts(windows: Iterable[Window]) -> tuple[int, ...]:
    """Return the indices at which a window starts or ends."""
    ends = {end for window in windows for end in (window.after, window.first) if end is not None}
    return tuple(sorted({0} | ends))


def _acting(edits: Sequence[Edit], place: TokenPlace, *, is_special: bool) -> Program:
    return tuple(edit for edit in edits if edit.acts(place, is_special=is_special))
