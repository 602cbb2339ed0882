"""Settings of one engine, with document 003's names where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BATCHING_MODES = ("continuous",)
SCHEDULER_POLICIES = ("fcfs",)
KV_CACHE_BACKENDS = ("contiguous",)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """``max_batch_size`` sequences run at once; ``max_waiting_requests`` more may queue, then submit is refused.

    ``max_prefill_tokens`` is the token budget of prompt chunks in one step: decoding never waits for more.
    ``max_seq_len`` caps prompt plus completion of a sequence; 0 takes the model's own context length.
    """

    max_seq_len: int = 0
    max_batch_size: int = 16
    max_waiting_requests: int = 64
    max_prefill_tokens: int = 256
    batching_mode: Literal["continuous"] = "continuous"
    scheduler_policy: Literal["fcfs"] = "fcfs"
    kv_cache_backend: Literal["contiguous"] = "contiguous"
    seed: int | None = None

    def __post_init__(self) -> None:
        _one_of("batching_mode", self.batching_mode, BATCHING_MODES)
        _one_of("scheduler_policy", self.scheduler_policy, SCHEDULER_POLICIES)
        _one_of("kv_cache_backend", self.kv_cache_backend, KV_CACHE_BACKENDS)
        for name in ("max_batch_size", "max_waiting_requests", "max_prefill_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}.")
