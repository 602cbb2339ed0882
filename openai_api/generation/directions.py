"""Vectors and linear probes that a request reads: from its fields to captures, and from captures to values."""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from inference.captures import CaptureSpec, Projections
from inference.client import CaptureEvent
from inference.interventions import Site
from inference.registry.records import model_table
from openai_api.generation.activations import MAX_VALUES, capture_spec
from openai_api.generation.run import Plan
from openai_api.generation.target import Target
from openai_api.http.call import Call
from openai_api.http.errors import invalid
from openai_api.schemas.activations import DirectionField, TokenSelection
from steering.errors import InlineSteeringError
from steering.profiles.inline_edits import read_inline
from steering.spec.edit import VectorTarget
from steering.spec.parsing import parse_edits
from steering.vectors.probes import LinearProbe


@dataclass(frozen=True, slots=True)
class Direction:
    """A vector to read at a site."""

    name: str | None
    site: Site
    values: tuple[float, ...]
    probe: LinearProbe


async def read_directions(call: Call, target: Target, fields: Sequence[DirectionField]) -> tuple[Direction, ...]:
    """Return the directions of a request. Raises MillmError, which names the field."""
    if not fields:
        return ()
    name = target.model.record.name
    places = ("set", "layer", "site", "values")
    items = [{key: value for key in places if (value := getattr(one, key)) is not None} for one in fields]
    for number, item in enumerate(items):
        if "set" not in item and "values" not in item:
            raise invalid(f"`directions[{number}]` needs `set` or `values`.", param=f"directions[{number}]")
    # Edits of strength 0 name vectors in the same way.
    edits = {"vectors": [{**item, "strength": 0.0, "unit": "raw"} for item in items]}
    try:
        version = await asyncio.to_thread(read_inline, model_table.get().find(name).pk, name, edits, call.owner_id)
    except InlineSteeringError as error:
        path, place = (text.replace("steering.vectors", "directions") for text in (error.message, error.param or ""))
        raise invalid(path, param=place, code=error.code or "invalid_value") from None
    targets = [edit.target for edit in parse_edits(version.edits)]
    return tuple(
        Direction(one.name or found.name or None, found.site, found.values, LinearProbe(one.bias, one.sigmoid))
        for one, found in zip(fields, targets, strict=True)
        if isinstance(found, VectorTarget)
    )


@dataclass(slots=True)
class DirectionLog:
    """The captured values of directions. ``numbers``: the directions of each capture, by the capture's number."""

    directions: tuple[Direction, ...]
    numbers: dict[int, list[int]]
    _found: dict[tuple[int, int], dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def note(self, event: CaptureEvent) -> None:
        for capture in event.captures:
            if capture.number in self.numbers and capture.places is not None:
                for place, row in zip(capture.places, capture.values.tolist(), strict=True):
                    self._found[event.index, place].update(zip(self.numbers[capture.number], row, strict=True))

    def at(self, index: int, place: int) -> list[float]:
        """Return the value of each direction at a token of a text."""
        found = self._found[index, place]
        return [one.probe.value(found[number]) for number, one in enumerate(self.directions)]


def with_directions(
    plan: Plan, directions: tuple[Direction, ...], selection: TokenSelection, special_token_ids: frozenset[int]
) -> tuple[Plan, DirectionLog]:
    """Add the captures of directions to those of a plan, one for each site."""
    before = len(plan.captures_of(0))
    by_site: dict[Site, list[int]] = defaultdict(list)
    for number, direction in enumerate(directions):
        by_site[direction.site].append(number)
    specs = tuple(
        capture_spec(selection, site, special_token_ids, probe=_probe([directions[number] for number in numbers]))
        for site, numbers in by_site.items()
    )
    _check_size(plan, specs)
    captures = [(*plan.captures_of(number), *specs) for number in range(len(plan.prompt_of_sequence))]
    numbers = dict(enumerate(by_site.values(), start=before))
    return dataclasses.replace(plan, captures=captures), DirectionLog(directions, numbers)


def _probe(directions: Sequence[Direction]) -> Projections:
    values = [value for direction in directions for value in direction.values]
    return Projections(struct.pack(f"<{len(values)}f", *values), len(directions))


def _check_size(plan: Plan, specs: Sequence[CaptureSpec]) -> None:
    total = 0
    for prompt in plan.prompt_of_sequence:
        num_prompt = len(plan.prompts[prompt])
        num_tokens = num_prompt + plan.params[prompt].max_tokens
        for spec in specs:
            assert isinstance(spec.probe, Projections), "directions are read as products"
            total += spec.probe.count * spec.num_places(num_prompt, num_tokens)
    if total > MAX_VALUES:
        message = f"The response could contain {total} values of directions; the limit is {MAX_VALUES}."
        raise invalid(message, param="directions", code="reading_too_large")
