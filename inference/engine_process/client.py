"""The server's side of engines in processes of their own."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from core.runtime import runtime
from inference.engine.config import EngineConfig
from inference.engine.errors import EngineDownError, ModelNotAttachedError, QueueFullError
from inference.engine.messages import Request
from inference.engine.models.facts import DeviceMemory, LoadedFacts, MemoryEstimate, ModelSpec
from inference.engine.stats import EngineStats
from inference.engine_process.replica_streams import WaitingStream
from inference.engine_process.replicas import Replica, ReplicaSet
from inference.engine_process.router import KEYS_PER_REPLICA, Router, routing_keys, steering_key
from inference.event_stream import LocalEventStream, post
from inference.registry.loading import ModelLoading
from inference.registry.memory_plan import Place
from inference.steering_refs import STEERING_COMPILER, SAESource, SteeringRef, SteeringSpec

logger = logging.getLogger(__name__)
MAX_COMPILED = 256
T = TypeVar("T")


class ProcessEngineClient:
    """Implements :class:`inference.client.EngineClient` with one engine process or several. Events arrive on their
    supervisors' threads.
    """

    def __init__(self, replicas: ReplicaSet, config: EngineConfig) -> None:
        self._replicas = replicas
        self._config = config
        self._router = Router(KEYS_PER_REPLICA * max(4, replicas.most))
        self._compiled: OrderedDict[Hashable, SteeringRef] = OrderedDict()
        self._lock = threading.Lock()
        self._moves: set[asyncio.Task[None]] = set()  # asyncio itself may drop tasks
        replicas.move_with(self._move_all)

    async def submit(self, requests: Sequence[Request]) -> LocalEventStream:
        """Accept all requests on one replica, or none. See :class:`inference.client.EngineClient`.

        If a replica ends before it has accepted them or begun with them, or its queue is full, they go to another one.
        """
        return await self._send(requests, lambda replica: replica.submit(requests))

    async def _send(self, requests: Sequence[Request], ask: Callable[[Replica], Awaitable[T]]) -> T:
        """Ask one replica after another to accept requests. Raise the refusal that tells the client most."""
        candidates = self._replicas.candidates(requests[0].model)
        keys = routing_keys(requests[0]) if len(candidates) > 1 else ()
        refusals: list[EngineDownError | ModelNotAttachedError | QueueFullError] = []
        for replica in self._router.order(candidates, requests, keys):
            try:
                accepted = await ask(replica)
            except (EngineDownError, ModelNotAttachedError, QueueFullError) as error:
                refusals.append(error)
            else:
                self._router.note(replica, keys)
                return accepted
        raise _best(refusals) or self._replicas.down_error()

    def _move_all(self, streams: Sequence[WaitingStream]) -> None:
        """Have other replicas take streams that had not begun when theirs ended. Called on its supervisor's thread."""
        for waiting in streams:
            post(waiting.stream.loop, self._begin_move, waiting)

    def _begin_move(self, waiting: WaitingStream) -> None:
        move = asyncio.ensure_future(self._move(waiting))
        self._moves.add(move)
        move.add_done_callback(self._moves.discard)

    async def _move(self, waiting: WaitingStream) -> None:
        if waiting.stream.is_closed:
            return
        try:
            await self._send(waiting.requests, lambda replica: replica.take_over(waiting))
        except (EngineDownError, ModelNotAttachedError, QueueFullError) as refusal:
            logger.warning("A request that waited in an engine process that ended fails, too: %s", refusal)
            waiting.fail()
        except BaseException:
            waiting.fail()
            raise

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        """Compile steering on one replica. References are kept; the weights are there. Other replicas compile it when
        they get a request with it.
        """
        with self._lock:
            found = self._compiled.get(steering.key)
            if found is not None:
                self._compiled.move_to_end(steering.key)
                return found
        ref = await self._compile(steering)
        with self._lock:
            self._compiled[steering.key] = ref
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return ref

    async def _compile(self, steering: SteeringSpec) -> SteeringRef:
        error: EngineDownError | None = None
        for replica in sorted(self._replicas.up, key=lambda each: each.num_sequences):
            try:
                ref: SteeringRef = await asyncio.wrap_future(replica.supervisor.call("compile", steering))
            except EngineDownError as down:
                error = down
            else:
                self._router.note(replica, [steering_key(ref)])
                return ref
        raise error or self._replicas.down_error()

    def cancel(self, stream_id: str) -> None:
        for each in self._replicas.all:
            if stream_id in each.streams:
                each.supervisor.cancel(stream_id)

    def is_busy(self, model: str) -> bool:
        """Return whether sequences of ``model`` are queued or running."""
        return any(each.streams.is_busy(model) for each in self._replicas.all)

    def start(self) -> None:
        self._replicas.start()

    def stats(self) -> EngineStats:
        return self._replicas.stats()

    def settings(self) -> dict[str, object]:
        return dataclasses.asdict(self._config)

    def replace_processes(self) -> int:
        return self._replicas.replace_all()

    def stop(self, drain_s: float) -> None:
        self._replicas.stop(drain_s)


def _best(
    refusals: Sequence[EngineDownError | ModelNotAttachedError | QueueFullError],
) -> EngineDownError | ModelNotAttachedError | QueueFullError | None:
    """Return the refusal that tells the client most: that of the queue which is free first, if queues are full."""
    full = [each for each in refusals if isinstance(each, QueueFullError)]
    if full:
        return min(full, key=lambda each: each.retry_after_s)
    return refusals[0] if refusals else None


class ProcessModels:
    """The models in the engine's processes, for the registry: its engine, its loading and its measure of memory.

    The registry plans for each replica that will load a model. Each has an equal part of the memory of a device that it
    shares with others.
    """

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas
        self._specs: dict[str, ModelSpec] = {}

    @property
    def loading(self) -> ModelLoading:
        return ModelLoading(
            load=self._load,
            estimate=self._estimate,
            device_of=self._device_of,
            release=self._release,
            free_unused=self._free_unused,
            places=self._places,
            wait_for_places=self._replicas.wait_for_places,
        )

    def attach(self, loaded: LoadedFacts, kv_bytes: int) -> Future[None]:
        self._replicas.attach(self._specs[loaded.name], kv_bytes, loaded.memory_bytes)
        return _done()

    def detach(self, name: str) -> Future[Any]:
        self._replicas.detach(name)
        return _done()

    def measure(self, device: str) -> DeviceMemory:
        """Return the memory of one replica: that of the device with least of it, divided among its replicas."""
        self._replicas.wait()
        measures: list[DeviceMemory] = self._replicas.call_all("measure", device)
        return self._share(device, min(each.total for each in measures), min(each.free for each in measures))

    def _share(self, device: str, total: int, free: int) -> DeviceMemory:
        share = self._replicas.num_sharing(device)
        return DeviceMemory(total // share, free // share)

    def _places(self, spec: ModelSpec) -> list[Place]:
        """Return the replicas that would load a model now, with the models that they lack."""
        replicas = self._replicas.places(spec)
        device = self._device_of(spec)
        calls = [each.supervisor.call("measure", device) for each in replicas]
        places = []
        for each, call in zip(replicas, calls, strict=True):
            with suppress(EngineDownError):
                memory: DeviceMemory = call.result()
                elsewhere = self._replicas.models - self._replicas.models_of(each)
                places.append(Place(self._share(device, memory.total, memory.free), elsewhere))
        if not places:
            raise self._replicas.down_error()
        return places

    def _load(self, spec: ModelSpec) -> LoadedFacts:
        self._specs[spec.name] = spec
        return self._replicas.load(spec)

    def _estimate(self, spec: ModelSpec) -> MemoryEstimate:
        estimate: MemoryEstimate = self._replicas.call_any("estimate", spec)
        return estimate

    def _device_of(self, spec: ModelSpec) -> str:
        device: str = self._replicas.call_any("device_of", spec)
        return device

    def _release(self, loaded: LoadedFacts) -> None:
        self._replicas.release(loaded.name)

    def _free_unused(self) -> None:
        with suppress(EngineDownError):
            self._replicas.call_all("free_unused")


class ProcessSAEs:
    """The SAEs in the engine's processes. Implements :class:`inference.steering_refs.LoadedSAEs`."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self._replicas = replicas

    def load_sae(self, source: SAESource) -> None:
        self._replicas.call_all("load_sae", source)

    def unload_sae(self, checksum: str) -> None:
        """Free an SAE there, and the copy that jobs and pages of this process have loaded."""
        runtime.get(STEERING_COMPILER).unload_sae(checksum)
        self._replicas.call_all("unload_sae", checksum)

    def loaded_bytes(self, checksum: str) -> int | None:
        """Return the memory of the SAE on a replica that has loaded it."""
        try:
            sizes: list[int | None] = self._replicas.call_all("loaded_bytes", checksum)
        except EngineDownError:
            return None
        return max((size for size in sizes if size is not None), default=None)


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done
