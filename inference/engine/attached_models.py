"""The models that the engine thread steps, and which of them takes the next step."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from types import UnionType
from typing import Any, Protocol

from inference.engine.cache.policy import Growth
from inference.engine.config import EngineConfig
from inference.engine.embedding.encoder import LoadedEncoder
from inference.engine.embedding.engine import EmbeddingEngine
from inference.engine.errors import ModelNotAttachedError
from inference.engine.inbox import Attach, Submit
from inference.engine.messages import Counts, Delivery, Event, FailedEvent, Request
from inference.engine.model_engine import ModelEngine
from inference.engine.models.load_faults import enough_memory
from inference.engine.models.loader import LoadedModel
from inference.engine.scheduling.rotation import BACKGROUND_WEIGHT, Rotation
from inference.engine.stats import ModelStats

logger = logging.getLogger(__name__)


class SteppedModel(Protocol):
    @property
    def request_type(self) -> type | UnionType:
        """The type of request that :meth:`add` accepts."""

    @property
    def has_work(self) -> bool: ...

    @property
    def is_in_background(self) -> bool:
        """Whether all its work has background priority."""

    @property
    def num_running(self) -> int: ...

    def running_counts(self) -> Counts:
        """Return the number of running sequences. Callable from any thread."""

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_free_slots(self) -> int: ...

    def seconds_to_wait(self) -> float:
        """Return the seconds until a step can run: 0 unless static batching waits for its batch to fill."""

    def stats(self) -> ModelStats:
        """Return statistics. Callable from any thread."""

    def add(self, request: Any, sink: object, submitted_at: float) -> list[tuple[object, Event]]: ...

    def cancel(self, sink: object) -> list[tuple[object, Event]]: ...

    def fail_all(self, code: str, text: str) -> list[tuple[object, Event]]: ...

    def limit_growth(self, growth: Growth) -> None:
        """Set which sequences may take more memory."""

    def step(self) -> list[tuple[object, Event]] | None:
        """Run the next step and return its events; None if nothing can run."""

    def use_idle_time(self) -> bool:
        """Do a short piece of work that would hold up traffic later. Return whether there was something to do."""

    def check_integrity(self) -> None: ...

    def close(self) -> None: ...


def stepped_model(loaded: LoadedModel, config: EngineConfig) -> SteppedModel:
    if isinstance(loaded, LoadedEncoder):
        return EmbeddingEngine(loaded, config)
    return ModelEngine(loaded, config)


class AttachedModels:
    """The engines by model name. Changed by the engine thread only; the dictionary is replaced, so that other threads
    may read."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._engines: dict[str, SteppedModel] = {}
        self._with_work: dict[str, SteppedModel] = {}  # and some whose work has just ended
        self._attached: dict[str, Attach] = {}  # the same models, for the replacement of a dead thread
        self._rotation = Rotation()

    # Called from any thread

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._engines)

    @property
    def num_running(self) -> int:
        return sum(engine.num_running for engine in self._engines.values())

    def running_counts(self) -> Counts:
        return sum((engine.running_counts() for engine in self._engines.values()), Counts())

    @property
    def num_waiting(self) -> int:
        """The number of sequences in the models' own queues."""
        return sum(engine.num_waiting for engine in self._engines.values())

    @property
    def num_free_slots(self) -> int:
        return sum(engine.num_free_slots for engine in self._engines.values())

    def stats(self) -> tuple[ModelStats, ...]:
        return tuple(engine.stats() for engine in self._engines.values())

    def require(self, requests: Iterable[Request]) -> None:
        """Raise ModelNotAttachedError unless all models of the requests are attached."""
        for name in {request.model for request in requests}:
            if name not in self._engines:
                raise ModelNotAttachedError(f"The model `{name}` is not loaded.")

    def abandon(self) -> None:
        """Drop all models. A hanging thread keeps those that it uses."""
        self._engines, self._with_work = {}, {}

    # Called from the engine thread

    def seconds_to_wait(self) -> float | None:
        """Return the seconds until a step of any model can run; None if no model has work."""
        return min((e.seconds_to_wait() for e in self._with_work.values() if e.has_work), default=None)

    def use_idle_time(self) -> bool:
        """Do a short piece of work of one model, without requests. Return whether there was something to do."""
        return any(engine.use_idle_time() for engine in self._engines.values())

    def attach(self, message: Attach) -> None:
        """Attach a model under a name that is not in use."""
        self._engines = {**self._engines, message.loaded.name: self._make(message)}
        self._attached[message.loaded.name] = message

    def detach(self, name: str) -> tuple[object, list[Delivery]]:
        """Return the detached engine (None if there is no such model) and the failures of its sequences."""
        engine = self._engines.get(name)
        if engine is None:
            return None, []
        self._engines = {n: e for n, e in self._engines.items() if n != name}
        self._with_work.pop(name, None)
        del self._attached[name]
        ends = engine.fail_all("model_unloaded", f"The model `{name}` was unloaded.")
        engine.close()
        return engine, ends

    def take_over(self) -> None:
        """Recreate the engines of a dead thread's models."""
        self._engines = {name: self._make(message) for name, message in self._attached.items()}
        self._with_work = {}

    def forget(self) -> None:
        """Drop the models kept for a replacement thread."""
        self._attached = {}

    def add(self, message: Submit) -> list[Delivery]:
        """Queue the requests with their models. Return failures of requests that cannot run."""
        return [delivery for request in message.requests for delivery in self._add(request, message)]

    def cancel(self, sink: object) -> list[Delivery]:
        return [delivery for engine in self._with_work.values() for delivery in engine.cancel(sink)]

    def limit_growth(self, growth: Growth) -> None:
        for engine in self._with_work.values():
            engine.limit_growth(growth)

    def step(self) -> list[Delivery] | None:
        """Run one step of the next model; None if no model can run.

        A model that waits for its batch to fill is skipped, or its empty steps would delay the others.
        """
        for name in [name for name, engine in self._with_work.items() if not engine.has_work]:
            del self._with_work[name]
        runnable = {name: engine for name, engine in self._with_work.items() if engine.seconds_to_wait() <= 0}
        if not runnable:
            return None
        name = self._rotation.next(runnable)
        weight = BACKGROUND_WEIGHT if runnable[name].is_in_background else 1.0
        began_at = time.perf_counter()
        deliveries = runnable[name].step()
        self._rotation.note(name, weight * (time.perf_counter() - began_at))
        return deliveries

    def end_all(self, code: str, text: str, deliver: Callable[[Sequence[Delivery]], None]) -> None:
        """Fail all sequences and close the models, whatever state a dead thread left them in."""
        engines, self._engines, self._with_work = self._engines, {}, {}
        for name, engine in engines.items():
            try:
                deliver(engine.fail_all(code, text))
                engine.close()
            except Exception:
                # After a thread's death a model's bookkeeping may be inconsistent; the outbox has its own.
                logger.exception("The model %s could not be closed cleanly.", name)

    def check_integrity(self) -> None:
        for engine in self._engines.values():
            engine.check_integrity()

    def _make(self, message: Attach) -> SteppedModel:
        config = self._config
        if message.kv_bytes:
            config = dataclasses.replace(config, kv_cache_bytes=message.kv_bytes)
        with enough_memory(message.loaded.name):
            return stepped_model(message.loaded, config)

    def _add(self, request: Request, message: Submit) -> list[Delivery]:
        engine = self._engines.get(request.model)
        if engine is None:
            text = f"The model `{request.model}` was unloaded."
            return [(message.sink, FailedEvent.before_start(request, "model_unloaded", text))]
        if not isinstance(request, engine.request_type):
            text = f"The model `{request.model}` does not support this kind of request."
            return [(message.sink, FailedEvent.before_start(request, "wrong_model_kind", text))]
        self._with_work[request.model] = engine
        return engine.add(request, message.sink, message.submitted_at)
