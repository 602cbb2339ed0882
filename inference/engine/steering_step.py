"""One forward pass under steering: what is to happen at each site, and what did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from inference.engine.steering_site import GivenActivations
from inference.interventions import Site


@dataclass(frozen=True, slots=True)
class SteeringPlan:
    """Holds for all steps whose tokens have the same rows, as long as no profile comes or goes.

    ``expected`` says at how many sites each token's profile acts; ``acts``, by site, whether the table changes the
    token there.
    """

    row_of_token: list[int]
    rows: Tensor  # [tokens] int64, on the device
    expected: list[int]
    acts: Mapping[Site, list[bool]]
    given: Mapping[Site, tuple[GivenActivations, ...]]
    _applied: dict[tuple[Site, ...], list[int]] = field(default_factory=dict)  # by what ran

    def applied(self, ran: tuple[Site, ...]) -> list[int]:
        """At how many sites each token was really steered when the hooks of these sites acted."""
        if ran not in self._applied:
            columns = [self.acts[site] for site in ran if site in self.acts]
            self._applied[ran] = [sum(acts) for acts in zip(*columns, strict=True)] or [0] * len(self.expected)
        return self._applied[ran]


@dataclass(slots=True)
class SteeringStep:
    """``plan`` is None where no token is steered. ``ran`` has each site's hook as often as it acted.

    With ``static_rows`` (``[tokens]`` int64 on the device) the hooks read the rows from there, whatever the plan says.
    """

    plan: SteeringPlan | None
    ran: list[Site] = field(default_factory=list)
    static_rows: Tensor | None = None

    def counts(self, num_tokens: int) -> tuple[list[int], list[int]]:
        """At how many sites each token was to be steered, and really was."""
        if self.plan is None:
            return [0] * num_tokens, [0] * num_tokens
        return self.plan.expected, self.plan.applied(tuple(self.ran))
