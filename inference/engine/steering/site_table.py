"""The tables of one site: the effect of each row there."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType

import torch
from torch import Tensor

from inference.engine.kernels import gpu, native
from inference.engine.kernels.native import fallback
from inference.engine.kernels.native.steering_tensors import (
    ACTS,
    HAS_VECTOR,
    KEEPS_NORM,
    NORMALIZATIONS,
    Code,
    Number,
    SteeringTensors,
)
from inference.engine.models.sites import SiteError
from inference.engine.steering.entries import ConstantReader, Entries, Source, build_entries
from inference.engine.steering.readings import GivenActivations, ReadingKey, Readings
from inference.engine.steering.rows import Program
from inference.interventions import FeatureRule, NormEdit, ReaderEdit, VectorEdit

MIN_ENTRIES, MIN_WIDTH = 16, 4
GPU_ENTRIES, GPU_WIDTH = 128, 8  # growing makes captured steps invalid
MIN_STATIC = 8192
FIRST = torch.tensor([0])


class SiteTable:
    """The tensors of a site. They grow by doubling; a change writes only the row that changes.

    ``acts``: the rows that have an effect here. ``version`` changes when captured steps become invalid: when tensors
    are replaced, or other SAEs must run.
    """

    def __init__(self, width: int, num_rows: int, device: torch.device, *, batch_invariant: bool = False) -> None:
        self.width = width
        self._batch_invariant = batch_invariant
        self._device = device
        self._min_entries, min_width = (MIN_ENTRIES, MIN_WIDTH) if device.type == "cpu" else (GPU_ENTRIES, GPU_WIDTH)
        self._free: list[int] = []
        self._num_entries = 0  # used so far; later ones are neither read nor written
        self._slots: dict[int, list[int]] = {}  # by row
        self._given: dict[int, dict[int, Source]] = {}  # by row, then by entry
        self._touched: set[int] = set()  # rows with values here
        self.acts: set[int] = set()
        self.version = 0
        self.static_changes = torch.zeros(0, device=device)
        self._kernel = kernel_of(device)
        self._tensors = SteeringTensors(
            flags=torch.zeros(num_rows, dtype=torch.uint8, device=device),
            vectors=torch.zeros(num_rows, width, device=device),
            norm_limits=torch.zeros(num_rows, device=device),
            counts=torch.zeros(num_rows, dtype=torch.int32, device=device),
            slots=torch.zeros(num_rows, min_width, dtype=torch.int32, device=device),
            read=torch.zeros(0, width, device=device),
            write=torch.zeros(0, width, device=device),
            numbers=torch.zeros(0, len(Number), device=device),
            codes=torch.zeros(0, len(Code), dtype=torch.int32, device=device),
        )

    def num_entries_of(self, row: int) -> int:
        return len(self._slots.get(row, ()))

    def needs_sae_forward(self, row: int) -> bool:
        """Return whether the row needs an SAE's forward pass whenever it is used."""
        return row in self._given

    # Rows

    def set_row(self, row: int, program: Program) -> None:
        """Set a row to the part of a program that acts here."""
        self._touched.add(row)
        sums = _vector_sums(program)
        readers = [edit for edit in program if isinstance(edit, ReaderEdit)]
        entries = build_entries([*readers, *sums[1:]], self.width)
        flags = ACTS
        if sums:
            flags |= HAS_VECTOR
            self._tensors.vectors[row] = sums[0].reader.columns(FIRST).write[0].to(self._device)
            self._tensors.norm_limits[row] = sums[0].norm_limit
        if any(isinstance(edit, NormEdit) for edit in program):
            flags |= KEEPS_NORM
        if len(entries):
            self._set_entries(row, entries)
        self._tensors.flags[row] = flags
        self.acts.add(row)

    def clear_row(self, row: int) -> None:
        """Undo :meth:`set_row`, even if it failed halfway. Resets all numbers of the row. A no-op for other rows."""
        if row not in self._touched:
            return
        self._touched.discard(row)
        self.acts.discard(row)
        t = self._tensors
        # Written in place, because captured steps read them.
        t.flags[row], t.counts[row], t.vectors[row], t.norm_limits[row], t.slots[row] = 0, 0, 0.0, 0.0, 0
        slots = self._slots.pop(row, [])
        if slots:
            for table in (t.read, t.write, t.numbers, t.codes):
                table[slots] = 0  # row 0 does not act
            self._free += slots
        self._note_sources(self._given.pop(row, {}))

    def grow_rows(self, num_rows: int) -> None:
        t = self._tensors
        self._replace(
            flags=_grown(t.flags, num_rows),
            vectors=_grown(t.vectors, num_rows),
            norm_limits=_grown(t.norm_limits, num_rows),
            counts=_grown(t.counts, num_rows),
            slots=_grown(t.slots, num_rows),
        )

    # A step

    def sources_of(self, row: int) -> Mapping[int, Source]:
        """Return the sources of a row's activations that the kernel does not compute, by entry."""
        return self._given.get(row, {})

    @property
    def has_sources(self) -> bool:
        return bool(self._given)

    @property
    def rows_with_sources(self) -> list[int]:
        return list(self._given)

    def given_in(
        self, rows: Sequence[int], columns: Mapping[ReadingKey, Mapping[int, int]]
    ) -> tuple[GivenActivations, ...]:
        """Return the activations that these rows are given. ``columns``: the columns of features in each reading."""
        if not self._given:
            return ()
        asked: dict[Hashable, tuple[Source, set[int], dict[int, int]]] = {}
        for row in sorted(set(rows)):
            for slot, source in self.sources_of(row).items():
                _, of_rows, of_slots = asked.setdefault(_group(source), (source, set(), {}))
                of_rows.add(row)
                of_slots[slot] = source.feature
        return tuple(
            GivenActivations(
                source.reader,
                self._tensor([place for place, row in enumerate(rows) if row in of_rows]),
                self._tensor([_column(source, feature, columns) for feature in of_slots.values()]),
                self._tensor(list(of_slots)),
                source.reading_key,
                self._batch_invariant,
            )
            for source, of_rows, of_slots in asked.values()
        )

    def apply_static(
        self, hidden: Tensor, rows: Tensor, asked: Sequence[GivenActivations], readings: Readings
    ) -> Tensor:
        """Return the steered ``hidden`` for CUDA graph capture: run every SAE that any row may need, on all tokens.

        The relative changes are written to :attr:`static_changes`, which all captured steps share.
        """
        given = None
        replacements = []
        for ask in asked:
            if ask.replaces:
                replacements.append(ask.replacement(hidden, None if ask.reading is None else readings[ask.reading]))
                continue
            given = (
                hidden.new_zeros(len(hidden), len(self._tensors.read), dtype=torch.float32) if given is None else given
            )
            given[:, ask.slots] = ask.of_all(hidden, readings)
        count = len(hidden)
        if count > len(self.static_changes):  # never during capture: an ordinary pass precedes it
            self.version += bool(len(self.static_changes))
            self.static_changes = torch.zeros(_doubled(MIN_STATIC, count), device=self._device)
        noted = self.static_changes[:count]
        if not replacements and (kernel := self._kernel_for(hidden)) is not None:
            own: Tensor = kernel.steer(hidden, rows, self._tensors, given, noted)[0]
            return own
        steered, changes = fallback.steer(hidden, rows, self._tensors, given, replacements)
        noted.copy_(changes)
        return steered

    def apply(
        self, hidden: Tensor, rows: Tensor, asked: Sequence[GivenActivations], readings: Readings
    ) -> tuple[Tensor, Tensor]:
        """Return ``hidden`` ``[tokens, width]`` steered by ``rows`` ``[tokens]``, and the relative change of each
        token.
        """
        given = self._ask(hidden, asked, readings) if asked else None
        if (kernel := self._kernel_for(hidden)) is not None:
            steered, changes = kernel.steer(hidden, rows, self._tensors, given)
        else:
            steered, changes = native.steer(hidden, rows, self._tensors, given, ordered=self._batch_invariant)
        steer_again = fallback.steer_each if self._batch_invariant else fallback.steer
        for ask in asked:
            if ask.replaces:
                at = ask.tokens
                reconstructed = None if ask.reading is None else readings[ask.reading][at]
                replacement = ask.replacement(hidden[at], reconstructed)
                own = None if given is None else given[at]
                steered[at], changes[at] = steer_again(hidden[at], rows[at], self._tensors, own, [replacement])
        return steered, changes

    def _kernel_for(self, hidden: Tensor) -> ModuleType | None:
        return self._kernel if self._kernel is not None and self._kernel.can_steer(hidden, self._tensors) else None

    def _ask(self, hidden: Tensor, asked: Iterable[GivenActivations], readings: Readings) -> Tensor:
        given = torch.zeros(len(hidden), len(self._tensors.read), device=self._device)
        for ask in asked:
            if not ask.replaces:
                given[ask.tokens.unsqueeze(1), ask.slots] = ask.of_own(hidden, readings)
        return given

    # Entries

    def _set_entries(self, row: int, entries: Entries) -> None:
        slots = self._take_slots(len(entries))
        self._slots[row] = slots
        t, at = self._tensors, self._tensor(slots)
        codes = entries.codes.clone()
        codes[:, Code.ROW] = row
        codes[:, Code.GATE] = torch.tensor(slots, dtype=torch.int32)[entries.codes[:, Code.GATE].long()]
        for table, values in (
            (t.read, entries.read),
            (t.write, entries.write),
            (t.numbers, entries.numbers),
            (t.codes, codes),
        ):
            table[at] = values.to(self._device)
        t.slots[row, : len(slots)] = at.int()
        t.counts[row] = len(slots)
        given = {slot: by for slot, by in zip(slots, entries.sources, strict=True) if by is not None}
        if given:
            self._given[row] = given
            self._note_sources(given)
        self._note_normalizations(codes)

    def _note_sources(self, sources: Mapping[int, Source]) -> None:
        """Note that sources come or go. Captured steps do not read the values that a prompt decides."""
        self.version += any(source.prompt_gate is None for source in sources.values())

    def _take_slots(self, count: int) -> list[int]:
        """Return slots for a row's entries, growing the tensors if necessary."""
        if count > self._tensors.slots.shape[1]:
            wider = _grown(self._tensors.slots.T, _doubled(self._tensors.slots.shape[1], count)).T.contiguous()
            self._replace(slots=wider)
        reused = [self._free.pop() for _ in range(min(count, len(self._free)))]
        fresh = list(range(self._num_entries, self._num_entries + count - len(reused)))
        self._num_entries += len(fresh)
        t = self._tensors
        if self._num_entries > len(t.read):
            size = _doubled(max(len(t.read), self._min_entries), self._num_entries)
            grown = {name: _grown(getattr(t, name), size) for name in ("read", "write", "numbers", "codes")}
            self._replace(**grown)
        return reused + fresh

    def _note_normalizations(self, codes: Tensor) -> None:
        known = {NORMALIZATIONS[code] for code in codes[:, Code.NORMALIZATION].tolist()}
        if not known <= set(self._tensors.normalizations):
            known |= set(self._tensors.normalizations)
            self._replace(normalizations=tuple(kind for kind in NORMALIZATIONS if kind in known))

    def _replace(self, **fields: object) -> None:
        self._tensors = replace(self._tensors, **fields)  # type: ignore[arg-type]
        self.version += 1

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


def kernel_of(device: torch.device) -> ModuleType | None:
    """Return the module with the Triton kernel, if it works on the device."""
    if not gpu.can_run(device):
        return None
    from inference.engine.kernels.gpu import steering  # requires Triton

    return steering if steering.works_on(device) else None


def _group(source: Source) -> Hashable:
    """Return a key: the activations of sources with equal keys are computed together."""
    return source.reader.key if source.reading_key is None else source.reading_key


def _column(source: Source, feature: int, columns: Mapping[ReadingKey, Mapping[int, int]]) -> int:
    """Return the index of a feature in the SAE, or in the reading that has its activations."""
    return feature if source.reading_key is None else columns[source.reading_key][feature]


def _vector_sums(program: Program) -> list[ReaderEdit]:
    """Return an edit with the sum of the vectors per norm limit, lowest limit first."""
    by_limit: dict[float, list[Tensor]] = {}
    for edit in program:
        if isinstance(edit, VectorEdit):
            by_limit.setdefault(edit.norm_limit, []).append(edit.vector.double().cpu())
    sums = []
    for limit, vectors in sorted(by_limit.items()):
        total = torch.stack(vectors).sum(0).float()
        if not bool(total.isfinite().all()):
            raise SiteError("The sum of the added vectors is not finite in float32.")
        edit = ReaderEdit(program[0].site, ConstantReader(total), (FeatureRule(0, offset=1.0),), norm_limit=limit)
        sums.append(edit)
    return sums


def _doubled(size: int, minimum: int) -> int:
    while size < minimum:
        size *= 2
    return size


def _grown(tensor: Tensor, size: int) -> Tensor:
    grown = tensor.new_zeros(size, *tensor.shape[1:])
    grown[: len(tensor)] = tensor
    return grown
