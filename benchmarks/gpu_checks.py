"""What `make bench-gpu` does besides timing: compare the engine's options with plain torch, and profile a workload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine import Answer, EngineSubject
from benchmarks.steering import steered_jobs
from benchmarks.subject import Subject
from benchmarks.workloads import Workload
from inference.engine.messages import SamplingParams

TOLERANCE = 0.1  # nats; two kernels round differently, and the difference grows with the layers
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=0)


@dataclass(frozen=True, slots=True)
class Check:
    """Answers of an engine with an option, compared with those of plain torch on the same prompts and steering.

    ``difference`` is the largest difference of the log-probability of a token, up to the first one that is not the
    same; ``same`` the share of answers with the same tokens. ``failure`` is why there are no answers.
    """

    option: str
    steering: str
    difference: float = 0.0
    same: float = 0.0
    failure: str = ""

    @property
    def is_right(self) -> bool:
        return not self.failure and self.difference <= TOLERANCE

    def __str__(self) -> str:
        name = f"{self.option}, {self.steering}"
        if self.failure:
            return f"FAILED   {name}: {self.failure}"
        verdict = "ok" if self.is_right else "DIFFERS"
        return f"{verdict:8} {name}: largest difference {self.difference:.2g} nats, {self.same:.0%} of answers equal"


def check_options(
    engines: Mapping[str, EngineSubject], plain: str, kinds: Sequence[str], profiles: int, workload: Workload
) -> Iterator[Check]:
    """Compare each engine with the one named ``plain``, unsteered and with ``profiles`` profiles of each kind."""
    steerings = {"unsteered": workload}
    for number, kind in enumerate(kinds):
        jobs = steered_jobs(workload.jobs, profiles, number * profiles)
        steerings[kind] = Workload(workload.name, workload.note, jobs)
    for steering, steered in steerings.items():
        expected = engines[plain].with_sampling(GREEDY).answers(steered)
        for name, engine in engines.items():
            if name != plain:
                yield _check(name, steering, engine.with_sampling(GREEDY), steered, expected)


def _check(name: str, steering: str, engine: EngineSubject, workload: Workload, expected: Sequence[Answer]) -> Check:
    try:
        found = engine.answers(workload)
    except RuntimeError as error:
        return Check(name, steering, failure=str(error))
    differences = [difference(one, other) for one, other in zip(found, expected, strict=True)]
    same = [one.token_ids == other.token_ids for one, other in zip(found, expected, strict=True)]
    return Check(name, steering, max(differences), sum(same) / len(same))


def difference(one: Answer, other: Answer) -> float:
    """Return the largest difference of log-probabilities up to the first token that differs, inclusive.

    There, both chose the likeliest token, so that a large difference is not one of rounding.
    """
    pairs = zip(one.token_ids, other.token_ids, strict=True)
    length = next((n + 1 for n, (a, b) in enumerate(pairs) if a != b), len(one.token_ids))
    return max(abs(a - b) for a, b in zip(one.logprobs[:length], other.logprobs[:length], strict=True))


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of a workload. ``idle`` is the share of the time in which the device ran nothing; None on a CPU."""

    trace: Path
    seconds: float
    idle: float | None
    top: tuple[tuple[str, float], ...]
    """The kernels that took the longest, with their seconds."""

    def lines(self) -> list[str]:
        idle = "" if self.idle is None else f"; the device was idle for {self.idle:.1%} of the time"
        kernels = [f"- {seconds * 1000:8.1f} ms  {name[:100]}" for name, seconds in self.top]
        return [f"{self.seconds:.2f} s{idle}. Trace for chrome://tracing or Perfetto: {self.trace}", *kernels]


def profiled(subject: Subject, workload: Workload, trace: Path, num_kernels: int = 12) -> Profile:
    """Run the workload under torch's profiler and write a Chrome trace."""
    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        began = time.perf_counter()
        subject.run(workload)
        if on_gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    trace.parent.mkdir(parents=True, exist_ok=True)
    found.export_chrome_trace(str(trace))
    kind = "CUDA" if on_gpu else "CPU"
    spans = [(e.name, e.time_range.start, e.time_range.end) for e in found.events() if e.device_type.name == kind]
    total: dict[str, float] = {}
    for name, start, end in spans:
        total[name] = total.get(name, 0.0) + (end - start) / 1e6
    top = sorted(total.items(), key=lambda pair: -pair[1])[:num_kernels]
    idle = 1 - busy((start, end) for _, start, end in spans) / 1e6 / seconds if on_gpu else None
    return Profile(trace, seconds, idle, tuple(top))


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


class Steps:
    """Runs steps until the time is over. A step that fails is reported, and does not keep the others from running."""

    def __init__(
        self, seconds: float, echo: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._echo = clock, echo
        self._began = clock()
        self._deadline = self._began + seconds
        self.failures: list[str] = []

    def __call__(self, name: str, step: Callable[[], None]) -> None:
        if self._clock() > self._deadline:
            self._echo(f"== {name}: skipped, the time is over (--minutes)")
            return
        self._echo(f"== {name} (after {self._clock() - self._began:.0f} s)")
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the next step may work
            self.failures.append(f"{name}: {type(error).__name__}: {error}. {advice(error)}".strip())
            self._echo(self.failures[-1])


def advice(error: Exception) -> str:
    """Return what to try after an error of a device."""
    text = f"{type(error).__name__} {error}".lower()
    for part, hint in (
        ("out of memory", "Use a smaller --shape, or free the device's memory."),
        ("no kernel image", "This torch was not built for the device: install the build for its compute capability."),
        ("driver", "The driver is older than this torch needs: update it, or install a torch for an older CUDA."),
        ("illegal memory access", "A kernel read out of bounds: run again with CUDA_LAUNCH_BLOCKING=1 to see which."),
        ("capture", "A CUDA graph could not be captured: MILLM_CUDA_GRAPHS=off serves without graphs."),
    ):
        if part in text:
            return hint
    return ""
