"""The recipe of a training: the numbers that, with the activations, determine the trained SAE."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from inference.interventions import SiteKind
from steering.training.errors import TrainingError

Activation = Literal["topk", "batchtopk", "jumprelu"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
TRAINABLE_SITES: tuple[SiteKind, ...] = ("resid_pre", "resid_post", "mlp_out", "attn_out")  # SAELens names them
MAX_FEATURES = 1 << 20
MAX_TOKENS = 2_000_000_000
MAX_BATCH = 1 << 16
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("features", 1, MAX_FEATURES),
    ("k", 1, MAX_FEATURES),
    ("tokens", 1, MAX_TOKENS),
    ("batch", 1, MAX_BATCH),
    ("learning_rate", 1e-9, 10),
    ("aux_weight", 0, 1000),
    ("aux_k", 1, MAX_FEATURES),
    ("dead_after", 1, MAX_TOKENS),
    ("l0_weight", 0, 1000),
    ("bandwidth", 1e-9, 1000),
)


@dataclass(frozen=True, slots=True)
class TrainingRecipe:
    """Shape and training of an SAE.

    ``activation``: ``topk`` keeps the ``k`` largest of each token (Gao et al. 2024), ``batchtopk`` the ``k`` times
    batch size largest of a batch (Bussmann et al. 2024), ``jumprelu`` learns a threshold per feature and is pulled to
    a mean of ``k`` active features (Rajamanoharan et al. 2024). The last two are saved as JumpReLU.

    ``tokens`` is the number of training vectors, drawn without repetition until all stored ones were used, then again.
    ``aux_weight`` weighs the auxiliary loss, in which up to ``aux_k`` features that were silent for ``dead_after``
    tokens reconstruct the error of the others (AuxK of Gao et al.). ``l0_weight`` and ``bandwidth`` only concern
    ``jumprelu``: the weight of its penalty, and the width of the kernel in the estimate of the threshold's gradient.
    """

    features: int
    k: int = 32
    activation: Activation = "topk"
    tokens: int = 4_000_000
    batch: int = 2048
    learning_rate: float = 1e-3
    aux_weight: float = 1 / 32
    aux_k: int = 64
    dead_after: int = 200_000
    l0_weight: float = 0.1
    bandwidth: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise _invalid("activation", f"must be one of {', '.join(ACTIVATIONS)}", self.activation)
        for name, smallest, largest in _RANGES:
            value = getattr(self, name)
            if not (math.isfinite(value) and smallest <= value <= largest):
                raise _invalid(name, f"must be between {smallest} and {largest}", value)
        if self.k > self.features:
            raise _invalid("k", f"must be at most the number of features ({self.features})", self.k)
        if self.tokens < self.batch:
            raise _invalid("tokens", f"must be at least the batch ({self.batch})", self.tokens)

    @property
    def steps(self) -> int:
        return self.tokens // self.batch

    @property
    def architecture(self) -> str:
        """The architecture of the written SAE."""
        return "topk" if self.activation == "topk" else "jumprelu"

    def learning_rate_at(self, step: int) -> float:
        """Return the rate at a step: linear from 0 over the first 5 %, and to 0 over the last 20 %."""
        warm = min(1.0, (step + 1) / max(1, self.steps // 20))
        left = min(1.0, (self.steps - step) / max(1, self.steps // 5))
        return self.learning_rate * min(warm, left)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainingRecipe:
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})


def _invalid(name: str, rule: str, value: object) -> TrainingError:
    return TrainingError(f"`{name}` {rule}, got {value!r}.", param=name)
