"""What the engine thread steps: a model with its queue, whatever it is for."""

from __future__ import annotations

from typing import Any, Protocol

from inference.engine.cache_policy import Growth
from inference.engine.config import EngineConfig
from inference.engine.embedding_engine import EmbeddingEngine
from inference.engine.encoder import LoadedEncoder
from inference.engine.loader import LoadedModel
from inference.engine.messages import Event
from inference.engine.model_engine import ModelEngine
from inference.engine.stats import ModelStats


class SteppedModel(Protocol):
    @property
    def takes(self) -> type:
        """The type of request that :meth:`add` understands."""

    @property
    def has_work(self) -> bool: ...

    @property
    def is_in_background(self) -> bool:
        """Whether nobody waits for what it would do."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_free_slots(self) -> int: ...

    def seconds_to_wait(self) -> float:
        """Until a step can do something: 0 unless the policy waits for company."""

    def stats(self) -> ModelStats:
        """May be called from any thread."""

    def add(self, request: Any, sink: object, submitted_at: float) -> list[tuple[object, Event]]: ...

    def cancel(self, sink: object) -> list[tuple[object, Event]]: ...

    def fail_all(self, code: str, text: str) -> list[tuple[object, Event]]: ...

    def limit_growth(self, growth: Growth) -> None:
        """Say who may take more memory for what runs."""

    def step(self) -> list[tuple[object, Event]] | None:
        """Do what is next, and return its events; None when nothing can be done."""

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


def stepped_model(loaded: LoadedModel, config: EngineConfig) -> SteppedModel:
    if isinstance(loaded, LoadedEncoder):
        return EmbeddingEngine(loaded, config)
    return ModelEngine(loaded, config)
