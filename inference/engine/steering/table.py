"""Steering inside the forward pass: row tables per site, and the hooks that apply them.

Each intervention owns a row per set of edits that act together (such as those on prompt tokens and those on generated
ones); row 0 changes nothing. A step has a row per token. Only tokens whose row has edits at a site are changed there;
all others stay bitwise the same.

An unused intervention keeps its rows for a while, so that the next request with it can reuse them.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from inference.engine.models.sites import READ_ONLY, HookOrder, SiteError, SiteHooks, site_width
from inference.engine.steering.entries import Source
from inference.engine.steering.prompt_gates import PromptGateStep
from inference.engine.steering.readings import GivenActivations, Reading, ReadingKey
from inference.engine.steering.rows import PlacePrograms, PlaceRows, Program, SteeringRows, by_site, place_programs
from inference.engine.steering.site_table import SiteTable
from inference.engine.steering.step import SteeringPlan, SteeringStep
from inference.interventions import (
    MAX_PROMPT_GATES,
    Decisions,
    Edit,
    Intervention,
    NormEdit,
    Site,
    VectorEdit,
)
from inference.segments import SEGMENTS

MIN_ROWS, GPU_MIN_ROWS = 8, 256  # growing makes captured steps of a GPU invalid
MAX_IDLE_ROWS = 512
MAX_IDLE_ENTRIES = 2048


@dataclass(slots=True)
class _Entry:
    """The rows of an intervention. If it ``needs_sae_forward``, it holds an SAE and is dropped with its last user."""

    rows: SteeringRows
    sites: frozenset[Site]  # including those that are only read
    num_entries: int
    needs_sae_forward: bool
    users: int = 0


@dataclass(frozen=True, slots=True)
class _StaticPlan:
    """What the hooks read in steps with static rows, for all rows of the tables of these versions."""

    versions: tuple[tuple[Site, int], ...]
    given: Mapping[Site, tuple[GivenActivations, ...]]
    readings: Mapping[Site, tuple[Reading, ...]]


class SteeringTable:
    """The steering of one model: interventions by fingerprint, tables by site, and hooks on the module."""

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        hooks: SiteHooks | None = None,
        *,
        batch_invariant: bool = False,
    ) -> None:
        self._module = module
        self._batch_invariant = batch_invariant
        self._hooks = hooks or SiteHooks(module)
        self._device = device
        self._entries: dict[str, _Entry] = {}
        self._idle: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._num_used_rows = self._num_idle_rows = self._num_idle_entries = 0
        self._site_users: Counter[Site] = Counter()  # interventions in use, by site
        self._free_rows: list[int] = []
        self._num_rows = 1
        self._capacity = MIN_ROWS if device.type == "cpu" else GPU_MIN_ROWS
        self._num_sites: dict[int, int] = {}  # number of sites at which its program acts, by row
        self._sites: dict[Site, SiteTable] = {}
        self._hooked: dict[Site, Callable[[], None]] = {}
        self._plan: SteeringPlan | None = None  # of the previous step
        self._step: SteeringStep | None = None  # while a forward pass runs
        self._ran_static: list[Site] = []  # sites of the hooks in the last pass with static rows
        self._static: _StaticPlan | None = None

    # Interventions

    @torch.inference_mode()
    def acquire(self, intervention: Intervention) -> SteeringRows:
        """Return the intervention's rows, shared with others of its fingerprint. Raise SiteError if it does not fit."""
        fingerprint = intervention.fingerprint
        entry = self._entries.get(fingerprint)
        if entry is None:
            entry = self._entries[fingerprint] = self._take_idle(fingerprint) or self._add(intervention)
            self._num_used_rows += len(entry.rows.rows)
            self._site_users.update(entry.sites)
        entry.users += 1
        for site in entry.sites - self._hooked.keys():
            self._hooked[site] = self._hooks.put(site, HookOrder.STEER, partial(self._apply, site))
        return entry.rows

    @torch.inference_mode()
    def release(self, rows: SteeringRows) -> None:
        entry = self._entries[rows.fingerprint]
        entry.users -= 1
        if entry.users:
            return
        del self._entries[rows.fingerprint]
        self._num_used_rows -= len(entry.rows.rows)
        self._site_users.subtract(entry.sites)
        self._unhook(entry.sites)
        self._put_idle(rows.fingerprint, entry)
        if entry.needs_sae_forward:
            self._drop_idle(rows.fingerprint)
        while self._has_too_many_idle():
            self._drop_idle(next(iter(self._idle)))

    def _unhook(self, sites: frozenset[Site]) -> None:
        """Remove unused hooks on the CPU, where a hook inside a layer prevents fusion. CUDA graphs need their hooks."""
        if self._device.type != "cpu":
            return
        for site in sites:
            if not self._site_users[site] and site in self._hooked:
                self._hooked.pop(site)()

    def close(self) -> None:
        """Remove the hooks from the module."""
        for remove in self._hooked.values():
            remove()
        self._hooked.clear()

    @property
    def num_interventions(self) -> int:
        """The number of interventions in use."""
        return len(self._entries)

    @property
    def num_rows(self) -> int:
        """The number of rows in use, without row 0."""
        return self._num_used_rows

    # A step

    @contextmanager
    def steering(self, row_of_token: list[int], prompt_gates: PromptGateStep | None = None) -> Iterator[SteeringStep]:
        """Steer the forward pass in the block, over tokens with these rows.

        An empty list means that no token is steered.
        """
        self._step = SteeringStep(self._plan_of(row_of_token), prompt_gates=prompt_gates)
        try:
            yield self._step
        finally:
            self._step = None

    # A captured step

    @torch.inference_mode()
    def prepare(self, hidden: Tensor) -> None:
        """Compile the kernel of a GPU for hidden states ``[tokens, d]`` like these."""
        table = SiteTable(hidden.shape[1], self._capacity, self._device, batch_invariant=self._batch_invariant)
        table.apply(hidden, torch.zeros(len(hidden), dtype=torch.int64, device=self._device), (), {})

    @property
    def is_worth_capturing(self) -> bool:
        """Whether steps can be steered, and a further profile probably leaves their graphs valid."""
        return bool(self._hooked) and not any(table.has_sources for table in self._sites.values())

    @property
    def graph_key(self) -> Hashable:
        """A key that changes when earlier captured steps become invalid."""
        versions = {site: table.version for site, table in self._sites.items()}
        return tuple((site, versions.get(site)) for site in sorted(self._hooked))

    @property
    def can_be_captured(self) -> bool:
        """Whether the current step's steering can be part of a CUDA graph: not while a prompt decides a gate."""
        return self._step is None or self._step.prompt_gates is None

    def begin_static(self, row_of_token: Tensor) -> None:
        """Let the hooks read their rows from a tensor, without synchronising with the device.

        ``[tokens]`` int64 on the device, until :meth:`end_static`. A no-op if no token of the step is steered.
        """
        assert self._step is not None, "a step is in progress"
        if self._step.plan is not None:
            self._step.static_rows, self._ran_static = row_of_token, []

    def end_static(self) -> None:
        """Run the rest of the step with its own rows."""
        assert self._step is not None, "a step is in progress"
        self._step.static_rows = None

    def replayed(self) -> None:
        """Record the effects of a replayed CUDA graph: the hooks acted at the sites where they acted during the
        capture."""
        assert self._step is not None, "a step is in progress"
        assert self._step.plan is not None, "the step is steered"
        num_tokens = len(self._step.plan.row_of_token)
        self._step.ran = list(self._ran_static)
        self._step.changes = [self._sites[site].static_changes[:num_tokens] for site in self._ran_static]

    def _plan_of(self, row_of_token: list[int]) -> SteeringPlan | None:
        """Return the plan of a step; None if no token is steered."""
        if not any(row_of_token):
            return None
        if self._plan is None or self._plan.row_of_token != row_of_token:
            rows = set(row_of_token)
            acting = {site: table.acts for site, table in self._sites.items() if not rows.isdisjoint(table.acts)}
            acts = {site: [row in chosen for row in row_of_token] for site, chosen in acting.items()}
            readings, columns = self._readings_of(row_of_token)
            self._plan = SteeringPlan(
                row_of_token,
                rows=torch.tensor(row_of_token, device=self._device),
                expected=[self._num_sites.get(row, 0) for row in row_of_token],
                acts=acts,
                given={site: self._sites[site].given_in(row_of_token, columns) for site in acts},
                readings=readings,
            )
        return self._plan

    def _readings_of(
        self, row_of_token: list[int]
    ) -> tuple[dict[Site, tuple[Reading, ...]], dict[ReadingKey, dict[int, int]]]:
        """Return the readings that tokens with these rows need, by site, and the columns of features in each."""
        rows = set(row_of_token)
        needed: dict[ReadingKey, tuple[Source, set[int], set[int]]] = {}
        for table in self._sites.values():
            for row in rows if table.has_sources else ():
                for source in table.sources_of(row).values():
                    if source.reading_key is not None:
                        _, features, of_rows = needed.setdefault(source.reading_key, (source, set(), set()))
                        features.add(source.feature)
                        of_rows.add(row)
        columns = {key: {f: i for i, f in enumerate(sorted(found))} for key, (_, found, _) in needed.items()}
        readings: dict[Site, tuple[Reading, ...]] = {}
        for key, (source, _, of_rows) in needed.items():
            if source.prompt_gate is None and source.site is not None:
                places = [place for place, row in enumerate(row_of_token) if row in of_rows]
                tokens, read = (torch.tensor(each, device=self._device) for each in (places, list(columns[key])))
                reading = Reading(key, source.reader, tokens, read, self._batch_invariant)
                readings[source.site] = (*readings.get(source.site, ()), reading)
        return readings, columns

    def _static_plan(self) -> _StaticPlan:
        """Return what static steps read, for all rows. Built before a capture, which forbids copies to the device."""
        versions = tuple((site, table.version) for site, table in self._sites.items())
        if self._static is None or self._static.versions != versions:
            rows = sorted({row for table in self._sites.values() for row in table.rows_with_sources})
            readings, columns = self._readings_of(rows)
            given = {site: table.given_in(rows, columns) for site, table in self._sites.items()}
            own = {site: tuple(one for one in asked if not one.is_decided) for site, asked in given.items()}
            self._static = _StaticPlan(versions, own, readings)
        return self._static

    def _apply(self, site: Site, hidden: Tensor) -> Tensor | None:
        """Return the steered hidden states; None if the step changes nothing at the site."""
        step = self._step
        if step is None or (step.plan is None and step.prompt_gates is None):
            return None
        flat = hidden.reshape(-1, hidden.shape[-1])
        if step.prompt_gates is not None:
            step.readings.update(step.prompt_gates.look(site, flat))
        if step.plan is None:
            return None
        if step.static_rows is not None:
            return self._apply_static(site, flat, step, step.static_rows, hidden.shape)
        for reading in step.plan.readings.get(site, ()):
            step.readings[reading.key] = reading.of_own(flat)
        if site not in step.plan.acts:
            return None
        given = step.plan.given[site]
        steered, changes = self._sites[site].apply(flat, step.plan.rows, given, step.readings)
        step.ran.append(site)
        step.changes.append(changes)
        return steered.view(hidden.shape)

    def _apply_static(
        self, site: Site, hidden: Tensor, step: SteeringStep, rows: Tensor, shape: torch.Size
    ) -> Tensor | None:
        plan = self._static_plan()
        for reading in plan.readings.get(site, ()):
            step.readings[reading.key] = reading.of_all(hidden)
        if site not in self._sites:
            return None
        self._ran_static.append(site)
        return self._sites[site].apply_static(hidden, rows, plan.given[site], step.readings).view(shape)

    # Building

    def _add(self, intervention: Intervention) -> _Entry:
        for edit in intervention.edits:
            self._check(edit)
        if len(intervention.prompt_gates) > MAX_PROMPT_GATES:
            raise SiteError(f"An intervention may have {MAX_PROMPT_GATES} gates that the prompt decides.")
        self._plan = None
        laid: dict[tuple[int, ...], int] = {}
        kinds = [intervention, *map(intervention.decided, _all_decisions(intervention))]  # keeps the edits' ids unique
        try:
            base, *decided = [self._lay_rows(each, laid) for each in kinds]
        except BaseException:
            self._clear(laid.values())
            raise
        tables, rows = self._sites.values(), frozenset(laid.values())
        by_decisions = dict(zip(_all_decisions(intervention), decided, strict=True))
        return _Entry(
            replace(base, rows=rows, decided=by_decisions),
            frozenset(intervention.sites) | intervention.read_sites,
            num_entries=sum(table.num_entries_of(row) for table in tables for row in rows),
            needs_sae_forward=any(table.needs_sae_forward(row) for table in tables for row in rows),
        )

    def _lay_rows(self, intervention: Intervention, laid: dict[tuple[int, ...], int]) -> SteeringRows:
        prompt = self._lay_places(place_programs(intervention, "prompt"), laid)
        last = self._lay_places(place_programs(intervention, "last_prompt_token"), laid)
        by_segment = {segment: place_programs(intervention, "generation", segment) for segment in SEGMENTS}
        generation = {segment: self._lay_places(programs, laid) for segment, programs in by_segment.items()}
        skipped = intervention.skip_token_ids
        return SteeringRows(intervention.fingerprint, prompt, last, generation, frozenset(), skipped)

    def _lay_places(self, places: PlacePrograms, laid: dict[tuple[int, ...], int]) -> PlaceRows:
        rows, special_rows = (
            tuple(tuple(self._lay(program, laid) for program in row) for row in programs)
            for programs in (places.programs, places.special_programs)
        )
        return PlaceRows(places.starts, places.segment_starts, rows, special_rows)

    def _lay(self, program: Program, laid: dict[tuple[int, ...], int]) -> int:
        """Return the program's row: 0 without edits, the same row for the same edits."""
        if not program:
            return 0
        key = tuple(map(id, program))
        if key not in laid:
            row = laid[key] = self._take_row()
            self._num_sites[row] = len({edit.site for edit in program})
            for site, edits in by_site(program).items():
                self._site(site).set_row(row, edits)
        return laid[key]

    def _site(self, site: Site) -> SiteTable:
        if site not in self._sites:
            self._sites[site] = SiteTable(
                site_width(self._module, site), self._capacity, self._device, batch_invariant=self._batch_invariant
            )
        return self._sites[site]

    def _take_row(self) -> int:
        if self._free_rows:
            return self._free_rows.pop()
        if self._num_rows == self._capacity:
            self._capacity *= 2
            for table in self._sites.values():
                table.grow_rows(self._capacity)
        self._num_rows += 1
        return self._num_rows - 1

    def _check(self, edit: Edit) -> None:
        if edit.site.kind in READ_ONLY:
            raise SiteError(f"The site {edit.site.label} is only read; edits cannot change it.")
        if isinstance(edit, VectorEdit):
            self._check_width(edit.site, edit.vector.shape[0])
        elif isinstance(edit, NormEdit):
            site_width(self._module, edit.site)
        else:
            site_width(self._module, edit.site)
            self._check_width(edit.reads_at or edit.site, edit.reader.d_in)
            for gate in edit.gates:
                self._check_width(gate.site or edit.site, gate.reader.d_in)
                if gate.site is not None and gate.site.comes_after(edit.site):
                    raise SiteError(f"A gate at {gate.site.label} is computed after the edit at {edit.site.label}.")

    def _check_width(self, site: Site, given: int) -> None:
        width = site_width(self._module, site)
        if given != width:
            raise SiteError(f"The edit has {given} values, but the model has {width} at {site.label}.")

    # Idle interventions

    def _put_idle(self, fingerprint: str, entry: _Entry) -> None:
        self._idle[fingerprint] = entry
        self._num_idle_rows += len(entry.rows.rows)
        self._num_idle_entries += entry.num_entries

    def _take_idle(self, fingerprint: str) -> _Entry | None:
        entry = self._idle.pop(fingerprint, None)
        if entry is not None:
            self._num_idle_rows -= len(entry.rows.rows)
            self._num_idle_entries -= entry.num_entries
        return entry

    def _has_too_many_idle(self) -> bool:
        return self._num_idle_rows > MAX_IDLE_ROWS or self._num_idle_entries > MAX_IDLE_ENTRIES

    def _drop_idle(self, fingerprint: str) -> None:
        entry = self._take_idle(fingerprint)
        assert entry is not None, "the intervention is idle"
        self._clear(entry.rows.rows)

    def _clear(self, rows: Iterable[int]) -> None:
        self._plan = None
        for row in rows:
            for table in self._sites.values():
                table.clear_row(row)
            del self._num_sites[row]
            self._free_rows.append(row)


def _all_decisions(intervention: Intervention) -> list[Decisions]:
    """Return all ways to decide the prompt gates; none without such gates."""
    gates = intervention.prompt_gates
    return list(product((False, True), repeat=len(gates))) if gates else []
