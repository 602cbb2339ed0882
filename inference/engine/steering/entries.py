"""Convert the features and directions of a program at one site to table entries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.kernels.native.steering_tensors import NORMALIZATIONS, Code, Number
from inference.engine.models.sites import SiteError
from inference.interventions import MAX_GATES, FeatureColumns, FeatureReader, FeatureRule, ReaderEdit

INFINITY = float("inf")


@dataclass(slots=True)
class _Draft:
    """An entry under construction. ``gate`` is an index within the program; an entry without a gate is its own gate."""

    reader: FeatureReader
    feature: int
    gate: int
    gain: float = 1.0
    offset: float = 0.0
    lower: float = -INFINITY
    upper: float = INFINITY
    floor: float = -INFINITY
    norm_limit: float = INFINITY


@dataclass(frozen=True, slots=True)
class Entries:
    """``n`` entries on the CPU. Gates are indices within them; their row is not set yet."""

    read: Tensor  # [n, d] float32
    write: Tensor  # [n, d] float32
    numbers: Tensor  # [n, len(Number)] float32
    codes: Tensor  # [n, len(Code)] int32
    external_activations: tuple[tuple[FeatureReader, int] | None, ...]  # SAE and feature to run in each step

    def __len__(self) -> int:
        return len(self.external_activations)


def build_entries(edits: Sequence[ReaderEdit], width: int) -> Entries:
    """Return the entries in the order of the edits and their rules.

    Raise SiteError for unknown features, too many gates, or weights that are not finite: sums over all entries would
    spread these to the tokens of other rows.
    """
    drafts: list[_Draft] = []
    for edit in edits:
        for rule in edit.rules:
            _draft_rule(edit.reader, rule, drafts, edit.norm_limit)
    read, write = torch.zeros(len(drafts), width), torch.zeros(len(drafts), width)
    numbers, codes = torch.zeros(len(drafts), len(Number)), torch.zeros(len(drafts), len(Code), dtype=torch.int32)
    for number, draft in enumerate(drafts):
        numbers[number] = torch.tensor(
            [0.0, -INFINITY, draft.gain - 1, draft.offset, draft.lower, draft.upper, draft.floor, draft.norm_limit]
        )
        codes[number, Code.GATE] = draft.gate
    for reader, places in _by_reader(drafts):
        features = torch.tensor([drafts[place].feature for place in places])
        columns = reader.columns(features)
        write[places] = columns.write.float().cpu()
        codes[places, Code.NORMALIZATION] = NORMALIZATIONS.index(columns.normalization)
        codes[places, Code.IS_GIVEN] = int(columns.read is None)
        if columns.read is not None:
            read[places] = columns.read.float().cpu()
        if columns.bias is not None:
            numbers[places, Number.BIAS] = columns.bias.float().cpu()
        if columns.threshold is not None:
            numbers[places, Number.THRESHOLD] = columns.threshold.float().cpu()
    _check_finite(drafts, read, write, numbers)
    is_given = codes[:, Code.IS_GIVEN].tolist()
    external_activations = tuple(
        (d.reader, d.feature) if given else None for d, given in zip(drafts, is_given, strict=True)
    )
    return Entries(read, write, numbers, codes, external_activations)


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


def _draft_rule(reader: FeatureReader, rule: FeatureRule, drafts: list[_Draft], norm_limit: float) -> None:
    """Append the rule's entry and one per gate, as a chain in which each is the gate of the one before."""
    if len(rule.gates) + rule.only_if_active > MAX_GATES:
        raise SiteError(f"Feature {rule.feature} has more than {MAX_GATES} gates.")
    mine = len(drafts)
    drafts.append(_draft(reader, rule.feature, mine))
    edit = drafts[mine]
    edit.gain, edit.offset, edit.lower, edit.upper = rule.gain, rule.offset, rule.lower, rule.upper
    edit.norm_limit = norm_limit
    last = edit
    for gate in rule.gates:
        last.gate, last.floor = len(drafts), gate.above
        last = _draft(gate.reader, gate.feature, len(drafts))
        drafts.append(last)
    if rule.only_if_active:
        last.gate, last.floor = mine, 0.0


def _draft(reader: FeatureReader, feature: int, place: int) -> _Draft:
    if not 0 <= feature < reader.d_sae:
        raise SiteError(f"Feature {feature} does not exist: the SAE has features 0 to {reader.d_sae - 1}.")
    return _Draft(reader, feature, gate=place)


def _by_reader(drafts: Sequence[_Draft]) -> Iterator[tuple[FeatureReader, list[int]]]:
    places: dict[str, list[int]] = {}
    for place, draft in enumerate(drafts):
        places.setdefault(draft.reader.key, []).append(place)
    for mine in places.values():
        yield drafts[mine[0]].reader, mine
