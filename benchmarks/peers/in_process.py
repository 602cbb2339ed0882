"""transformers as a peer, on a separate module: ``generate`` on a padded batch, and continuous batching."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from transformers.generation import StoppingCriteria, StoppingCriteriaList

from benchmarks.figures import Trace
from benchmarks.machine import peak_memory_mb
from benchmarks.shapes import Shape
from benchmarks.workloads import Job, Workload
from inference.torch_threads import borrowed_workers

GENERATE, GENERATE_BATCH = "transformers generate", "transformers generate_batch"
PAD = 0
NEVER = -1  # an end-of-sequence id that is not a token
# By default it would fill all memory of a CPU with a cache and a mask over it. This is enough for the workloads.
CPU_SIZES: dict[str, Any] = {"num_blocks": 96, "max_batch_tokens": 1024}
GPU_SIZES: dict[str, Any] = {"max_memory_percent": 0.4}  # leaves memory for the engine


def load_module(shape: Shape, path: Path, device: str = "") -> Any:
    """Load the model with transformers, without the engine's modifications."""
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    module: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, shape.dtype), local_files_only=True)
    return module.to(place).eval()


class _Clock(StoppingCriteria):  # type: ignore[misc]  # transformers is untyped here
    """Records the times at which the steps of ``generate`` end. Never stops it."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
        input_ids[0, -1].item()  # synchronizes with the device
        self.times.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


class Generate:
    """``generate`` on all jobs at once, padded on the left, until the longest ends. Only requested tokens count.

    Late jobs run after the others, because they cannot join a running batch.
    """

    def __init__(self, module: Any, name: str = GENERATE) -> None:
        self.name = name
        self._module = module

    @borrowed_workers()
    def run(self, workload: Workload) -> list[Trace]:
        sent_at = time.perf_counter()
        traces = self._batch([job for job in workload.jobs if not job.after], sent_at)
        late = [job for job in workload.jobs if job.after]
        if late:
            arrived_at = max(trace.event_times[late[0].after - 1] for trace in traces)
            traces += self._batch(late, arrived_at)
        return traces

    def peak_memory_mb(self) -> float | None:
        return peak_memory_mb()

    def _batch(self, jobs: list[Job], sent_at: float) -> list[Trace]:
        longest, new, clock = max(len(job.prompt) for job in jobs), max(job.new for job in jobs), _Clock()
        ids = [[PAD] * (longest - len(job.prompt)) + list(job.prompt) for job in jobs]
        mask = [[0] * (longest - len(job.prompt)) + [1] * len(job.prompt) for job in jobs]
        device = self._module.device
        self._module.generate(
            torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            generation_config=GenerationConfig(
                max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=PAD
            ),
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        return [
            Trace(sent_at, tuple(clock.times[: job.new]), len(job.prompt), job.new, is_late=job.after > 0)
            for job in jobs
        ]


class GenerateBatch:
    """The manager behind ``generate_batch``, with a completion length per job and support for late jobs."""

    def __init__(self, module: Any, name: str = GENERATE_BATCH) -> None:
        self.name = name
        self._module = module
        self._sizes = CPU_SIZES if module.device.type == "cpu" else GPU_SIZES

    def run(self, workload: Workload) -> list[Trace]:
        """Run the jobs. The manager is kept, so that only the first (warm-up) run creates its cache and graphs."""
        context = self._module.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=NEVER, pad_token_id=PAD),
            continuous_batching_config=ContinuousBatchingConfig(**self._sizes),
            persistent_manager=True,
        )
        with context as manager:
            return self._collect(manager, workload)

    def close(self) -> None:
        """Free the cache."""
        self._module.destroy_cached_continuous_batching_manager()

    def peak_memory_mb(self) -> float | None:
        return peak_memory_mb()

    def _collect(self, manager: Any, workload: Workload) -> list[Trace]:
        early = [job for job in workload.jobs if not job.after]
        late = [job for job in workload.jobs if job.after]
        wanted = {_add(manager, i, job): (time.perf_counter(), job) for i, job in enumerate(early)}
        made: dict[str, int] = {}
        traces: list[Trace] = []
        while len(traces) < len(workload.jobs):
            output = manager.get_result(timeout=1)
            if output is None:
                if not manager.is_running():
                    raise RuntimeError(f"{self.name} stopped before all requests had ended.")
                continue
            if output.error is not None:
                raise RuntimeError(f"{self.name}: {output.error}")
            made[output.request_id] = len(output.generated_tokens)
            if output.is_finished():
                sent_at, job = wanted[output.request_id]
                times, tokens = tuple(output.timestamps), len(output.generated_tokens)
                traces.append(Trace(sent_at, times, len(job.prompt), tokens, is_late=job.after > 0))
            elif late and len(made) == len(early) and min(made.values()) >= late[0].after:
                wanted |= {_add(manager, len(early), job): (time.perf_counter(), job) for job in late}
                late = []
        return traces


def _add(manager: Any, number: int, job: Job) -> str:
    name = f"bench-{number}"
    manager.add_request(
        list(job.prompt),
        request_id=name,
        max_new_tokens=job.new,
        streaming=True,
        record_timestamps=True,
        eos_token_id=NEVER,
    )
    return name
