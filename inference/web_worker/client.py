"""A web worker's side: the engine, the models and the SAEs of the main process."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.conf import settings

from core.runtime import runtime
from core.snapshots import Snapshot
from inference.client import EngineDownError
from inference.engine.config import EngineConfig
from inference.engine.messages import Request
from inference.engine.stats import EngineStats
from inference.engine_process.channel import CancelStream, Events, Message, Status
from inference.engine_process.client import MAX_COMPILED
from inference.engine_process.supervisor import STARTING
from inference.event_stream import LocalEventStream, OpenStreams
from inference.models import LanguageModel
from inference.registry.loads import RETRY_LOADING_AFTER_S, LoadStatus
from inference.registry.memory_plan import MemoryPlan
from inference.registry.model_card import Card, MediaCard, ModelCard, ModelNotReadyError
from inference.registry.records import ModelRecord, ModelTable, model_table
from inference.registry.registry import ModelRegistry
from inference.steering_refs import STEERING_COMPILER, SAESource, SteeringRef, SteeringSpec
from inference.web_worker.link import GONE, Link

SILENCE_S = 15.0  # without a report, after which the main process counts as stuck
TOUCH_S = 0.25  # between reports that a model is in use
ANSWER_S = 60.0  # that a page waits for the main process
MAX_FETCHES = 3  # of a model that is unloaded again and again


class WorkerEngine:
    """The engine behind the link, as :class:`WorkerEngineClient` uses it. Thread-safe."""

    def __init__(self, link: Link, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._stats = STARTING
        self._heard_at = clock()
        self._is_stopped = False

    def call(self, method: str, *arguments: object) -> Future[Any]:
        if not self._is_stopped:
            return self._link.call(method, *arguments)
        refused: Future[Any] = Future()
        refused.set_exception(EngineDownError(GONE))
        return refused

    def cancel(self, stream_id: str) -> None:
        self._link.send(CancelStream(stream_id))

    def note(self, stats: EngineStats) -> None:
        """Take a report of the main process, which comes twice a second."""
        self._stats, self._heard_at = stats, self._clock()

    def stats(self) -> EngineStats:
        if self._is_stopped:
            return EngineStats(state="stopped")
        silent_s = self._clock() - self._heard_at
        if silent_s > SILENCE_S:
            return EngineStats("failed", error=f"The main process has not reported for {silent_s:.0f} s.")
        return self._stats

    def start(self) -> None:
        """Do nothing: the main process runs the engine."""

    def stop(self, drain_s: float) -> None:
        """Refuse new requests. The server has waited for running ones."""
        self._is_stopped = True


class WorkerEngineClient:
    """Implements :class:`inference.client.EngineClient` for a web worker. Events arrive on the link's thread."""

    def __init__(self, engine: WorkerEngine) -> None:
        self._engine = engine
        self._config = EngineConfig(**settings.MILLM_ENGINE_OPTIONS)
        self._streams = OpenStreams(self.cancel)
        self._compiled: OrderedDict[Hashable, SteeringRef] = OrderedDict()
        self._lock = threading.Lock()

    async def submit(self, requests: Sequence[Request]) -> LocalEventStream:
        """Accept all requests or none. See :class:`inference.client.EngineClient`."""
        stream = self._streams.open(requests)
        try:
            await asyncio.wrap_future(self._engine.call("submit", tuple(requests), stream.id))
        except BaseException as error:
            self._streams.forget(stream)
            if isinstance(error, asyncio.CancelledError):
                self.cancel(stream.id)
            raise
        return stream

    async def compile(self, steering: SteeringSpec) -> SteeringRef:
        """Compile steering in the main process. References are kept; the weights are there."""
        with self._lock:
            found = self._compiled.get(steering.key)
            if found is not None:
                self._compiled.move_to_end(steering.key)
                return found
        ref: SteeringRef = await asyncio.wrap_future(self._engine.call("compile", steering))
        with self._lock:
            self._compiled[steering.key] = ref
            while len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return ref

    def cancel(self, stream_id: str) -> None:
        self._engine.cancel(stream_id)

    def note_death(self) -> None:
        """Fail all sequences, because the main process ended."""
        self._streams.fail_all("server_error", "The engine failed.")

    def is_busy(self, model: str) -> bool:
        """Return whether sequences of ``model`` from this worker are queued or running."""
        return self._streams.is_busy(model)

    def start(self) -> None:
        """Do nothing: the main process runs the engine."""

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def settings(self) -> dict[str, object]:
        return dataclasses.asdict(self._config)

    def replace_processes(self) -> int:
        count: int = self._engine.call("replace_processes").result(ANSWER_S)
        return count

    def take(self, message: Message) -> bool:
        """Take events or a report from the link. Return False for another message."""
        match message:
            case Events():
                self._streams.publish(message.deliveries)
            case Status():
                self._engine.note(message.stats)
            case _:
                return False
        return True

    def stop(self, drain_s: float) -> None:
        """Fail what still runs; see :meth:`WorkerEngine.stop`."""
        self._engine.stop(drain_s)
        for stream_id in self._streams.ids():
            self._engine.cancel(stream_id)
        self._streams.fail_all("engine_shutdown", "The server is shutting down.")


class WorkerRegistry(ModelRegistry):
    """The models of the main process. Looks records up itself, and keeps a copy of each loaded model's card."""

    def __init__(
        self,
        link: Link,
        *,
        table: Snapshot[ModelTable] = model_table,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(table=table, clock=clock)
        self._link = link
        self._lock = threading.Lock()
        self._numbers: Mapping[str, int] = {}  # of the loads, as last reported
        self._cards: dict[str, tuple[int, Card]] = {}
        self._fetches: dict[str, Future[Any]] = {}
        self._touched: dict[str, float] = {}

    @property
    def is_serving(self) -> bool:
        return True

    def note_loads(self, numbers: Mapping[str, int]) -> None:
        """Take a report of the loaded models. Cards of new ones are fetched before a request needs them."""
        self._numbers = numbers
        with self._lock:
            for name in [name for name, (number, _) in self._cards.items() if numbers.get(name) != number]:
                del self._cards[name]
        for name in numbers:
            if name not in self._cards:
                self._fetch(name)

    def loads(self) -> dict[str, int]:
        return dict(self._numbers)

    def is_loaded(self, name: str) -> bool:
        return name in self._numbers

    def load_status(self, name: str) -> LoadStatus:
        """Ask the main process. For threads: it waits."""
        status: LoadStatus = _waited(self._link.call("load_status", name))
        return status

    def max_model_len(self, name: str) -> int | None:
        record = self.find(name)
        card = self._known(record.name)
        return card.max_model_len if isinstance(card, ModelCard) else record.max_model_len

    def layers_and_width(self, name: str) -> tuple[int, int] | None:
        card = self._known(self.find(name).name)
        if not isinstance(card, ModelCard) or not card.sites:
            return None
        return 1 + max(site.layer for site in card.sites), card.dimensions

    def media_facts(self, name: str) -> object | None:
        card = self._known(name)
        return card.facts if isinstance(card, MediaCard) else None

    def loaded_card(self, name: str) -> Card | None:
        return self._ready_now(self.find(name))

    async def ready_card(self, name: str) -> Card:
        record = (await self._table.aget()).find(name)
        for _ in range(MAX_FETCHES):
            found = self._ready_now(record)
            if found is not None:
                return found
            with self._loads.waiting():
                if record.name not in self._numbers:
                    await self._loaded(record.name)
                found = await self._fetched(record)
            if found is not None:
                return found
        message = f"The model {record.name} was unloaded in the meantime; try again."
        raise ModelNotReadyError(message, RETRY_LOADING_AFTER_S)

    def load(self, name: str) -> Future[None]:
        return self._link.call("load", self.find(name).name)

    def unload(self, name: str, *, now: bool = False) -> Future[None]:
        return self._link.call("unload", self.find(name).name, now)

    def memory_plan(self, row: LanguageModel, path: Path) -> MemoryPlan:
        """Ask the main process, which has the models. For threads: it waits."""
        plan: MemoryPlan = _waited(self._link.call("memory_plan", row.pk, path))
        return plan

    def _ready_now(self, record: ModelRecord) -> Card | None:
        card = self._known(record.name)
        if card is None:
            return None
        now = self._clock()
        if now - self._touched.get(record.name, -TOUCH_S) >= TOUCH_S:
            self._touched[record.name] = now
            self._link.notify("use", record.name)
        return replace(card, record=record)  # which may have changed since the load

    def _known(self, name: str) -> Card | None:
        number, card = self._cards.get(name, (None, None))
        return card if number is not None and number == self._numbers.get(name) else None

    def _fetch(self, name: str) -> Future[Any]:
        """Fetch the card of a loaded model. Concurrent callers share one copy."""
        with self._lock:
            running = self._fetches.get(name)
            if running is not None:
                return running
            fetch = self._fetches[name] = self._link.call("loaded_card", name)
        fetch.add_done_callback(lambda done: self._note_card(name, done))
        return fetch

    def _note_card(self, name: str, done: Future[Any]) -> None:
        with self._lock:
            self._fetches.pop(name, None)
            if not done.cancelled() and done.exception() is None:
                number, card = done.result()
                others = {other: load for other, load in self._numbers.items() if other != name}
                self._numbers = others if number is None else {**others, name: number}  # newer than the last report
                if number is not None:
                    self._cards[name] = (number, card)

    async def _loaded(self, name: str) -> None:
        """Have the main process load the model, and wait. Raise what its registry raises."""
        call_id = uuid4().hex
        try:
            await asyncio.wrap_future(self._link.call("ready", name, call_id))
        except asyncio.CancelledError:
            self._link.send(CancelStream(call_id))
            raise

    async def _fetched(self, record: ModelRecord) -> Card | None:
        _, card = await asyncio.shield(asyncio.wrap_future(self._fetch(record.name)))
        return None if card is None else replace(card, record=record)


class WorkerSAEs:
    """The SAEs of the engine's side. Implements :class:`inference.steering_refs.LoadedSAEs`."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def load_sae(self, source: SAESource) -> None:
        self._link.call("load_sae", source).result()

    def unload_sae(self, checksum: str) -> None:
        """Free an SAE in the main process and in every worker."""
        runtime.get(STEERING_COMPILER).unload_sae(checksum)
        self._link.call("unload_sae", checksum).result()

    def loaded_bytes(self, checksum: str) -> int | None:
        try:
            num_bytes: int | None = _waited(self._link.call("loaded_bytes", checksum))
        except EngineDownError:
            return None
        return num_bytes


def _waited(answer: Future[Any]) -> Any:
    """Return an answer that pages wait for. Raise EngineDownError if it does not come."""
    try:
        return answer.result(ANSWER_S)
    except TimeoutError:
        raise EngineDownError("The main process does not respond. Try again.") from None
