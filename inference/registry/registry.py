"""Look up models, load and unload them, and return a model that is ready. Requests do not query the database.

A row's ``state``, ``error``, ``memory_bytes`` and ``loaded_at`` describe the serving process that wrote them last. If
several serving processes share a database, each loads models for itself and the last writer wins. A process resets the
states at startup, because it cannot tell rows of a dead process from those of a living one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from core.runtime import Service, runtime
from core.snapshots import Snapshot
from inference.client import EngineDownError, NotEnoughMemoryError
from inference.files.architectures import MEDIA_KINDS
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
from inference.registry.media import MEDIA_BACKEND, LoadedMedia, MediaRestartingError
from inference.registry.memory_plan import LoadedEntry, LoadedModels, MemoryBudget, MemoryPlan, ModelsBusyError
from inference.registry.model_card import (
    Card,
    MediaCard,
    ModelCard,
    ModelLoadFailedError,
    ModelNotReadyError,
    WrongKindError,
)
from inference.registry.records import (
    ModelRecord,
    ModelTable,
    failure_message,
    model_table,
    reset_states,
    write_state,
)
from inference.text.model_text import ModelText

if TYPE_CHECKING:
    from inference.engine.models.facts import ModelSpec

logger = logging.getLogger(__name__)
HANDOVER_S = 1.0  # the model is in use, not idle, until a request that has just received it submits
MEMORY_POLL_S = 0.25


class ModelEngine(Protocol):
    """The part of the engine's loop that the registry uses."""

    def attach(self, loaded: Any, kv_bytes: int) -> Future[None]:
        """Serve a model that :class:`ModelLoading` has loaded. ``kv_bytes``: its KV cache; 0 if it has none."""

    def detach(self, name: str) -> Future[object]:
        """Stop serving a model. Resolves to the engine's objects, so that the caller's thread frees them."""


class ModelRegistry:
    """The models of this process. Thread-safe. Without an ``engine`` it can look models up, but not load them."""

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
        self._engine_is_busy = is_busy
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
        self._unloads: dict[str, Future[None]] = {}  # requested and not done yet
        self._unloads_lock = threading.Lock()
        self._is_booted = engine is None
        self._start_models: tuple[str, ...] = ()

    @property
    def is_serving(self) -> bool:
        """Return whether models can be loaded in this process."""
        return self._engine is not None

    def records(self) -> tuple[ModelRecord, ...]:
        return self._table.get().records

    def find(self, name: str) -> ModelRecord:
        """Return the record with that name or alias. Raise ModelNotFoundError. Never accesses files or the Hub."""
        return self._table.get().find(name)

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded_models

    def loads(self) -> dict[str, int]:
        """Return the loaded models that accept requests, each with a number that changes when it is loaded again."""
        return {entry.name: entry.number for entry in self._loaded_models.all() if not entry.is_leaving}

    def loaded_card(self, name: str) -> Card | None:
        """Return the model if it is loaded, and count it as used now."""
        return self._ready_now(self.find(name))

    def load_status(self, name: str) -> LoadStatus:
        """Return the progress of the model's load, or the outcome of the last one."""
        running, failure = self._running.get(name), self._failures.get(name)
        retry_in_s = max(0.0, failure.retry_at - self._clock()) if failure is not None else None
        return LoadStatus(running, running is None and self._loads.get(name) is not None, retry_in_s)

    def max_model_len(self, name: str) -> int | None:
        """Return the model's context length; None if neither its row nor a load has set it yet."""
        record = self.find(name)
        entry = self._loaded_models.get(record.name)
        if entry is None or isinstance(entry.loaded, LoadedMedia):
            return record.max_model_len
        return entry.loaded.max_model_len

    def layers_and_width(self, name: str) -> tuple[int, int] | None:
        """Return the number of layers and the width of the residuals of a loaded generation model, else None."""
        entry = self._loaded_models.get(self.find(name).name)
        if entry is None or isinstance(entry.loaded, LoadedMedia) or not entry.loaded.sites:
            return None
        return 1 + max(site.layer for site in entry.loaded.sites), entry.loaded.hidden_size

    def media_facts(self, name: str) -> object | None:
        """Return what requests can ask of a media model, or None if it is not loaded."""
        entry = self._loaded_models.get(name)
        return entry.loaded.facts if entry is not None and isinstance(entry.loaded, LoadedMedia) else None

    async def ready(self, name: str) -> ModelCard:
        """Return a text model like :meth:`ready_card`. Raise WrongKindError for other models."""
        card = await self.ready_card(name)
        if isinstance(card, MediaCard):
            raise WrongKindError(f"The model `{card.record.name}` is a {card.kind} model.")
        return card

    async def ready_card(self, name: str) -> Card:
        """Return the model, loading it first if necessary. Requests for the same model share one load.

        Raise ModelNotFoundError, EngineDownError, ModelLoadFailedError, or ModelNotReadyError (after
        ``load_timeout_s``, or if too many requests are waiting).
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
            if task is not None and task.cancelling():  # otherwise the load was cancelled, not its caller
                raise
            raise EngineDownError("The server is shutting down.") from None
        return self._ready_now(record) or self._not_ready(record)

    def load(self, name: str) -> Future[None]:
        """Start a load and return at once. An explicit load is tried even after a recent failure."""
        record = self.find(name)
        self._failures.forget(record.name)
        return self._begin_load(record)

    def unload(self, name: str, *, now: bool = False) -> Future[None]:
        """Start to unload and return at once. The model accepts no more requests and is unloaded when the running ones
        have finished; ``now`` fails them with ``model_unloaded``.

        Further calls share the same unload. A load that waits for memory is abandoned. A later request loads the model
        again.
        """
        record = self.find(name)
        self._require_engine()
        fresh = Future[None]()
        with self._unloads_lock:
            done = self._unloads.setdefault(record.name, fresh)
        # Not under the lock: if the loader thread has ended, the job fails at once, and its callback takes the lock.
        if now:
            job = self._loader.submit("unload now", record.name, lambda: self._unload_now(record, done))
            job.add_done_callback(lambda ended: self._note_unload(record, done, ended))
        elif done is fresh:
            self._queue_unload(record, done, is_first=True)
        return done

    def start(self, models: Sequence[str] = ()) -> Future[None]:
        """Reset the states in the rows, read the table, and load the models with ``autoload`` and these ``models``."""
        self._require_engine()
        self._start_models = tuple(models)
        return self._loader.submit("boot", "", self._boot)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the loader thread and mark all models as unloaded. The client stops the engine itself."""
        self._loader.stop(self._write_all_unloaded, timeout_s)

    def housekeep(self) -> None:
        """Unload models that have expired or whose row was deleted. The loader thread calls it every second."""
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
        """Return the memory plan of the model in a directory. Reads file headers only. Raise LoadError."""
        return self._memory_plan(spec_for(row, path))

    def _ready_now(self, record: ModelRecord) -> Card | None:
        entry = self._loaded_models.use(record.name)
        if entry is None:
            return None
        if isinstance(entry.loaded, LoadedMedia):
            return MediaCard(record, entry.kind, entry.loaded.facts)
        assert entry.text is not None, "text models have text functions"
        return ModelCard(
            record,
            entry.loaded.max_model_len,
            entry.loaded.vocab_size,
            entry.text,
            entry.kind,
            entry.loaded.hidden_size,
            entry.loaded.grammars,
            entry.loaded.labels,
            entry.loaded.sites,
            entry.loaded.batch_invariant,
        )

    def _is_busy(self, name: str) -> bool:
        """Return whether requests for the model run or wait, in the engine or in the media backend."""
        return self._engine_is_busy(name) or runtime.get(MEDIA_BACKEND).is_busy(name)

    def _not_ready(self, record: ModelRecord) -> Card:
        """Raise the error for a load that ended without a model."""
        failure = self._failures.get(record.name)
        if failure is None:
            raise ModelNotReadyError(f"The model {record.name} was unloaded in the meantime; try again.", 1.0)
        raise ModelLoadFailedError(failure.message, max(1.0, failure.retry_at - self._clock()))

    def _begin_load(self, record: ModelRecord) -> Future[None]:
        """Return the pending load of the model, or start one. After a recent failure nothing is tried."""
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
        """Fail the load if the loader thread ended before its turn."""
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
        """Fail the unload if the loader thread ended before its turn, or the engine failed."""
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
            raise EngineDownError("No engine runs in this process; the server loads models.")
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
        at_start = LanguageModel.objects.filter(Q(autoload=True) | Q(name__in=self._start_models))
        for name in at_start.values_list("name", flat=True):
            self._begin_load(table.find(name))
        self._is_booted = True

    def _load(self, name: str) -> None:
        load = self._loads.get(name)
        if load is None:  # the model was unloaded before memory became available
            return
        if self._loaded_models.get(name) is not None:  # it is being unloaded, and later requests need it again
            self._retry_after_unload(load)
            return
        record, is_short = load.record, False
        try:
            write_state(record.pk, LanguageModel.State.LOADING)
            with self._running.track(name) as running:
                found = self._load_now(LanguageModel.objects.get(pk=record.pk), running)
        except (ModelsBusyError, MediaRestartingError) as error:
            if self._loads.age_s(load) < self._load_timeout_s:
                self._try_again(load)
                return
            self._note_failure(record, str(error))
        except BaseException as error:  # noqa: BLE001 - any failure is written into the row
            self._note_failure(record, failure_message(record.name, error))
            is_short = isinstance(error, NotEnoughMemoryError)
        else:
            self._failures.forget(record.name)
            write_state(record.pk, LanguageModel.State.LOADED, loaded_at=timezone.now(), **found)
        if is_short:  # only now: the error referred to the loaded model
            self._loading.free_unused()
        self._loads.end(load)

    def _retry_after_unload(self, load: PendingLoad) -> None:
        if self._loads.age_s(load) < self._load_timeout_s:
            self._try_again(load)
            return
        message = (
            f"{load.record.name} is being unloaded and still has running requests; try again when they have finished."
        )
        self._note_failure(load.record, message)
        self._loads.end(load)

    def _try_again(self, load: PendingLoad) -> None:
        """Queue the load behind the other jobs, so that they do not wait for it."""
        time.sleep(MEMORY_POLL_S)
        self._loads.postpone(load)
        self._queue(load)

    def _load_now(self, row: LanguageModel, running: RunningLoad) -> dict[str, int | str]:
        """Locate the files, free memory, load, and hand over to the engine. Return the live fields for the row."""
        path = self._locate(row.model_source, running.download)
        spec = spec_for(row, path)
        running.enter("freeing memory")
        plan = self._free_memory_for(spec)
        if spec.kind in MEDIA_KINDS:
            return self._load_media(row, spec, plan, running)
        kv_bytes = plan.kv_bytes(settings.MILLM_ENGINE_OPTIONS["kv_cache_bytes"], self._num_expected())
        running.enter("reading weights")
        loaded = self._loading.load(spec)
        try:
            text = ModelText(
                loaded.tokenizer,
                max_model_len=loaded.max_model_len,
                chat_template=row.chat_template,
                tool_format=row.tool_format,
            )
            running.enter("preparing the engine")
            # Without a timeout: only the engine knows whether it has accepted the model or failed.
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

    def _load_media(
        self, row: LanguageModel, spec: ModelSpec, plan: MemoryPlan, running: RunningLoad
    ) -> dict[str, int | str]:
        """Have the media backend load the model. Return the live fields for the row."""
        running.enter("reading weights")
        loaded = runtime.get(MEDIA_BACKEND).load(replace(spec, device=plan.device))
        self._loaded_models.add(LoadedEntry(row.pk, row.name, loaded, None, spec.kind, plan.needed, self._clock()))
        return {"memory_bytes": loaded.memory_bytes, "kind": spec.kind, "num_labels": 0}

    def note_lost(self, names: Collection[str], *, reloads: bool = False) -> None:
        """Mark models as unloaded whose process has died, and load them again if it ``reloads``. Callable from any
        thread.
        """
        for name in names:
            entry = self._loaded_models.get(name)
            if entry is not None:
                reload = reloads and not entry.is_leaving
                entry.is_leaving = True  # requests wait for the load from now on
                self._loader.submit("note loss", name, partial(self._note_loss, entry, reload=reload))

    def _note_loss(self, entry: LoadedEntry, *, reload: bool) -> None:
        if self._loaded_models.get(entry.name) is not entry:
            return
        self._loaded_models.remove(entry.name)
        write_state(entry.pk, LanguageModel.State.UNLOADED)
        record = next((record for record in self.records() if record.name == entry.name), None)
        if reload and record is not None:
            self._begin_load(record)

    def _num_expected(self) -> int:
        """Return the number of models that may still need memory: registered, and not loaded yet."""
        return sum(not self.is_loaded(record.name) for record in self.records())

    def _free_memory_for(self, spec: ModelSpec) -> MemoryPlan:
        """Unload idle models until this one fits and return its plan. Raise InsufficientMemoryError or LoadError."""
        self._loading.wait_for_places(spec)
        plan = self._memory_plan(spec)
        while chosen := plan.choose(self._is_in_use):
            logger.info("Unloading %s to free memory for %s.", chosen[0].name, spec.name)
            self._unload(chosen[0].name, chosen[0].pk)
            plan = self._memory_plan(spec)  # measured again: not all memory is freed at once
        return plan

    def _memory_plan(self, spec: ModelSpec) -> MemoryPlan:
        """Return the plan for the place with the least free memory among those where the model will be loaded."""
        device = self._loading.device_of(spec)
        pinned = {record.name for record in self.records() if record.is_pinned}
        estimate = self._loading.estimate(spec)
        on_device = [r for r in self._loaded_models.all() if r.loaded.device == device and r.name != spec.name]
        plans = []
        for place in self._loading.places(spec):
            others = [r for r in on_device if r.name not in place.elsewhere]
            plan = MemoryPlan(
                name=spec.name,
                device=device,
                estimate=estimate,
                free=self.budget.available(
                    device,
                    reserved_bytes=sum(r.reserved_bytes for r in others),
                    unwritten_bytes=sum(self._kv_unwritten(r.name) for r in others),
                    memory=place.memory,
                ),
                budget=self.budget.size(device, place.memory),
                unpinned=[r for r in others if r.name not in pinned],
            )
            plans.append(plan)
        return min(plans, key=lambda plan: plan.free)

    def _is_in_use(self, name: str) -> bool:
        entry = self._loaded_models.get(name)
        return self._is_busy(name) or (entry is not None and self._loaded_models.idle_s(entry) < HANDOVER_S)

    def _note_failure(self, record: ModelRecord, message: str) -> None:
        self._failures.note(record.name, message)
        write_state(record.pk, LanguageModel.State.FAILED, error=message)

    def _unload_when_idle(self, record: ModelRecord, done: Future[None], *, is_first: bool) -> None:
        """Requeue until the model's requests have finished. At least twice: a request may have received the model and
        not submitted yet.
        """
        if done.done():  # by an "unload now" meanwhile
            return
        if is_first:
            self._loads.abandon(record.name)
        entry = self._loaded_models.get(record.name)
        if entry is not None and (not entry.is_leaving or self._is_busy(record.name)):
            entry.is_leaving = True
            time.sleep(MEMORY_POLL_S)
            self._queue_unload(record, done)
            return
        self._end_unload(record, done)

    def _unload_now(self, record: ModelRecord, done: Future[None]) -> None:
        if not done.done():
            self._loads.abandon(record.name)
            self._end_unload(record, done)

    def _end_unload(self, record: ModelRecord, done: Future[None]) -> None:
        self._remove(record.name, record.pk)
        self._forget_unload(record.name)
        done.set_result(None)

    def _dismiss(self, entry: LoadedEntry) -> None:
        """Unload a model without a row once its requests have finished. Called every second."""
        if self._is_busy(entry.name):
            entry.is_leaving = True
        else:
            self._unload(entry.name, entry.pk)

    def _unload(self, name: str, pk: int) -> None:
        self._loads.abandon(name)
        self._remove(name, pk)

    def _remove(self, name: str, pk: int) -> None:
        """Detach the model from the engine, which fails its requests, and release it. Keep it if the engine fails."""
        entry = self._loaded_models.get(name)
        if entry is not None:
            entry.is_leaving = True
            try:
                if isinstance(entry.loaded, LoadedMedia):
                    runtime.get(MEDIA_BACKEND).unload(name)
                else:
                    self._require_engine().detach(name).result()
            except BaseException:
                entry.is_leaving = False
                raise
            self._loaded_models.remove(name)
            if not isinstance(entry.loaded, LoadedMedia):
                self._loading.release(entry.loaded)
        write_state(pk, LanguageModel.State.UNLOADED)

    def _write_all_unloaded(self) -> None:
        for entry in self._loaded_models.all():
            write_state(entry.pk, LanguageModel.State.UNLOADED)


def _done() -> Future[None]:
    future: Future[None] = Future()
    future.set_result(None)
    return future


MODEL_REGISTRY = Service(lambda: ModelRegistry())  # without an engine it can only look models up


def get_registry() -> ModelRegistry:
    """Return the registry of this process."""
    return runtime.get(MODEL_REGISTRY)
