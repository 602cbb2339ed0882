"""Which models exist, which are loaded, and how to get one ready. No database on the way of a request.

A row's ``state``, ``error``, ``memory_bytes`` and ``loaded_at`` describe the serving process that wrote them last. With
several serving processes on one database each loads models for itself, and the row shows the latest word; a process
that starts resets the states that it finds, because it cannot tell a dead process' rows from a living one's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from django.conf import settings
from django.utils import timezone

from core.snapshots import Snapshot
from inference.client import EngineDownError, NotEnoughMemoryError
from inference.files.sources import Download, ModelSource, locate_model, own_context_length
from inference.models import LanguageModel
from inference.registry.loader_thread import LoaderThread
from inference.registry.loading import ModelLoading, spec_for
from inference.registry.loads import (
    FIRST_RETRY_S,
    RETRY_LOADING_AFTER_S,
    LoadFailures,
    LoadStatus,
    PendingLoad,
    PendingLoads,
    RunningLoad,
    RunningLoads,
)
from inference.registry.memory_plan import LoadedEntry, LoadedModels, MemoryBudget, MemoryPlan, ModelsBusyError
from inference.registry.ready_model import ModelLoadFailedError, ModelNotReadyError, ReadyModel
from inference.registry.records import (
    ModelNotFoundError,
    ModelRecord,
    ModelTable,
    failure_message,
    model_table,
    reset_states,
    write_state,
)
from inference.text.model_text import ModelText

if TYPE_CHECKING:
    from inference.engine.models.loader import LoadedModel, ModelSpec

__all__ = [
    "ModelLoadFailedError",
    "ModelNotFoundError",
    "ModelNotReadyError",
    "ModelRecord",
    "ModelRegistry",
    "ReadyModel",
    "get_registry",
    "set_registry",
]

logger = logging.getLogger(__name__)
HANDOVER_S = 1.0  # a request that has just been given a model has not submitted yet: the model is not idle
MEMORY_POLL_S = 0.25


class ModelEngine(Protocol):
    """What the registry needs of the engine's loop."""

    def attach(self, loaded: LoadedModel, kv_bytes: int) -> Future[None]:
        """``kv_bytes`` of memory for keys and values; 0 for a model without."""

    def detach(self, name: str) -> Future[object]:
        """Resolves to what the engine kept of the model, so that its memory is freed on the caller's thread."""


class ModelRegistry:
    """Thread-safe. ``engine`` is None in processes that do not serve: they can look models up, not load them."""

    def __init__(
        self,
        engine: ModelEngine | None = None,
        *,
        is_busy: Callable[[str], bool] = lambda name: False,
        kv_unwritten: Callable[[str], int] = lambda name: 0,
        locate: Callable[[ModelSource, Download], Path] = locate_model,
        loading: ModelLoading | None = None,
        budget: MemoryBudget | None = None,
        table: Snapshot[ModelTable] = model_table,
        clock: Callable[[], float] = time.monotonic,
        load_timeout_s: float | None = None,
        retry_failed_after_s: float = FIRST_RETRY_S,
    ) -> None:
        self._engine = engine
        self._is_busy = is_busy
        self._kv_unwritten = kv_unwritten
        self._locate = locate
        self._loading = loading or ModelLoading()
        self.budget = budget or MemoryBudget(settings.MILLM_MEMORY_BUDGET)
        self._table = table
        self._clock = clock
        self._load_timeout_s = settings.MILLM_LOAD_TIMEOUT if load_timeout_s is None else load_timeout_s
        self._loaded_models = LoadedModels(clock)
        self._loads = PendingLoads(clock)
        self._failures = LoadFailures(clock, retry_failed_after_s)
        self._running = RunningLoads(clock)
        self._loader = LoaderThread(self.housekeep)
        self._unloads: dict[str, Future[None]] = {}  # that were asked for and are not done
        self._unloads_lock = threading.Lock()
        self._is_booted = engine is None

    @property
    def is_serving(self) -> bool:
        """Whether models can be loaded in this process."""
        return self._engine is not None

    def records(self) -> tuple[ModelRecord, ...]:
        return self._table.get().records

    def find(self, name: str) -> ModelRecord:
        """By name or alias; ModelNotFoundError. Never looks at files or the Hub."""
        return self._table.get().find(name)

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded_models

    def load_status(self, name: str) -> LoadStatus:
        """How far the model's load is, and what came of the last one."""
        running, failure = self._running.get(name), self._failures.get(name)
        retry_in_s = max(0.0, failure.retry_at - self._clock()) if failure is not None else None
        return LoadStatus(running, running is None and self._loads.get(name) is not None, retry_in_s)

    def max_model_len(self, name: str) -> int | None:
        """Tokens that the model takes; None while that is known neither from its row nor from loading it."""
        record = self.find(name)
        entry = self._loaded_models.get(record.name)
        return record.max_model_len if entry is None else entry.loaded.max_model_len

    async def ready(self, name: str) -> ReadyModel:
        """The model, loaded first if need be; requests for the same model share one load.

        Raises ModelNotFoundError, EngineDownError, ModelLoadFailedError, and ModelNotReadyError after
        ``load_timeout_s`` or when too many wait already.
        """
        record = (await self._table.aget()).find(name)
        found = self._ready_now(record)
        if found is not None:
            return found
        load = self._begin_load(record)
        try:
            with self._loads.waiting():
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(load)), self._load_timeout_s)
        except TimeoutError:
            message = f"The model {record.name} is still loading after {self._load_timeout_s:g} s; try again soon."
            raise ModelNotReadyError(message, RETRY_LOADING_AFTER_S) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # else the load was cancelled, not its caller
                raise
            raise EngineDownError("The server is shutting down.") from None
        return self._ready_now(record) or self._not_ready(record)

    def load(self, name: str) -> Future[None]:
        """Begin to load; returns at once. A recent failure does not keep an explicit load from trying again."""
        record = self.find(name)
        self._failures.forget(record.name)
        return self._begin_load(record)

    def unload(self, name: str, *, now: bool = False) -> Future[None]:
        """Begin to unload; returns at once. The model takes no more requests and goes when those that it has have
        ended; ``now`` ends them with ``model_unloaded``.

        Who asks again meanwhile waits for the same unload. A model that is not loaded stays so, and one whose load
        waits for room is not loaded any more. A request that comes after this loads the model again.
        """
        record = self.find(name)
        self._require_engine()
        fresh = Future[None]()
        with self._unloads_lock:
            done = self._unloads.setdefault(record.name, fresh)
        # Not under the lock: where the loader thread has ended, the job fails at once, and its callback takes the lock.
        if done is fresh:
            self._queue_unload(record, done, is_first=True)
        if now:
            self._loader.submit("unload now", record.name, lambda: self._unload_now(record, done))
        return done

    def start(self) -> Future[None]:
        """Reset what a dead process left in the rows, read the table, and load the models with ``autoload``."""
        self._require_engine()
        return self._loader.submit("boot", "", self._boot)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Write that nothing is loaded any more. The engine itself is stopped by its client."""
        self._loader.stop(self._write_all_unloaded, timeout_s)

    def housekeep(self) -> None:
        """Unload models whose keep-alive ran out, or whose row is gone. Called on the loader thread every second."""
        if not self._is_booted:
            self._boot()
        records = {record.name: record for record in self.records()}
        for entry in self._loaded_models.all():
            record = records.get(entry.name)
            if record is None:  # deleted or renamed
                self._dismiss(entry)
            elif entry.name not in self._unloads and self._is_overdue(record, entry):
                self._unload(entry.name, entry.pk)

    def memory_plan(self, row: LanguageModel, path: Path) -> MemoryPlan:
        """What the model in the directory needs and what there is for it. Reads headers only; LoadError."""
        return self._memory_plan(spec_for(row, path))

    def _ready_now(self, record: ModelRecord) -> ReadyModel | None:
        entry = self._loaded_models.use(record.name)
        if entry is None:
            return None
        return ReadyModel(
            record,
            entry.loaded.max_model_len,
            entry.loaded.vocab_size,
            entry.text,
            entry.kind,
            entry.loaded.hidden_size,
            entry.loaded.grammars,
            entry.loaded.labels,
        )

    def _not_ready(self, record: ModelRecord) -> ReadyModel:
        """The load ended without a model."""
        failure = self._failures.get(record.name)
        if failure is None:
            raise ModelNotReadyError(f"The model {record.name} was unloaded meanwhile; try again.", 1.0)
        raise ModelLoadFailedError(failure.message, max(1.0, failure.retry_at - self._clock()))

    def _begin_load(self, record: ModelRecord) -> Future[None]:
        """The running load of the model, or a new one. A recent failure is answered without another attempt."""
        self._require_engine()
        name = record.name
        load, is_new = self._loads.begin(
            record, unless=lambda: name in self._loaded_models or self._failures.is_recent(name)
        )
        if load is None:
            return _done()
        if is_new:
            self._queue(load)
        return load.done

    def _queue(self, load: PendingLoad) -> None:
        name = load.record.name
        job = self._loader.submit("load", name, lambda: self._load(name))
        job.add_done_callback(lambda done: self._note_stop(load, done))

    def _note_stop(self, load: PendingLoad, job: Future[None]) -> None:
        """The loader thread ends before this load had its turn, or was stopped already."""
        if job.cancelled():
            self._loads.forget(load)
            load.done.cancel()
        elif (error := job.exception()) is not None:
            self._loads.forget(load)
            load.done.set_exception(error)

    def _queue_unload(self, record: ModelRecord, done: Future[None], *, is_first: bool = False) -> None:
        def act() -> None:
            self._unload_when_idle(record, done, is_first=is_first)

        job = self._loader.submit("unload", record.name, act)
        job.add_done_callback(lambda ended: self._note_unload(record, done, ended))

    def _note_unload(self, record: ModelRecord, done: Future[None], job: Future[None]) -> None:
        """The loader thread ended before the unload had its turn, or the engine could not do it."""
        if not job.cancelled() and job.exception() is None:
            return
        self._forget_unload(record.name)
        if job.cancelled():
            done.cancel()
        elif not done.done():
            done.set_exception(job.exception())

    def _forget_unload(self, name: str) -> None:
        with self._unloads_lock:
            self._unloads.pop(name, None)

    def _require_engine(self) -> ModelEngine:
        if self._engine is None:
            raise EngineDownError("No engine runs in this process; models are loaded by the server.")
        return self._engine

    def _is_overdue(self, record: ModelRecord, entry: LoadedEntry) -> bool:
        keep_alive_s = settings.MILLM_MODEL_KEEP_ALIVE if record.keep_alive_s is None else record.keep_alive_s
        if keep_alive_s == 0 or record.is_pinned:
            return False
        if self._is_busy(record.name):
            self._loaded_models.use(record.name)
        return self._loaded_models.idle_s(entry) >= keep_alive_s

    # On the loader thread

    def _boot(self) -> None:
        reset_states(keep=[entry.pk for entry in self._loaded_models.all()])
        table = self._table.refresh()
        for name in LanguageModel.objects.filter(autoload=True).values_list("name", flat=True):
            self._begin_load(table.find(name))
        self._is_booted = True

    def _load(self, name: str) -> None:
        load = self._loads.get(name)
        if load is None:  # the model was unloaded before there was room
            return
        if self._loaded_models.get(name) is not None:  # it is leaving; what came since then wants it again
            self._await_leaving(load)
            return
        record, is_short = load.record, False
        try:
            write_state(record.pk, LanguageModel.State.LOADING)
            with self._running.one(name) as running:
                learned = self._bring_in(LanguageModel.objects.get(pk=record.pk), running)
        except ModelsBusyError as error:
            if self._loads.age_s(load) < self._load_timeout_s:
                self._try_again(load)
                return
            self._note_failure(record, str(error))
        except BaseException as error:  # noqa: BLE001 - whatever is wrong with a model is told in its row, at once
            self._note_failure(record, failure_message(record.name, error))
            is_short = isinstance(error, NotEnoughMemoryError)
        else:
            self._failures.forget(record.name)
            write_state(record.pk, LanguageModel.State.LOADED, loaded_at=timezone.now(), **learned)
        if is_short:  # not before the error is gone, which holds what had been loaded
            self._loading.free_unused()
        self._loads.end(load)

    def _await_leaving(self, load: PendingLoad) -> None:
        if self._loads.age_s(load) < self._load_timeout_s:
            self._try_again(load)
            return
        message = f"{load.record.name} is being unloaded and still answers requests; try again when they have ended."
        self._note_failure(load.record, message)
        self._loads.end(load)

    def _try_again(self, load: PendingLoad) -> None:
        """Behind the other jobs, so that they do not wait for this one's room."""
        time.sleep(MEMORY_POLL_S)
        self._loads.postpone(load)
        self._queue(load)

    def _bring_in(self, row: LanguageModel, running: RunningLoad) -> dict[str, int | str]:
        """Locate, make room, load, and hand over to the engine. Returns what the row can be told of the model now."""
        path = self._locate(row.model_source, running.download)
        spec = spec_for(row, path)
        running.enter("making room")
        plan = self._free_memory_for(spec)
        kv_bytes = plan.kv_bytes(settings.MILLM_ENGINE["kv_cache_bytes"], self._num_expected())
        running.enter("reading its weights")
        loaded = self._loading.load(spec)
        try:
            text = ModelText(
                loaded.tokenizer,
                max_model_len=loaded.max_model_len,
                chat_template=row.chat_template,
                tool_format=row.tool_format,
            )
            running.enter("getting ready")
            # Without a limit: the engine takes it in or fails the future, and nobody else may say that it did not.
            self._require_engine().attach(loaded, kv_bytes).result()
        except BaseException:
            self._loading.release(loaded)
            raise
        reserved = plan.needed - plan.estimate.kv + kv_bytes
        self._loaded_models.add(LoadedEntry(row.pk, row.name, loaded, text, spec.kind, reserved, self._clock()))
        return {
            "memory_bytes": loaded.memory_bytes,
            "own_context_length": own_context_length(path),
            "kind": spec.kind,
            "num_labels": len(loaded.labels),
        }

    def _num_expected(self) -> int:
        """Models that may still want memory: registered, and not loaded yet."""
        return sum(not self.is_loaded(record.name) for record in self.records())

    def _free_memory_for(self, spec: ModelSpec) -> MemoryPlan:
        """Unload idle models until this one fits and return its plan. Raise InsufficientMemoryError or LoadError."""
        plan = self._memory_plan(spec)
        while chosen := plan.choose(self._is_in_use):
            logger.info("Unloading %s to make room for %s.", chosen[0].name, spec.name)
            self._unload(chosen[0].name, chosen[0].pk)
            plan = self._memory_plan(spec)  # measured again: not all memory comes back at once
        return plan

    def _memory_plan(self, spec: ModelSpec) -> MemoryPlan:
        device = self._loading.device_of(spec)
        pinned = {record.name for record in self.records() if record.is_pinned}
        others = [r for r in self._loaded_models.all() if r.loaded.device == device and r.name != spec.name]
        return MemoryPlan(
            name=spec.name,
            device=device,
            estimate=self._loading.estimate(spec),
            free=self.budget.available(
                device,
                reserved_bytes=sum(r.reserved_bytes for r in others),
                unwritten_bytes=sum(self._kv_unwritten(r.name) for r in others),
            ),
            budget=self.budget.size(device),
            unpinned=[r for r in others if r.name not in pinned],
        )

    def _is_in_use(self, name: str) -> bool:
        entry = self._loaded_models.get(name)
        return self._is_busy(name) or (entry is not None and self._loaded_models.idle_s(entry) < HANDOVER_S)

    def _note_failure(self, record: ModelRecord, message: str) -> None:
        self._failures.note(record.name, message)
        write_state(record.pk, LanguageModel.State.FAILED, error=message)

    def _unload_when_idle(self, record: ModelRecord, done: Future[None], *, is_first: bool) -> None:
        """Behind the other jobs, until what runs has ended. A request may have been given the model and be about to
        submit, so one look is not enough.
        """
        if done.done():  # somebody could not wait
            return
        if is_first:
            self._loads.give_up(record.name)
        entry = self._loaded_models.get(record.name)
        if entry is not None and (not entry.is_leaving or self._is_busy(record.name)):
            entry.is_leaving = True
            time.sleep(MEMORY_POLL_S)
            self._queue_unload(record, done)
            return
        self._end_unload(record, done)

    def _unload_now(self, record: ModelRecord, done: Future[None]) -> None:
        if not done.done():
            self._end_unload(record, done)

    def _end_unload(self, record: ModelRecord, done: Future[None]) -> None:
        self._remove(record.name, record.pk)
        self._forget_unload(record.name)
        done.set_result(None)

    def _dismiss(self, entry: LoadedEntry) -> None:
        """It has no row any more: it goes once what it runs has ended. Called every second."""
        if self._is_busy(entry.name):
            entry.is_leaving = True
        else:
            self._unload(entry.name, entry.pk)

    def _unload(self, name: str, pk: int) -> None:
        self._loads.give_up(name)
        self._remove(name, pk)

    def _remove(self, name: str, pk: int) -> None:
        """From the engine first: where that fails, the model is still there for both. What it runs fails."""
        entry = self._loaded_models.get(name)
        if entry is not None:
            entry.is_leaving = True
            try:
                self._require_engine().detach(name).result()
            except BaseException:
                entry.is_leaving = False
                raise
            self._loaded_models.remove(name)
            self._loading.release(entry.loaded)
        write_state(pk, LanguageModel.State.UNLOADED)

    def _write_all_unloaded(self) -> None:
        for entry in self._loaded_models.all():
            write_state(entry.pk, LanguageModel.State.UNLOADED)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


_registry: ModelRegistry | None = None


def get_registry() -> ModelRegistry:
    """This process' registry; before the server has started its engine, one that can only look models up."""
    return _registry if _registry is not None else _lookup_registry()


@cache
def _lookup_registry() -> ModelRegistry:
    return ModelRegistry()


def set_registry(registry: ModelRegistry | None) -> None:
    """Install the process' registry, or a test's; None removes it."""
    global _registry
    _registry = registry
