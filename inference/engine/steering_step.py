"""One forward pass under steering: what is to happen at each site, and what did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from inference.engine.steering_site import GivenActivations
from inference.interventions import Site


@dataclass(frozen=True, slots=True)
class SteeringPlan:
    """Holds for all steps whose tokens have the same rows, as long as no profile comes or goes."""

    row_of_token: NDArray[np.int64]
    rows: Tensor  # [tokens] int64, on the device
    acts: Mapping[Site, NDArray[np.int64]]  # by site: [tokens], 1 where the token is to be changed
    given: Mapping[Site, tuple[GivenActivations, ...]]


@dataclass(slots=True)
class SteeringStep:
    """``plan`` is None where no token is steered. ``ran`` has each site's hook as often as it acted."""

    plan: SteeringPlan | None
    num_tokens: int
    ran: list[Site] = field(default_factory=list)

    def applied(self) -> NDArray[np.int64]:
        """``[tokens]``: at how many sites each token was really steered."""
        applied = np.zeros(self.num_tokens, dtype=np.int64)
        if self.plan is not None:
            for site in self.ran:
                applied += self.plan.acts[site]
        return applied
