"""One embedding model or classifier with its queue of texts, as the engine thread steps it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.cache.policy import Growth
from inference.engine.config import EngineConfig
from inference.engine.embedding.encoder import LoadedEncoder
from inference.engine.messages import (
    BACKGROUND_PRIORITY,
    Counts,
    EmbeddingEvent,
    EmbeddingRequest,
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Timings,
    Usage,
)
from inference.engine.scheduling.sink_queue import SinkQueue
from inference.engine.scheduling.step_isolation import StepIsolation
from inference.engine.stats import ModelLimits, ModelStats


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    request: EmbeddingRequest
    sink: object
    submitted_at: float

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.num_tokens)


class EmbeddingEngine:
    """Used by the engine thread only. Runs texts in order of arrival; background texts run when no others wait.

    The padded batch of a step has at most ``max_prefill_tokens`` tokens, so that other models wait no longer than for
    the chunk of a prompt. A longer text runs alone, because an encoder cannot process it in chunks.
    """

    request_type = EmbeddingRequest

    def __init__(self, loaded: LoadedEncoder, config: EngineConfig) -> None:
        self._loaded = loaded
        config = config.on(torch.device(loaded.device).type)
        self._max_tokens = config.max_prefill_tokens
        self._max_texts = config.max_batch_size
        self._max_length = min(config.max_seq_len or loaded.max_model_len, loaded.max_model_len)
        self._waiting: SinkQueue[_Text] = SinkQueue()
        self._behind: SinkQueue[_Text] = SinkQueue()  # in the background
        self._limits = ModelLimits(
            loaded.device, loaded.dtype, torch.get_num_threads(), self._max_length, self._max_texts
        )
        self._steps = StepIsolation(self._embed)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._behind)

    @property
    def is_in_background(self) -> bool:
        return not self._waiting

    @property
    def num_running(self) -> int:
        """Always 0: no text runs for more than one step."""
        return 0

    def running_counts(self) -> Counts:
        return Counts()

    @property
    def num_free_slots(self) -> int:
        return 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._behind)

    def seconds_to_wait(self) -> float:
        return 0.0

    def stats(self) -> ModelStats:
        """Return statistics. Callable from any thread."""
        counters = self._steps.counters
        return ModelStats(
            self._loaded.name,
            self._limits,
            waiting=self.num_waiting,
            step_seconds=counters.seconds.read(),
            step_sequences=counters.sequences.read(),
            step_tokens=counters.tokens.read(),
            step_faults=dict(counters.faults),
        )

    def add(self, request: EmbeddingRequest, sink: object, submitted_at: float) -> list[tuple[object, Event]]:
        """Queue a text. Returns a FailedEvent if it cannot run."""
        problem = self._problem(request.prompt_token_ids)
        if problem is not None:
            return [(sink, FailedEvent.before_start(request, *problem))]
        queue = self._behind if request.priority <= BACKGROUND_PRIORITY else self._waiting
        queue.append(_Text(request, sink, submitted_at))
        return []

    def cancel(self, sink: object) -> list[tuple[object, Event]]:
        mine = [*self._waiting.take_of(sink), *self._behind.take_of(sink)]
        return [(sink, _finished(text, "cancelled")) for text in mine]

    def fail_all(self, code: str, text: str) -> list[tuple[object, Event]]:
        return _failed([*self._waiting.take_all(), *self._behind.take_all()], code, text)

    def limit_growth(self, growth: Growth) -> None:
        """No-op: there is no cache that grows."""

    def step(self) -> list[tuple[object, Event]]:
        """Run one batch. If it raises, only the texts that cause it fail, and the others run without them."""
        result = self._steps.run(self._take())
        failed = [event for f in result.failures for event in _failed([f.item], f.code, f.message)]
        embedded = [pair for texts, vectors in result.attempts for pair in zip(texts, vectors, strict=True)]
        return [*failed, *(event for text, vector in embedded for event in _events(text, vector))]

    def use_idle_time(self) -> bool:
        return False

    def check_integrity(self) -> None:
        """No-op: only the queue is kept between steps."""

    def close(self) -> None:
        """No-op: there are no hooks to remove."""

    def _problem(self, ids: Sequence[int]) -> tuple[str, str] | None:
        if not ids:
            return "invalid_prompt", "The text has no tokens."
        if min(ids) < 0 or max(ids) >= self._loaded.vocab_size:
            return "invalid_prompt", f"Token ids must be between 0 and {self._loaded.vocab_size - 1}."
        if len(ids) > self._max_length:
            return (
                "context_length_exceeded",
                f"The text has {len(ids)} tokens, but the model accepts at most {self._max_length}.",
            )
        return None

    def _take(self) -> list[_Text]:
        """Return the texts that have waited longest, as many as fit into one padded batch."""
        queue = self._waiting or self._behind
        taken = [queue.popleft()]
        longest = taken[0].num_tokens
        while queue and len(taken) < self._max_texts:
            longest = max(longest, queue.first.num_tokens)
            if longest * (len(taken) + 1) > self._max_tokens:
                break
            taken.append(queue.popleft())
        return taken

    @torch.inference_mode()
    def _embed(self, texts: list[_Text]) -> Tensor:
        """Return ``[texts, numbers]`` float32 on the CPU."""
        longest = max(text.num_tokens for text in texts)
        ids = torch.full((len(texts), longest), self._loaded.pad_token_id)
        mask = torch.zeros(len(texts), longest, dtype=torch.long)
        types = torch.zeros_like(mask)
        for row, text in enumerate(texts):
            ids[row, : text.num_tokens] = torch.tensor(text.request.prompt_token_ids)
            mask[row, : text.num_tokens] = 1
            types[row, : len(text.request.token_type_ids)] = torch.tensor(text.request.token_type_ids)
        device = self._loaded.device
        vectors = self._loaded.vectors(ids.to(device), mask.to(device), types.to(device)).cpu()
        if len(vectors) != len(texts):  # possible with a model's own code; an error later would end the thread
            raise ValueError(f"The model returned {len(vectors)} vectors for {len(texts)} texts.")
        return vectors


def _events(text: _Text, vector: Tensor) -> list[tuple[object, Event]]:
    if not vector.isfinite().all():
        return _failed([text], "server_error", "The model's output is not finite.")
    values = vector.numpy().astype("<f4").tobytes()
    return [(text.sink, EmbeddingEvent(text.request.index, values)), (text.sink, _finished(text, "stop"))]


def _finished(text: _Text, reason: FinishReason) -> FinishedEvent:
    return FinishedEvent(text.request.index, reason, text.usage(), _timings(text))


def _failed(texts: Sequence[_Text], code: str, message: str) -> list[tuple[object, Event]]:
    return [(text.sink, FailedEvent(text.request.index, code, message, text.usage(), _timings(text))) for text in texts]


def _timings(text: _Text) -> Timings:
    return Timings(total_s=time.monotonic() - text.submitted_at)
