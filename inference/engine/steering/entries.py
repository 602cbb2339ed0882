"""Convert the features and directions of a program at one site to table entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.kernels.native.steering_tensors import NORMALIZATIONS, Code, Number
from inference.engine.models.sites import SiteError
from inference.engine.steering.readings import ReadingKey
from inference.interventions import (
    MAX_GATES,
    FeatureColumns,
    FeatureReader,
    FeatureRule,
    Gate,
    GateKey,
    ReaderEdit,
    Site,
)

INFINITY = float("inf")


@dataclass(frozen=True, slots=True)
class Source:
    """The source of an activation that the kernel does not compute: an SAE's forward pass in each step.

    ``site``: the earlier site whose residual it reads; None for the entry's own. ``prompt_gate``: the gate whose value
    is used instead, which the sequence's whole prompt determines.
    """

    reader: FeatureReader
    feature: int
    site: Site | None = None
    prompt_gate: GateKey | None = None

    @property
    def reading_key(self) -> ReadingKey | None:
        """The reading that has the activation; None if it is computed at the entry's own site."""
        if self.prompt_gate is not None:
            return self.prompt_gate
        return None if self.site is None else (self.site, self.reader.key)


@dataclass(slots=True)
class _Draft:
    """An entry under construction. ``gate`` is an index within the program; an entry without a gate is its own gate."""

    reader: FeatureReader
    feature: int
    gate: int
    site: Site | None = None
    prompt_gate: GateKey | None = None
    gain: float = 1.0
    offset: float = 0.0
    lower: float = -INFINITY
    upper: float = INFINITY
    floor: float = -INFINITY
    norm_limit: float = INFINITY
    writes: bool = True  # gates at other sites do not


@dataclass(frozen=True, slots=True)
class Entries:
    """``n`` entries on the CPU. Gates are indices within them; their row is not set yet."""

    read: Tensor  # [n, d] float32
    write: Tensor  # [n, d] float32
    numbers: Tensor  # [n, len(Number)] float32
    codes: Tensor  # [n, len(Code)] int32
    sources: tuple[Source | None, ...]  # of activations that the kernel does not compute

    def __len__(self) -> int:
        return len(self.sources)


def build_entries(edits: Sequence[ReaderEdit], width: int) -> Entries:
    """Return the entries in the order of the edits and their rules.

    Raise SiteError for unknown features, too many gates, or weights that are not finite: sums over all entries would
    spread these to the tokens of other rows.
    """
    drafts: list[_Draft] = []
    for edit in edits:
        for rule in edit.rules:
            _draft_rule(edit, rule, drafts)
    read, write = torch.zeros(len(drafts), width), torch.zeros(len(drafts), width)
    numbers, codes = torch.zeros(len(drafts), len(Number)), torch.zeros(len(drafts), len(Code), dtype=torch.int32)
    for number, draft in enumerate(drafts):
        numbers[number] = torch.tensor(
            [0.0, -INFINITY, draft.gain - 1, draft.offset, draft.lower, draft.upper, draft.floor, draft.norm_limit]
        )
        codes[number, Code.GATE] = draft.gate
    for reader, places in _by_reader(drafts):
        _fill(reader, [drafts[place] for place in places], Entries(read, write, numbers, codes, ()), places)
    _check_finite(drafts, read, write, numbers)
    sources = tuple(
        Source(draft.reader, draft.feature, draft.site, draft.prompt_gate) if is_given else None
        for draft, is_given in zip(drafts, codes[:, Code.IS_GIVEN].tolist(), strict=True)
    )
    return Entries(read, write, numbers, codes, sources)


def _fill(reader: FeatureReader, drafts: Sequence[_Draft], entries: Entries, places: list[int]) -> None:
    """Write the columns of one reader's features to the entries at ``places``."""
    width = entries.write.shape[1]
    columns = reader.columns(torch.tensor([draft.feature for draft in drafts]))
    if drafts[0].writes:
        if columns.write.shape[1] != width:
            raise SiteError(f"The edit writes {columns.write.shape[1]} values, but the model has {width} at its site.")
        entries.write[places] = columns.write.float().cpu()
        entries.codes[places, Code.NORMALIZATION] = NORMALIZATIONS.index(columns.normalization)
    is_given = columns.read is None or drafts[0].site is not None
    entries.codes[places, Code.IS_GIVEN] = int(is_given)
    if is_given or columns.read is None:
        return
    entries.read[places] = columns.read.float().cpu()
    if columns.bias is not None:
        entries.numbers[places, Number.BIAS] = columns.bias.float().cpu()
    if columns.threshold is not None:
        entries.numbers[places, Number.THRESHOLD] = columns.threshold.float().cpu()


class ConstantReader:
    """A reader with one feature for a vector that is always added: activation 0, and the vector as decoder row."""

    d_sae = 1

    def __init__(self, vector: Tensor) -> None:
        self._vector = vector
        self.d_in = len(vector)
        self.key = f"constant {id(vector)}"

    def columns(self, features: Tensor) -> FeatureColumns:
        rows = self._vector.expand(len(features), -1)
        return FeatureColumns(write=rows, read=torch.zeros_like(rows))

    def activations(self, h: Tensor, features: Tensor) -> Tensor:
        return h.new_zeros(len(h), len(features))


def _check_finite(drafts: Sequence[_Draft], read: Tensor, write: Tensor, numbers: Tensor) -> None:
    """Raise SiteError unless weights are finite. Bounds, floors and thresholds may be infinite, but not NaN."""
    finite = numbers[:, [Number.BIAS, Number.GAIN_LESS_ONE, Number.OFFSET]]
    is_valid = read.isfinite().all(1) & write.isfinite().all(1) & finite.isfinite().all(1) & ~numbers.isnan().any(1)
    if not bool(is_valid.all()):
        draft = drafts[int((~is_valid).nonzero()[0])]
        raise SiteError(f"The weights or constants of feature {draft.feature} ({draft.reader.key}) are not all finite.")


def _draft_rule(edit: ReaderEdit, rule: FeatureRule, drafts: list[_Draft]) -> None:
    """Append the rule's entry and one per gate, as a chain in which each is the gate of the one before."""
    if len(rule.gates) + rule.only_if_active > MAX_GATES:
        raise SiteError(f"Feature {rule.feature} has more than {MAX_GATES} gates.")
    mine = len(drafts)
    first = _Draft(edit.reader, rule.feature, mine, _other_site(edit.reads_at, edit))
    first.gain, first.offset, first.lower, first.upper = rule.gain, rule.offset, rule.lower, rule.upper
    first.norm_limit = edit.norm_limit
    drafts.append(first)
    last = first
    for gate in rule.gates:
        last.gate, last.floor = len(drafts), gate.above
        last = _gate_draft(gate, edit, len(drafts))
        drafts.append(last)
    if rule.only_if_active:
        last.gate, last.floor = mine, 0.0
    for draft in drafts[mine:]:
        if not 0 <= draft.feature < draft.reader.d_sae:
            last_feature = draft.reader.d_sae - 1
            raise SiteError(f"Feature {draft.feature} does not exist: the SAE has features 0 to {last_feature}.")


def _gate_draft(gate: Gate, edit: ReaderEdit, place: int) -> _Draft:
    if gate.scope == "token":
        site = _other_site(gate.site, edit)
        return _Draft(gate.reader, gate.feature, place, site, writes=site is None)
    return _Draft(gate.reader, gate.feature, place, gate.site, gate.key, writes=False)


def _other_site(site: Site | None, edit: ReaderEdit) -> Site | None:
    return None if site == edit.site else site


def _by_reader(drafts: Sequence[_Draft]) -> Iterator[tuple[FeatureReader, list[int]]]:
    """Yield the places of drafts whose columns can be computed together."""
    places: dict[tuple[str, Site | None, bool], list[int]] = {}
    for place, draft in enumerate(drafts):
        places.setdefault((draft.reader.key, draft.site, draft.writes), []).append(place)
    for mine in places.values():
        yield drafts[mine[0]].reader, mine
