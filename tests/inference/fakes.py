"""Stand-ins for the engine's loop and loader, driven by the tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from inference.client import (
    EngineDownError,
    EngineStats,
    Event,
    FinishedEvent,
    GenerationRequest,
    Timings,
    TokensEvent,
    Usage,
)
from inference.engine.config import EngineConfig
from inference.engine.models.facts import DeviceMemory, MemoryEstimate
from inference.engine.stats import ModelStats
from inference.interventions import FeatureEncoder, Intervention, Site
from inference.registry.loading import ModelLoading
from inference.registry.memory_plan import Place
from inference.steering_refs import CompiledSteering, SAERef, SAESource, SteeringRef, SteeringSpec
from tests.inference.tokenizers import qwen_tokenizer


@dataclass
class FakeCompiler:
    """Has compiled nothing; its SAEs are by key. What it had to wait for is in ``waits``."""

    loaded: dict[str, FeatureEncoder] = field(default_factory=dict)
    on_disk: dict[str, FeatureEncoder] = field(default_factory=dict)
    compiled: dict[str, Intervention] = field(default_factory=dict)  # by the fingerprint of the first version
    failure: Exception | None = None
    waits: list[object] = field(default_factory=list)

    def find(self, spec: SteeringSpec) -> CompiledSteering | None:
        intervention = self.compiled.get(spec.versions[0].fingerprint)
        if intervention is None:
            return None
        return CompiledSteering(SteeringRef(intervention.fingerprint, spec), intervention)

    def compile(self, spec: SteeringSpec) -> CompiledSteering:
        self.waits.append(spec)
        if self.failure is not None:
            raise self.failure
        fingerprint = spec.versions[0].fingerprint
        self.compiled[fingerprint] = Intervention(fingerprint, ())
        found = self.find(spec)
        assert found is not None
        return found

    def load_sae(self, source: SAESource) -> None:
        self.reader(SAERef(source, 0))

    def unload_sae(self, checksum: str) -> None:
        self.loaded.pop(checksum, None)

    def loaded_bytes(self, checksum: str) -> int | None:
        return 0 if checksum in self.loaded else None

    def find_reader(self, sae: SAERef) -> FeatureEncoder | None:
        return self.loaded.get(sae.key)

    def reader(self, sae: SAERef) -> FeatureEncoder:
        self.waits.append(sae)
        if self.failure is not None:
            raise self.failure
        self.loaded[sae.key] = self.on_disk[sae.key]
        return self.loaded[sae.key]


@dataclass
class FakeLoop:
    """An engine loop without a thread: tests publish events from wherever they like."""

    publish: Any = None
    submitted: list[tuple[tuple[GenerationRequest, ...], object]] = field(default_factory=list)
    cancelled: list[object] = field(default_factory=list)
    attached: dict[str, object] = field(default_factory=dict)
    kv_bytes: dict[str, int] = field(default_factory=dict)  # given to each model that was ever attached
    refusal: Exception | None = None
    config: EngineConfig = field(default_factory=EngineConfig)
    started: bool = False
    drained: float | None = None
    by_model: tuple[ModelStats, ...] = ()

    def start(self) -> None:
        self.started = True

    def submit(self, requests: Sequence[GenerationRequest], sink: object) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append((tuple(requests), sink))

    def cancel(self, sink: object) -> None:
        self.cancelled.append(sink)

    def attach(self, loaded, kv_bytes: int) -> Future[None]:
        self.kv_bytes[loaded.name] = kv_bytes
        return self._settled(lambda: self.attached.update({loaded.name: loaded}))

    def detach(self, name: str) -> Future[None]:
        return self._settled(lambda: self.attached.pop(name, None))

    def stats(self) -> EngineStats:
        return EngineStats("idle", models=tuple(self.attached), by_model=self.by_model)

    def stop(self, drain_s: float) -> None:
        self.drained = drain_s

    def _settled(self, act) -> Future[None]:
        future: Future[None] = Future()
        if self.refusal is not None:
            future.set_exception(self.refusal)
        else:
            act()
            future.set_result(None)
        return future


@dataclass(frozen=True)
class FakeLoaded:
    name: str
    tokenizer: object
    max_model_len: int = 256
    vocab_size: int = 505
    memory_bytes: int = 1234
    device: str = "cpu"
    hidden_size: int = 8
    grammars: object = None
    sites: dict[Site, int] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    batch_invariant: bool = False


class FakeLoader:
    """Counts loads; waits for ``gate`` and raises ``failure`` if there is one.

    ``sizes`` are the models' estimates in bytes, ``caches`` their parts for keys and values, the least and the most;
    ``released`` the names of those whose memory was given back; ``places`` where models will be loaded.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.caches: dict[str, tuple[int, int]] = {}
        self.released: list[str] = []
        self.places: list[Place] = [Place()]
        self.specs: list[object] = []
        self.gate = threading.Event()
        self.gate.set()
        self.began = threading.Event()
        self.failure: Exception | None = None

    def __call__(self, spec):
        self.specs.append(spec)
        self.began.set()
        assert self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        return FakeLoaded(spec.name, qwen_tokenizer())

    def parts(self) -> ModelLoading:
        return ModelLoading(
            load=self,
            estimate=self._estimate,
            device_of=lambda spec: "cpu",
            release=lambda loaded: self.released.append(loaded.name),
            free_unused=lambda: self.released.append("unused"),
            places=lambda spec: self.places,
        )

    def _estimate(self, spec) -> MemoryEstimate:
        least, most = self.caches.get(spec.name, (0, 0))
        return MemoryEstimate(self.sizes.get(spec.name, 10) - least, least, 0, most)


class FakeDevice:
    """A device of which ``free`` bytes are free whatever is loaded."""

    def __init__(self, total: int = 1000) -> None:
        self.total = self.free = total

    def __call__(self, device: str) -> DeviceMemory:
        return DeviceMemory(self.total, self.free)


class Located:
    """Stands for the file system and the Hub; remembers what it was asked for."""

    def __init__(self, path):
        self.path = path
        self.asked = []

    def __call__(self, source, download):
        self.asked.append(source)
        return self.path


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def tokens(index: int, token_id: int = 5, text: str = "a") -> TokensEvent:
    return TokensEvent(index, (token_id,), text)


def finished(index: int) -> FinishedEvent:
    return FinishedEvent(index, "stop", Usage(), Timings())


def down() -> EngineDownError:
    return EngineDownError("The engine is stopped.")


def in_thread(call, *args) -> None:
    """Run in another thread, as the engine does, and wait for it."""
    errors: list[BaseException] = []

    def run():
        try:
            call(*args)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


def kinds(events: Sequence[Event]) -> list[tuple[str, int]]:
    return [(type(event).__name__, event.index) for event in events]
