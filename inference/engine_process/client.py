"""The server's side of an engine in a process of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from core.runtime import runtime
from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError
from inference.engine.messages import Event, Request
from inference.engine.models.facts import DeviceMemory, LoadedFacts, MemoryEstimate, ModelSpec
from inference.engine.stats import EngineStats
from inference.engine_process.supervisor import EngineSupervisor
from inference.event_stream import LocalEventStream, OpenStreams
from inference.registry.loading import ModelLoading
from inference.steering_refs import STEERING_COMPILER, SAESource, SteeringRef, SteeringSpec

MAX_COMPILED = 256


class EngineLink(Protocol):
    """The connection to an engine in another process."""

    def call(self, method: str, *arguments: object) -> Future[Any]: ...

    def cancel(self, stream_id: str) -> None: ...

    def stats(self) -> EngineStats: ...

    def start(self) -> None: ...

    def stop(self, drain_s: float) -> None: ...


class ProcessEngineClient:
    """Implements :class:`inference.client.EngineClient`. Events arrive on the supervisor's thread."""

    def __init__(self, supervisor: EngineLink, config: EngineConfig) -> None:
        self._supervisor = supervisor
        self._config = config
        self._streams = OpenStreams(self.cancel)
        self._compiled: OrderedDict[Hashable, SteeringRef] = OrderedDict()
        self._lock = threading.Lock()

    async def submit(self, requests: Sequence[Request]) -> LocalEventStream:
        """Accept all requests or none. See :class:`inference.client.EngineClient`."""
        stream = self._streams.open(requests)
        try:
            await asyncio.wrap_future(self._supervisor.call("submit", tuple(requests), stream.id))
        except BaseException as error:
            self._streams.forget(stream)
            if isinstance(error, asyncio.CancelledError):
                self.cancel(stream.id)
            raise
        return stream

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        """Compile steering in the engine's process. References are kept; the weights are there."""
        with self._lock:
            found = self._compiled.get(steering.key)
            if found is not None:
                self._compiled.move_to_end(steering.key)
                return found
        ref: SteeringRef = await asyncio.wrap_future(self._supervisor.call("compile", steering))
        with self._lock:
            self._compiled[steering.key] = ref
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return ref

    def cancel(self, stream_id: str) -> None:
        self._supervisor.cancel(stream_id)

    def publish(self, events: list[tuple[str, Event]]) -> None:
        self._streams.publish(events)

    def note_death(self) -> None:
        """Fail all sequences, because the process ended."""
        self._streams.fail_all("server_error", "The engine failed.")

    def is_busy(self, model: str) -> bool:
        """Return whether sequences of ``model`` are queued or running."""
        return self._streams.is_busy(model)

    def start(self) -> None:
        self._supervisor.start()

    def stats(self) -> EngineStats:
        return self._supervisor.stats()

    def settings(self) -> dict[str, object]:
        return dataclasses.asdict(self._config)

    def stop(self, drain_s: float) -> None:
        self._supervisor.stop(drain_s)


class ProcessModels:
    """The models in the engine's process, for the registry: its engine, its loading and its measure of memory."""

    def __init__(self, supervisor: EngineSupervisor) -> None:
        self._supervisor = supervisor
        self._attached: set[str] = set()

    def take_lost(self) -> frozenset[str]:
        """Return the models that were attached to a process that has ended, once."""
        lost, self._attached = frozenset(self._attached), set()
        return lost

    @property
    def loading(self) -> ModelLoading:
        return ModelLoading(
            load=self._load,
            estimate=self._estimate,
            device_of=self._device_of,
            release=self._release,
            free_unused=self._free_unused,
        )

    def attach(self, loaded: LoadedFacts, kv_bytes: int) -> Future[None]:
        done: Future[None] = self._supervisor.call("attach", loaded.name, kv_bytes)
        done.add_done_callback(lambda ended: self._note_attached(loaded.name, ended))
        return done

    def detach(self, name: str) -> Future[object]:
        self._attached.discard(name)
        return self._supervisor.call("detach", name)

    def _note_attached(self, name: str, ended: Future[None]) -> None:
        if ended.exception() is None:
            self._attached.add(name)

    def measure(self, device: str) -> DeviceMemory:
        memory: DeviceMemory = self._supervisor.call_when_up("measure", device)
        return memory

    def _load(self, spec: ModelSpec) -> LoadedFacts:
        facts: LoadedFacts = self._supervisor.call_when_up("load", spec)
        return facts

    def _estimate(self, spec: ModelSpec) -> MemoryEstimate:
        estimate: MemoryEstimate = self._supervisor.call_when_up("estimate", spec)
        return estimate

    def _device_of(self, spec: ModelSpec) -> str:
        device: str = self._supervisor.call_when_up("device_of", spec)
        return device

    def _release(self, loaded: LoadedFacts) -> None:
        with suppress(EngineDownError):  # the memory of a process that ended is free
            self._supervisor.call("release", loaded.name).result()

    def _free_unused(self) -> None:
        with suppress(EngineDownError):
            self._supervisor.call("free_unused").result()


class ProcessSAEs:
    """The SAEs in the engine's process. Implements :class:`inference.steering_refs.LoadedSAEs`."""

    def __init__(self, supervisor: EngineSupervisor) -> None:
        self._supervisor = supervisor

    def load_sae(self, source: SAESource) -> None:
        self._supervisor.call("load_sae", source).result()

    def unload_sae(self, checksum: str) -> None:
        """Free an SAE there, and the copy that jobs and pages of this process have loaded."""
        runtime.get(STEERING_COMPILER).unload_sae(checksum)
        self._supervisor.call("unload_sae", checksum).result()

    def loaded_bytes(self, checksum: str) -> int | None:
        try:
            num_bytes: int | None = self._supervisor.call("loaded_bytes", checksum).result()
        except EngineDownError:
            return None
        return num_bytes
