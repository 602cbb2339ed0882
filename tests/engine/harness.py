"""A model engine driven step by step, and what its requests got."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from inference.analyses import AnalysisRequest
from inference.engine.config import EngineConfig
from inference.engine.kernels.accelerator import Accelerate, accelerate
from inference.engine.messages import (
    TERMINAL_EVENTS,
    Delivery,
    Event,
    FailedEvent,
    FinishedEvent,
    GenerationRequest,
    TokensEvent,
)
from inference.engine.model_engine import ModelEngine
from inference.engine.models.loader import LoadedModel
from tests.builders import build_request


@dataclass
class Transcript:
    """All events of one request, in order."""

    events: list[Event] = field(default_factory=list)

    @property
    def token_ids(self) -> list[int]:
        return [t for e in self.events if isinstance(e, TokensEvent) for t in e.token_ids]

    @property
    def text(self) -> str:
        return "".join(e.text for e in self.events if isinstance(e, TokensEvent))

    @property
    def logprobs(self) -> list[Any]:
        return [p for e in self.events if isinstance(e, TokensEvent) for p in e.logprobs]

    @property
    def is_ended(self) -> bool:
        return bool(self.events) and isinstance(self.events[-1], TERMINAL_EVENTS)

    @property
    def end(self) -> FinishedEvent | FailedEvent:
        assert sum(isinstance(e, TERMINAL_EVENTS) for e in self.events) == 1, "not exactly one terminal event"
        end = self.events[-1]
        assert isinstance(end, TERMINAL_EVENTS), "events after the terminal one"
        return end

    @property
    def finished(self) -> FinishedEvent:
        assert isinstance(self.end, FinishedEvent), self.end
        return self.end

    @property
    def failed(self) -> FailedEvent:
        assert isinstance(self.end, FailedEvent), self.end
        return self.end


class EngineHarness:
    """Steps a :class:`ModelEngine` in the test's thread and checks its integrity after each step."""

    def __init__(self, loaded: LoadedModel, *, accelerate: Accelerate = accelerate, **config: Any) -> None:
        self.engine = ModelEngine(loaded, EngineConfig(**config), accelerate)
        self.transcripts: dict[object, Transcript] = {}
        self._next_sink = 0

    def add(self, request: GenerationRequest | AnalysisRequest | None = None, **fields: Any) -> Transcript:
        sink, self._next_sink = self._next_sink, self._next_sink + 1
        transcript = self.transcripts[sink] = Transcript()
        self._note(self.engine.add(request or build_request(**fields), sink, 0.0))
        return transcript

    def step(self) -> None:
        self._note(self.engine.step() or [])
        self.engine.check_integrity()

    def cancel(self, transcript: Transcript) -> None:
        sink = next(s for s, t in self.transcripts.items() if t is transcript)
        self._note(self.engine.cancel(sink))
        self.engine.check_integrity()

    def fail_all(self) -> None:
        self._note(self.engine.fail_all("engine_shutdown", "stopping"))

    def run(self) -> None:
        """Until nothing is left to do."""
        for _ in range(5000):
            if not self.engine.has_work:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def generate(self, **fields: Any) -> Transcript:
        transcript = self.add(**fields)
        self.run()
        return transcript

    def _note(self, deliveries: list[Delivery]) -> None:
        for sink, event in deliveries:
            self.transcripts[sink].events.append(event)


def reference_tokens(loaded: Any, prompt: tuple[int, ...], num_tokens: int) -> list[int]:
    """Greedy tokens of transformers' own ``generate`` on its own attention; ``loaded`` has a ``module``."""
    module: Any = loaded.module
    ours = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        output = module.generate(
            torch.tensor([prompt], device=module.device),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    finally:
        module.set_attn_implementation(ours)
    return output[0, len(prompt) :].tolist()
