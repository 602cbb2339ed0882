"""The workloads on the engine's thread, without HTTP: ``python -m benchmarks.engine``."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import cast

from benchmarks.figures import Trace
from benchmarks.machine import peak_memory_mb
from benchmarks.options import Options, parse_options
from benchmarks.record import Record
from benchmarks.shapes import Shape, shape_folder
from benchmarks.subject import Plan, measure
from benchmarks.workloads import MAKERS, Job, Workload
from inference.captures import CaptureSpec
from inference.engine.config import EngineConfig
from inference.engine.loop import EngineLoop
from inference.engine.messages import (
    Event,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    PromptLogprobsEvent,
    SamplingParams,
    TokenLogprob,
    TokensEvent,
)
from inference.engine.models.facts import BatchInvariance, ModelSpec, Weights
from inference.engine.models.loader import LoadedModel, load_model
from inference.interventions import Intervention

TIMEOUT_S = 3600.0
IDLE_S = 0.7  # without a further captured step, after which there are no more
ENGINE = "miLLM engine"


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens of a request, and their log-probabilities and those of the prompt if they were requested."""

    token_ids: list[int]
    logprobs: list[float]
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # without the first token, which has none


@dataclass(eq=False)
class _Stream:
    """Subscriber of a request. Records the times of its events, on the engine's thread."""

    job: Job
    sent_at: float
    on_token: threading.Event = field(default_factory=threading.Event)  # set when ``target_tokens`` tokens have arrived
    ended: threading.Event = field(default_factory=threading.Event)
    target_tokens: int = 0
    tokens: int = 0
    times: list[float] = field(default_factory=list)
    answer: Answer = field(default_factory=lambda: Answer([], []))
    failure: str = ""

    def note(self, event: Event, now: float) -> None:
        match event:
            case TokensEvent():
                self.times.append(now)
                self.tokens += len(event.token_ids)
                self.answer.token_ids.extend(event.token_ids)
                self.answer.logprobs.extend(token.logprob for token in event.logprobs)
                if self.target_tokens and self.tokens >= self.target_tokens:
                    self.on_token.set()
            case PromptLogprobsEvent():
                self.answer.prompt_logprobs.extend(token for token in event.logprobs if token is not None)
            case FinishedEvent():
                self.ended.set()
            case FailedEvent():
                self.failure = f"{event.code}: {event.message}"
                self.on_token.set()
                self.ended.set()

    def trace(self) -> Trace:
        self.ended.wait(TIMEOUT_S)
        if self.failure or not self.times:
            raise RuntimeError(f"A request failed: {self.failure or 'no token was generated'}")
        if self.tokens != self.job.new:
            raise RuntimeError(f"A request must generate {self.job.new} tokens, got {self.tokens}.")
        return Trace(self.sent_at, tuple(self.times), len(self.job.prompt), self.tokens, is_late=self.job.after > 0)


class EngineSubject:
    """An engine thread with one model, created by ``running``."""

    def __init__(self, loop: EngineLoop, model: str, profiles: Sequence[Intervention], name: str = ENGINE) -> None:
        self.name = name
        self._loop = loop
        self._model = model
        self._profiles = profiles
        self._numbers = itertools.count()
        self._sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        self.captures: tuple[CaptureSpec, ...] = ()

    def with_sampling(self, sampling: SamplingParams) -> EngineSubject:
        """Return a subject on the same engine with other sampling parameters. The workload sets the answer lengths."""
        other = copy(self)
        other._sampling = sampling
        return other

    def run(self, workload: Workload) -> list[Trace]:
        return [stream.trace() for stream in self._streams(workload)]

    def answers(self, workload: Workload) -> list[Answer]:
        """Run all jobs and return their answers. Raise RuntimeError if one fails. Waits until the engine is idle."""
        streams = self._streams(workload)
        for stream in streams:
            stream.trace()
        self.settle()
        return [stream.answer for stream in streams]

    def _streams(self, workload: Workload) -> list[_Stream]:
        early = [job for job in workload.jobs if not job.after]
        late = [job for job in workload.jobs if job.after]
        target_tokens = max((job.after for job in late), default=0)
        streams = [self._submit(job, target_tokens) for job in early]
        for stream in streams if late else ():
            stream.on_token.wait(TIMEOUT_S)
        return streams + [self._submit(job, 0) for job in late]

    def peak_memory_mb(self) -> float | None:
        return peak_memory_mb()

    def settle(self) -> None:
        """Wait until the engine has used its idle time, in which a GPU captures steered steps."""
        known = ""
        while known != (known := self._loop.stats().by_model[0].kernels):
            time.sleep(IDLE_S)

    def draft_counts(self) -> tuple[int, int]:
        """Return the numbers of drafted and of accepted tokens so far."""
        (stats,) = self._loop.stats().by_model
        return stats.draft_tokens, stats.accepted_draft_tokens

    def _submit(self, job: Job, target_tokens: int) -> _Stream:
        profile = None if job.profile is None else self._profiles[job.profile]
        sampling = replace(self._sampling, max_tokens=job.new)
        request = GenerationRequest(
            f"bench-{next(self._numbers)}",
            self._model,
            job.prompt,
            sampling,
            captures=self.captures,
            intervention=profile,
        )
        stream = _Stream(job, time.perf_counter(), target_tokens=target_tokens)
        self._loop.submit([request], stream)
        return stream


@contextmanager
def running(
    loaded: LoadedModel, config: EngineConfig, profiles: Sequence[Intervention] = (), name: str = ENGINE
) -> Iterator[EngineSubject]:
    """Run a new engine with the model attached."""
    loop = EngineLoop(config, _publish)
    loop.start()
    try:
        loop.attach(loaded).result(TIMEOUT_S)
        yield EngineSubject(loop, loaded.name, profiles, name)
    finally:
        loop.stop(0.0)


def load_shape(
    shape: Shape, options: Options, *, device: str = "auto", batch_invariant: BatchInvariance = "auto"
) -> LoadedModel:
    path = shape_folder(shape, options.folder)
    weights = cast("Weights", options.quantization or "native")
    spec = ModelSpec(
        shape.name, path, dtype=shape.dtype, device=device, weights=weights, batch_invariant=batch_invariant
    )
    return load_model(spec)


def _publish(deliveries: list[tuple[object, Event]]) -> None:
    now = time.perf_counter()
    for sink, event in deliveries:
        assert isinstance(sink, _Stream)
        sink.note(event, now)


def record(options: Options) -> Record:
    plan = Plan(options.scale, options.rounds)
    makers = [MAKERS[name] for name in options.workloads if name != "W3"]  # benchmarks.steering has W3
    with running(load_shape(options.shape, options), EngineConfig()) as subject:
        return Record("engine", options.label, tuple(measure([subject], makers, plan)), notes=options.notes)


if __name__ == "__main__":
    found = parse_options(__doc__)
    record(found).save(found.results)
