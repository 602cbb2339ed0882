"""What the engine does right now, for the admin, /health and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inference.engine.step_counters import Distribution

EngineState = Literal["idle", "running", "draining", "stopped", "failed"]
NOTHING = Distribution((), (0,), 0.0)


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One attached model: what it does now, and counts since it was attached.

    ``kv_used_ratio`` is 0 to 1; ``prefix_queries`` and ``prefix_hits`` count prompt tokens looked up in the prefix
    cache and found there; ``steering_rows`` the rows of the steering tables in use; ``step_faults`` attempts at a step
    that raised, by code. Distributions are of seconds, sequences and tokens of a step. ``kernels`` says which are used.
    """

    name: str
    running: int = 0
    waiting: int = 0
    kv_used_ratio: float = 0.0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    steering_rows: int = 0
    step_seconds: Distribution = NOTHING
    step_sequences: Distribution = NOTHING
    step_tokens: Distribution = NOTHING
    step_faults: Mapping[str, int] = field(default_factory=dict)
    kernels: str = ""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """``restarts`` counts how often the engine thread was replaced after it died."""

    state: EngineState
    running: int = 0
    waiting: int = 0
    free_slots: int = 0
    steps: int = 0
    models: tuple[str, ...] = ()
    error: str = ""
    restarts: int = 0
    by_model: tuple[ModelStats, ...] = ()

    @property
    def is_up(self) -> bool:
        return self.state in {"idle", "running"}
