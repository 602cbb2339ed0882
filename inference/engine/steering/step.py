"""One steered forward pass: the planned edits at each site, and their effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.sampling.transfers import HostCopy
from inference.engine.steering.prompt_gates import PromptGateStep
from inference.engine.steering.readings import GivenActivations, Reading, ReadingKey
from inference.interventions import Site


@dataclass(frozen=True, slots=True)
class SteeringPlan:
    """The plan for steps whose tokens have the same rows. Valid until a profile is added or removed.

    ``expected``: the number of sites at which each token's profile acts. ``acts``: by site, whether the table changes
    the token there. ``readings``: by site, what edits at later sites need of its residual.
    """

    row_of_token: list[int]
    rows: Tensor  # [tokens] int64, on the device
    expected: list[int]
    acts: Mapping[Site, list[bool]]
    given: Mapping[Site, tuple[GivenActivations, ...]]
    readings: Mapping[Site, tuple[Reading, ...]]
    _applied: dict[tuple[Site, ...], list[int]] = field(default_factory=dict)  # by the hooks that ran

    def applied(self, ran: tuple[Site, ...]) -> list[int]:
        """Return at how many sites each token was steered, given the sites whose hooks ran."""
        if ran not in self._applied:
            columns = [self.acts[site] for site in ran if site in self.acts]
            self._applied[ran] = [sum(acts) for acts in zip(*columns, strict=True)] or [0] * len(self.expected)
        return self._applied[ran]


@dataclass(frozen=True, slots=True)
class StepEffects:
    """The effects of a step. ``values`` ``[sites, 3, tokens]``: whether a token's profile acts at the site, whether it
    changed the token, and the change relative to its norm.
    """

    sites: tuple[Site, ...]
    values: NDArray[np.float64]

    def sums(self, ranges: Sequence[tuple[int, int]]) -> list[list[list[float]]]:
        """Return sums over ranges of tokens, ``[ranges][sites][3]``."""
        padded = np.concatenate([self.values, np.zeros((*self.values.shape[:2], 1))], axis=2)
        totals = np.add.reduceat(padded, [end for each in ranges for end in each], axis=2)[:, :, ::2]
        found: list[list[list[float]]] = totals.transpose(2, 0, 1).tolist()
        return found


@dataclass(slots=True)
class SteeringStep:
    """A forward pass. ``plan`` is None if no token is steered. ``ran``: the site of each hook call. ``changes``: the
    relative change of each token in that call, ``|h' - h| / |h|``, ``[tokens]`` float32 on the device.

    With ``static_rows`` (``[tokens]`` int64 on the device) the hooks read the rows from there, not from the plan.
    ``readings``: the values that hooks leave for those of later sites. ``prompt_gates``: those that the step decides,
    or prepares to.
    """

    plan: SteeringPlan | None
    ran: list[Site] = field(default_factory=list)
    static_rows: Tensor | None = None
    changes: list[Tensor] = field(default_factory=list)
    readings: dict[ReadingKey, Tensor] = field(default_factory=dict)
    prompt_gates: PromptGateStep | None = None
    _moved: tuple[tuple[Site, ...], HostCopy] | None = None  # the sites, and the changes there

    def copy_effects(self) -> None:
        """Start to copy the effects to the host, before other work on the device."""
        if self._moved is not None or self.plan is None:
            return
        ran = [(site, changes) for site, changes in zip(self.ran, self.changes, strict=True) if site in self.plan.acts]
        if ran:
            sites, changes = zip(*ran, strict=True)
            self._moved = sites, HostCopy(torch.stack(changes))

    def effects(self) -> StepEffects | None:
        """Return the effects on each token; None if nothing ran. Waits for the device."""
        self.copy_effects()
        if self.plan is None or self._moved is None:
            return None
        sites, copy = self._moved
        acts = np.array([self.plan.acts[site] for site in sites], dtype=np.float64)
        moved = copy.numpy().astype(np.float64) * acts
        return StepEffects(sites, np.stack([acts, moved != 0, moved], axis=1))

    def counts(self, num_tokens: int) -> tuple[list[int], list[int]]:
        """Return at how many sites each token should be steered, and was steered."""
        if self.plan is None:
            return [0] * num_tokens, [0] * num_tokens
        return self.plan.expected, self.plan.applied(tuple(self.ran))
