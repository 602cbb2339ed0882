"""One embedding model or classifier and the texts that wait for it: what the engine thread steps."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.engine.cache.policy import Growth
from inference.engine.config import EngineConfig
from inference.engine.embedding.encoder import LoadedEncoder
from inference.engine.messages import (
    BACKGROUND_PRIORITY,
    EmbeddingEvent,
    EmbeddingRequest,
    Event,
    FailedEvent,
    FinishedEvent,
    FinishReason,
    Timings,
    Usage,
)
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
    """Used by the engine thread only. First come, first served, some texts a step; those in the background when no
    other waits.

    A step's padded batch has ``max_prefill_tokens`` tokens at most, so that other models wait no longer than for a
    chunk of a prompt. A longer text goes alone: an encoder cannot be fed in chunks.
    """

    request_type = EmbeddingRequest

    def __init__(self, loaded: LoadedEncoder, config: EngineConfig) -> None:
        self._loaded = loaded
        self._max_tokens = config.max_prefill_tokens
        self._max_texts = config.max_batch_size
        self._max_length = min(config.max_seq_len or loaded.max_model_len, loaded.max_model_len)
        self._waiting: deque[_Text] = deque()
        self._behind: deque[_Text] = deque()  # in the background
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
        """Nothing runs from one step to the next."""
        return 0

    @property
    def num_free_slots(self) -> int:
        return 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) + len(self._behind)

    def seconds_to_wait(self) -> float:
        return 0.0

    def stats(self) -> ModelStats:
        """May be called from any thread."""
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
        """Queue a text; one that cannot run fails at once, in the returned events."""
        problem = self._problem(request.prompt_token_ids)
        if problem is not None:
            return [(sink, FailedEvent.before_start(request, *problem))]
        queue = self._behind if request.priority <= BACKGROUND_PRIORITY else self._waiting
        queue.append(_Text(request, sink, submitted_at))
        return []

    def cancel(self, sink: object) -> list[tuple[object, Event]]:
        mine = [text for text in (*self._waiting, *self._behind) if text.sink is sink]
        self._waiting = deque(text for text in self._waiting if text.sink is not sink)
        self._behind = deque(text for text in self._behind if text.sink is not sink)
        return [(sink, _finished(text, "cancelled")) for text in mine]

    def fail_all(self, code: str, text: str) -> list[tuple[object, Event]]:
        waiting = [*self._waiting, *self._behind]
        self._waiting, self._behind = deque(), deque()
        return _failed(waiting, code, text)

    def limit_growth(self, growth: Growth) -> None:
        """Nothing grows with what runs: each batch has its own memory."""

    def step(self) -> list[tuple[object, Event]]:
        """One batch. One that raises fails the texts that make it raise, and the others are embedded without them."""
        result = self._steps.run(self._take())
        failed = [event for f in result.failures for event in _failed([f.item], f.code, f.message)]
        embedded = [pair for texts, vectors in result.attempts for pair in zip(texts, vectors, strict=True)]
        return [*failed, *(event for text, vector in embedded for event in _events(text, vector))]

    def check_integrity(self) -> None:
        """Nothing is kept between steps but the queue."""

    def close(self) -> None:
        """There are no hooks to take away."""

    def _problem(self, ids: Sequence[int]) -> tuple[str, str] | None:
        if not ids:
            return "invalid_prompt", "The text has no tokens."
        if min(ids) < 0 or max(ids) >= self._loaded.vocab_size:
            return "invalid_prompt", f"Token ids must be 0 to {self._loaded.vocab_size - 1}."
        if len(ids) > self._max_length:
            return "context_length_exceeded", f"The text has {len(ids)} tokens, the model takes {self._max_length}."
        return None

    def _take(self) -> list[_Text]:
        """The texts that waited longest, as many as fit one step once they are padded to the same length."""
        queue = self._waiting or self._behind
        taken = [queue.popleft()]
        longest = taken[0].num_tokens
        while queue and len(taken) < self._max_texts:
            longest = max(longest, queue[0].num_tokens)
            if longest * (len(taken) + 1) > self._max_tokens:
                break
            taken.append(queue.popleft())
        return taken

    @torch.inference_mode()
    def _embed(self, texts: list[_Text]) -> Tensor:
        """``[texts, numbers]`` float32, on the CPU."""
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
        if len(vectors) != len(texts):  # a model's own code; here the texts fail, later it would end the thread
            raise ValueError(f"The model made {len(vectors)} vectors of {len(texts)} texts.")
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
