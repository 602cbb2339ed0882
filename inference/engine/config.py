"""Settings of an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

BATCHING_MODES = ("continuous", "static")
SCHEDULER_POLICIES = ("fcfs", "priority")
KV_CACHE_BACKENDS = ("auto", "contiguous", "paged")
ATTENTION_KERNELS = ("auto", "torch")
CUDA_GRAPHS = ("auto", "off")
SPECULATIVE_METHODS = ("none", "prompt_lookup")
CPU_BATCH_SIZE, GPU_BATCH_SIZE = 16, 64
CPU_PREFILL_TOKENS, GPU_PREFILL_TOKENS = 512, 4096
GPU_MIN_PREFILL_TOKENS = 512
READ_PLACES = 128  # of prompts, whose logits one step reads at most (log-probabilities of prompts, scores)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine.

    Batching: ``max_batch_size`` sequences run at once (0: 16 on a CPU, 64 on a GPU); ``max_waiting_requests`` more may
    queue, further ones are refused. With ``batching_mode`` ``continuous``, sequences join and leave at each step;
    ``static`` waits up to ``batch_wait_timeout_s`` for a full batch and runs it to its end. ``scheduler_policy``
    ``fcfs`` runs requests in order of arrival, ``priority`` runs those of higher priority first.

    ``max_prefill_tokens`` is the budget of prompt tokens in one step (0: 512 on a CPU, 4096 on a GPU). While other
    sequences decode and one prompt is computed, the budget shrinks so that a step takes at most ``max_stall_factor``
    times as long as one that only decodes (0: it never shrinks), but not below ``min_prefill_tokens``, which cost
    hardly more than a single one (0: 16 on a CPU, 512 on a GPU). Each further prompt that is computed, or that waits
    for a shared prefix, adds as much again. Sequences that began at the same time as the prompts do not count, but
    while any sequence decodes, the prompt tokens of a step take at most a second, by their measured cost.

    ``max_seq_len`` limits prompt plus completion of a sequence; 0 uses the model's context length.

    ``kv_cache_backend`` ``auto`` is ``paged``, except on a CPU without the C++ kernels, and on a GPU whose kernel does
    not support pages if there is memory for all rows. ``kv_cache_bytes`` is the memory for keys and values of one
    model; at most as much is used as ``max_batch_size`` sequences can fill. With 0, the caller that attaches the model
    sets the size (the registry, by its budget), otherwise half of the free memory is used. ``prefix_cache`` reuses the
    keys and values of finished sequences for requests with the same prefix.

    ``attention_kernel`` ``auto`` uses the Triton kernel or torch's flash kernel on a GPU, where one of them works;
    ``torch`` uses plain operations.
    ``cuda_graphs`` ``auto`` captures decode steps on a GPU.

    ``speculative_method`` ``prompt_lookup`` drafts up to ``num_speculative_tokens`` tokens of a sequence from what
    followed an earlier occurrence of its last ``prompt_lookup_max`` (at least ``prompt_lookup_min``) tokens, and
    verifies them in the same step; the output does not change. Drafts run if their expected gain is at least
    ``min_speculative_gain`` times their measured cost (0: always).
    """

    max_seq_len: int = 0
    max_batch_size: int = CPU_BATCH_SIZE
    max_waiting_requests: int = 64
    max_prefill_tokens: int = CPU_PREFILL_TOKENS
    min_prefill_tokens: int = 0
    max_stall_factor: float = 2.0
    batching_mode: Literal["continuous", "static"] = "continuous"
    batch_wait_timeout_s: float = 0.05
    scheduler_policy: Literal["fcfs", "priority"] = "fcfs"
    kv_cache_backend: Literal["auto", "contiguous", "paged"] = "auto"
    kv_cache_bytes: int = 0
    prefix_cache: bool = True
    attention_kernel: Literal["auto", "torch"] = "auto"
    cuda_graphs: Literal["auto", "off"] = "auto"
    speculative_method: Literal["none", "prompt_lookup"] = "none"
    num_speculative_tokens: int = 4
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    min_speculative_gain: float = 1.05
    seed: int | None = None

    def on(self, device_type: str) -> EngineConfig:
        """Return the settings for a device, with those chosen that depend on it."""
        is_cpu = device_type == "cpu"
        return replace(
            self,
            max_batch_size=self.max_batch_size or (CPU_BATCH_SIZE if is_cpu else GPU_BATCH_SIZE),
            max_prefill_tokens=self.max_prefill_tokens or (CPU_PREFILL_TOKENS if is_cpu else GPU_PREFILL_TOKENS),
            min_prefill_tokens=self.min_prefill_tokens or (0 if is_cpu else GPU_MIN_PREFILL_TOKENS),
        )

    def __post_init__(self) -> None:
        _one_of("batching_mode", self.batching_mode, BATCHING_MODES)
        _one_of("scheduler_policy", self.scheduler_policy, SCHEDULER_POLICIES)
        _one_of("kv_cache_backend", self.kv_cache_backend, KV_CACHE_BACKENDS)
        _one_of("attention_kernel", self.attention_kernel, ATTENTION_KERNELS)
        _one_of("cuda_graphs", self.cuda_graphs, CUDA_GRAPHS)
        _one_of("speculative_method", self.speculative_method, SPECULATIVE_METHODS)
        for name in (
            "max_waiting_requests",
            "num_speculative_tokens",
            "prompt_lookup_min",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        for name in (
            "max_seq_len",
            "max_batch_size",
            "max_prefill_tokens",
            "min_prefill_tokens",
            "batch_wait_timeout_s",
            "kv_cache_bytes",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}.")
        if self.max_stall_factor and not self.max_stall_factor > 1:
            raise ValueError(f"max_stall_factor must be 0 or more than 1, got {self.max_stall_factor}.")
        if self.prompt_lookup_max < self.prompt_lookup_min:
            raise ValueError(
                f"prompt_lookup_max must be at least prompt_lookup_min ({self.prompt_lookup_min}), got "
                f"{self.prompt_lookup_max}."
            )
        if self.min_speculative_gain and not self.min_speculative_gain >= 1:
            raise ValueError(f"min_speculative_gain must be 0 or at least 1, got {self.min_speculative_gain}.")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}.")
