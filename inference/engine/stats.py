"""What the engine does right now, for the admin, /health and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from inference.engine.step_counters import Distribution

EngineState = Literal["idle", "running", "draining", "stopped", "failed"]
NOTHING = Distribution((), (0,), 0.0)


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What was chosen for a model from the machine, the settings and the model itself.

    ``num_threads`` compute on a CPU. One sequence has ``max_seq_len`` tokens at most, and ``max_batch_size`` sequences
    run at once. The cache of ``kv_bytes`` holds ``kv_tokens`` tokens of all of them together; an embedding model has
    none.
    """

    device: str = ""
    dtype: str = ""
    num_threads: int = 0
    max_seq_len: int = 0
    max_batch_size: int = 0
    kv_cache_backend: str = "none"
    kv_bytes: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ModelStats:
    """One attached model: what it does now, and counts since it was attached.

    ``kv_used_ratio`` is 0 to 1; ``kv_unwritten_bytes`` of the cache's memory are not taken from the device yet;
    ``prefix_queries`` and ``prefix_hits`` count prompt tokens looked up in the prefix cache and found there;
    ``drafts`` were checked, they had ``draft_tokens`` of which ``accepted_draft_tokens`` were right; ``steering_rows``
    the rows of the steering tables in use; ``step_faults`` attempts at a step that raised, by code. Distributions are
    of seconds, sequences and tokens of a step. ``kernels`` says which are used.
    """

    name: str
    limits: ModelLimits = ModelLimits()
    running: int = 0
    waiting: int = 0
    kv_used_ratio: float = 0.0
    kv_unwritten_bytes: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
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
