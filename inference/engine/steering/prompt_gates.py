"""Gates that a request's prompt decides once, as in conditional activation steering (Lee et al., 2024).

The value of such a gate is the mean over the prompt's tokens, or the value at its last token. The step that computes
the last prompt token compares it with the threshold: the gate holds from that token on, for the whole generation. A
sequence keeps the sums while its prompt runs in chunks, and its decisions, so that it continues in the same way after a
preemption.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import torch
from torch import Tensor

from inference.engine.steering.readings import ReadingKey, activations_of
from inference.interventions import Decisions, Gate, Site

LEAST = float(torch.finfo(torch.float32).min)  # the value without any token: all gates are closed


@dataclass(frozen=True, slots=True)
class GateSum:
    """The sum over a gate's tokens so far: ``[d]`` or ``[1]`` float64 on the device; None before the first one."""

    total: Tensor | None = None
    num_tokens: int = 0


class SequenceGates:
    """The prompt gates of one sequence. ``skip_token_ids`` and an ordinary first token do not count for means."""

    def __init__(self, gates: tuple[Gate, ...], token_ids: Many[int], skip_token_ids: frozenset[int]) -> None:
        self.gates = gates
        self.decisions: Decisions | None = None
        self.sums = [GateSum() for _ in gates]
        self._num_prompt = len(token_ids)
        self._num_seen = 0  # leading places that are in the sums
        first = int(token_ids[0] not in skip_token_ids)  # an attention sink
        self._meant = [at for at in range(first, len(token_ids)) if token_ids[at] not in skip_token_ids]

    @property
    def next_place(self) -> int:
        """The first place that must still run; the last prompt token if only that one counts."""
        if any(gate.scope == "prompt_mean" for gate in self.gates):
            return min(self._num_seen, self._num_prompt - 1)
        return self._num_prompt - 1

    def places(self, gate: Gate, start: int, end: int) -> list[int]:
        """Return the places in ``start <= place < end`` that count for a gate and are not in its sum yet."""
        if gate.scope == "prompt_last":
            return [self._num_prompt - 1] if start < self._num_prompt <= end else []
        first = max(start, self._num_seen)
        return [place for place in self._meant if first <= place < end]

    def note(self, sums: list[GateSum], end: int) -> None:
        """Replace the sums by those after the tokens before place ``end``."""
        self.sums = sums
        self._num_seen = max(self._num_seen, min(end, self._num_prompt))

    def gated(self, start: int, end: int) -> range:
        """Return the places in ``start <= place < end`` that the gates affect: none before the last prompt token."""
        return range(max(start, min(self._num_prompt - 1, end)), end)


@dataclass(slots=True)
class GateTask:
    """One gate of a sequence in a step. ``rows``: the tokens of the packed step that count; ``gated``: those that the
    gate affects, once it is decided.
    """

    gates: SequenceGates
    number: int
    rows: list[int]
    gated: range

    @property
    def gate(self) -> Gate:
        return self.gates.gates[self.number]


@dataclass(slots=True)
class PromptGateStep:
    """The prompt gates of a step's sequences that are not decided yet. ``ends``: the place after each sequence's last
    token in the step.
    """

    tasks: dict[Site, list[GateTask]] = field(default_factory=dict)
    ends: list[tuple[SequenceGates, int]] = field(default_factory=list)
    batch_invariant: bool = False
    _sums: dict[tuple[int, int], GateSum] = field(default_factory=dict)  # by sequence and gate
    _values: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def add(self, gates: SequenceGates, first: int, start: int, num_tokens: int) -> None:
        """Add a sequence whose places from ``start`` on are the tokens from ``first`` on of the step."""
        end = start + num_tokens
        self.ends.append((gates, end))
        gated = gates.gated(start, end)
        for number, gate in enumerate(gates.gates):
            assert gate.site is not None, "a gate that the prompt decides has a site"
            rows = [first + place - start for place in gates.places(gate, start, end)]
            self.tasks.setdefault(gate.site, []).append(
                GateTask(gates, number, rows, range(first + gated.start - start, first + gated.stop - start))
            )

    def look(self, site: Site, hidden: Tensor) -> dict[ReadingKey, Tensor]:
        """Add the site's ``[tokens, d]`` hidden states to the sums. Return the values of gates that are decided,
        ``[tokens, 1]`` float32.
        """
        values: dict[ReadingKey, Tensor] = {}
        for task in self.tasks.get(site, ()):
            which = (id(task.gates), task.number)
            self._sums[which] = found = _added(
                task.gates.sums[task.number], task, hidden, batch_invariant=self.batch_invariant
            )
            if task.gated:
                self._values[which] = value = _value(task.gate, found, hidden.device)
                at = values.setdefault(task.gate.key, hidden.new_zeros(len(hidden), 1, dtype=torch.float32))
                at[task.gated.start : task.gated.stop] = value
        return values

    def commit(self) -> None:
        """Keep the sums, and decide gates, after the step has succeeded. Waits for the device."""
        for gates, end in self.ends:
            numbers = [(id(gates), number) for number in range(len(gates.gates))]
            gates.note([self._sums[which] for which in numbers], end)
            if all(which in self._values for which in numbers):
                values = [float(self._values[which]) for which in numbers]
                gates.decisions = tuple(v > gate.above for v, gate in zip(values, gates.gates, strict=True))


def _added(sums: GateSum, task: GateTask, hidden: Tensor, *, batch_invariant: bool) -> GateSum:
    if not task.rows:
        return sums
    gate, x = task.gate, hidden[torch.tensor(task.rows, device=hidden.device)].float()
    if not gate.pools_residual:
        features = torch.tensor([gate.feature], device=x.device)
        x = activations_of(gate.reader, x, features, batch_invariant=batch_invariant)
    if batch_invariant:  # token after token, whatever the chunks of the prompt are
        before = x.new_zeros(1, x.shape[1], dtype=torch.float64) if sums.total is None else sums.total.unsqueeze(0)
        total = torch.cat([before, x.double()]).cumsum(0)[-1]
        return GateSum(total, sums.num_tokens + len(task.rows))
    total = x.double().sum(0)
    return GateSum(total if sums.total is None else sums.total + total, sums.num_tokens + len(task.rows))


def _value(gate: Gate, sums: GateSum, device: torch.device) -> Tensor:
    """Return the gate's value, a scalar."""
    if sums.total is None:
        return torch.tensor(LEAST, device=device)
    mean = (sums.total / sums.num_tokens).float()
    if not gate.pools_residual:
        return mean[0]
    return gate.reader.activations(mean.unsqueeze(0), torch.tensor([gate.feature], device=device))[0, 0]
