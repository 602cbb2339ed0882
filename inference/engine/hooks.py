"""Steering inside the forward pass: row tables per site, and the hooks that apply them.

Each resident intervention owns two rows, one for prompt tokens and one for generated ones; row 0 changes nothing.
A step names a row per token. Only tokens whose row has edits at a site are touched there, so all others stay
bit-equal whatever their neighbours do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from inference.engine.sites import SiteError, attach, site_width
from inference.interventions import FeatureReader, Intervention, ReaderEdit, Site, VectorEdit

MIN_ROWS = 8


@dataclass(frozen=True, slots=True)
class SteeringRows:
    """Rows of an intervention, and at how many sites each row acts."""

    fingerprint: str
    prompt: int
    generation: int
    prompt_sites: int
    generation_sites: int
    skip_token_ids: frozenset[int]

    def of_token(self, token_id: int, *, is_prompt: bool) -> int:
        """The token's row, 0 where it is left alone."""
        if token_id in self.skip_token_ids:
            return 0
        return self.prompt if is_prompt else self.generation

    def sites_of(self, row: int) -> int:
        """Applications expected for one token of that row."""
        if row == 0:
            return 0
        return self.prompt_sites if row == self.prompt else self.generation_sites


@dataclass
class _Resident:
    rows: SteeringRows
    users: int = 0


@dataclass(slots=True)
class _ReaderTable:
    """Rules of all rows that read through one SAE, over the union of their features.

    ``gain``, ``offset``, ``lower``, ``upper`` and ``gate`` are ``[rows, m]``.
    """

    reader: FeatureReader
    features: Tensor  # [m] int64
    gain: Tensor
    offset: Tensor
    lower: Tensor
    upper: Tensor
    gate: Tensor  # bool: only where the feature is active
    has_row: Tensor  # [rows] bool

    def delta(self, h: Tensor, rows: Tensor) -> Tensor:
        """``[t, d]`` float32 and ``[t]`` -> ``[t, d]``."""
        a = self.reader.activations(h, self.features)
        target = torch.clamp(a * self.gain[rows] + self.offset[rows], self.lower[rows], self.upper[rows])
        change = target - a
        change = torch.where(self.gate[rows] & (a <= 0), torch.zeros_like(change), change)
        return self.reader.delta(change, self.features, h)


@dataclass(slots=True)
class _SiteTable:
    """One site's rows. ``acts`` says on the host which rows have edits here."""

    acts: NDArray[np.bool_]
    vectors: Tensor  # [rows, width] float32
    readers: dict[str, _ReaderTable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _SitePlan:
    tokens: Tensor  # [t] int64, which tokens of the step
    rows: Tensor  # [t] int64
    host_tokens: NDArray[np.int64]


class SteeringTable:
    """The steering of one model: residents by fingerprint, tables by site, hooks on the module."""

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self._module = module
        self._device = device
        self._residents: dict[str, _Resident] = {}
        self._programs: dict[int, tuple[VectorEdit | ReaderEdit, ...]] = {}  # by row
        self._free_rows: list[int] = []
        self._num_rows = 1
        self._sites: dict[Site, _SiteTable] = {}
        self._hooked: dict[Site, Callable[[], None]] = {}
        self._plan: dict[Site, _SitePlan] = {}
        self._ran: set[Site] = set()

    # Residents

    def acquire(self, intervention: Intervention) -> SteeringRows:
        """Rows of the intervention, shared with others of its fingerprint; SiteError where it does not fit."""
        resident = self._residents.get(intervention.fingerprint)
        if resident is None:
            resident = self._add(intervention)
        resident.users += 1
        return resident.rows

    def release(self, rows: SteeringRows) -> None:
        resident = self._residents[rows.fingerprint]
        resident.users -= 1
        if resident.users == 0:
            self._drop(rows)

    def close(self) -> None:
        """Take the hooks off the module."""
        for remove in self._hooked.values():
            remove()
        self._hooked.clear()

    @property
    def num_residents(self) -> int:
        return len(self._residents)

    @property
    def num_rows(self) -> int:
        """Rows in use, without row 0."""
        return len(self._programs)

    # A step

    def begin(self, row_of_token: NDArray[np.int64]) -> None:
        """Plan a forward pass over tokens with these rows."""
        self._ran.clear()
        self._plan = {}
        if not row_of_token.any():
            return
        for site, table in self._sites.items():
            tokens = np.nonzero(table.acts[row_of_token])[0]
            if tokens.size:
                rows = torch.from_numpy(row_of_token[tokens]).to(self._device)
                self._plan[site] = _SitePlan(torch.from_numpy(tokens).to(self._device), rows, tokens)

    def end(self, num_tokens: int) -> NDArray[np.int64]:
        """``[num_tokens]``: at how many sites each token was really steered."""
        applied = np.zeros(num_tokens, dtype=np.int64)
        for site in self._ran:
            applied[self._plan[site].host_tokens] += 1
        self._plan = {}
        return applied

    def _apply(self, site: Site, hidden: Tensor) -> Tensor | None:
        """The steered ``[1, tokens, d]``; None where the step has nothing to do at the site."""
        plan = self._plan.get(site)
        if plan is None:
            return None
        table = self._sites[site]
        flat = hidden.reshape(-1, hidden.shape[-1])
        h = flat[plan.tokens].float()
        delta = table.vectors[plan.rows]
        for reader in table.readers.values():
            reads = reader.has_row[plan.rows]
            chosen = reads.nonzero().squeeze(1)
            if len(chosen):
                delta[chosen] += reader.delta(h[chosen], plan.rows[chosen])
        steered = flat.clone()
        steered[plan.tokens] = (h + delta).to(flat.dtype)
        self._ran.add(site)
        return steered.view_as(hidden)

    # Building

    def _add(self, intervention: Intervention) -> _Resident:
        for edit in intervention.edits:
            self._check(edit)
        prompt = self._program(intervention.edits, "prompt")
        generation = self._program(intervention.edits, "generation")
        rows = SteeringRows(
            intervention.fingerprint,
            self._take_row(prompt),
            self._take_row(generation),
            len({edit.site for edit in prompt}),
            len({edit.site for edit in generation}),
            intervention.skip_token_ids,
        )
        self._residents[intervention.fingerprint] = resident = _Resident(rows)
        try:
            self._rebuild()
        except BaseException:
            self._drop(rows)
            raise
        return resident

    def _drop(self, rows: SteeringRows) -> None:
        del self._residents[rows.fingerprint]
        for row in {rows.prompt, rows.generation} - {0}:
            del self._programs[row]
            self._free_rows.append(row)
        self._rebuild()

    def _check(self, edit: VectorEdit | ReaderEdit) -> None:
        width = site_width(self._module, edit.site)
        given = edit.vector.shape[0] if isinstance(edit, VectorEdit) else edit.reader.d_in
        if given != width:
            raise SiteError(f"{edit.site} is {width} wide in this model, the edit {given}.")
        if isinstance(edit, ReaderEdit):
            _check_features(edit)

    @staticmethod
    def _program(edits: Iterable[VectorEdit | ReaderEdit], phase: str) -> tuple[VectorEdit | ReaderEdit, ...]:
        return tuple(edit for edit in edits if edit.phase in {phase, "both"})

    def _take_row(self, program: tuple[VectorEdit | ReaderEdit, ...]) -> int:
        if not program:
            return 0
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row, self._num_rows = self._num_rows, self._num_rows + 1
        self._programs[row] = program
        return row

    def _rebuild(self) -> None:
        """Lay the tables out anew; happens when interventions come and go, never per token."""
        by_site: dict[Site, list[tuple[int, VectorEdit | ReaderEdit]]] = {}
        for row, program in self._programs.items():
            for edit in program:
                by_site.setdefault(edit.site, []).append((row, edit))
        self._sites = {site: self._site_table(site, edits) for site, edits in by_site.items()}
        for site in self._sites.keys() - self._hooked.keys():
            self._hooked[site] = attach(self._module, site, partial(self._apply, site))

    def _site_table(self, site: Site, edits: list[tuple[int, VectorEdit | ReaderEdit]]) -> _SiteTable:
        width = site_width(self._module, site)
        acts = np.zeros(self._num_rows, dtype=np.bool_)
        vectors = torch.zeros(self._num_rows, width)
        reader_edits: dict[str, list[tuple[int, ReaderEdit]]] = {}
        for row, edit in edits:
            acts[row] = True
            if isinstance(edit, VectorEdit):
                vectors[row] += edit.vector.float().cpu()
            else:
                reader_edits.setdefault(edit.reader.key, []).append((row, edit))
        readers = {key: self._reader_table(chosen) for key, chosen in reader_edits.items()}
        return _SiteTable(acts, vectors.to(self._device), readers)

    def _reader_table(self, edits: Sequence[tuple[int, ReaderEdit]]) -> _ReaderTable:
        features = sorted({rule.feature for _, edit in edits for rule in edit.rules})
        column = {feature: i for i, feature in enumerate(features)}
        shape = (self._num_rows, len(features))
        gain, offset = torch.ones(shape), torch.zeros(shape)
        lower, upper = torch.full(shape, float("-inf")), torch.full(shape, float("inf"))
        gate, has_row = torch.zeros(shape, dtype=torch.bool), torch.zeros(self._num_rows, dtype=torch.bool)
        for row, edit in edits:
            has_row[row] = True
            for rule in edit.rules:
                place = (row, column[rule.feature])
                gain[place], offset[place] = rule.gain, rule.offset
                lower[place], upper[place], gate[place] = rule.lower, rule.upper, rule.only_if_active
        tensors = (torch.tensor(features), gain, offset, lower, upper, gate, has_row)
        return _ReaderTable(edits[0][1].reader, *(t.to(self._device) for t in tensors))


def _check_features(edit: ReaderEdit) -> None:
    for rule in edit.rules:
        if not 0 <= rule.feature < edit.reader.d_sae:
            raise SiteError(f"There is no feature {rule.feature}: the SAE has 0 to {edit.reader.d_sae - 1}.")
