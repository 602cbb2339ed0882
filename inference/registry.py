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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from django.conf import settings
from django.utils import timezone

from inference.client import EngineDownError
from inference.loader_thread import LoaderThread
from inference.models import LanguageModel
from inference.records import ModelNotFoundError, ModelRecord, ModelTable, model_table, smallest
from inference.snapshots import Snapshot
from inference.sources import ModelSource, own_context_length, resolve_source
from inference.states import failure_message, reset_states, write_state
from inference.text import ModelText

if TYPE_CHECKING:
    from inference.engine.loader import LoadedModel, ModelSpec

__all__ = [
    "ModelNotFoundError",
    "ModelNotReadyError",
    "ModelRecord",
    "ModelRegistry",
    "ReadyModel",
    "get_registry",
    "set_registry",
]

logger = logging.getLogger(__name__)
RETRY_FAILED_AFTER_S = 10.0
RETRY_LOADING_AFTER_S = 5.0
ATTACH_TIMEOUT_S = 60.0


class ModelNotReadyError(Exception):
    """The model exists but cannot serve now: it loads longer than the caller may wait, or its load failed."""

    code = "model_not_ready"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A loaded model: what a request needs to make token ids of its text and to check its numbers."""

    record: ModelRecord
    max_model_len: int
    vocab_size: int
    text: ModelText


class ModelEngine(Protocol):
    """What the registry needs of the engine's loop."""

    def attach(self, loaded: LoadedModel) -> Future[None]: ...

    def detach(self, name: str) -> Future[None]: ...


@dataclass(slots=True)
class _Resident:
    """A model in the engine. ``used_at`` is a reading of the monotonic clock."""

    pk: int
    max_model_len: int
    vocab_size: int
    text: ModelText
    used_at: float


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    retry_at: float


def load_from_directory(spec: ModelSpec) -> LoadedModel:
    """The engine's loader; imports torch."""
    from inference.engine.loader import load_model

    return load_model(spec)


def spec_for(row: LanguageModel, path: Path) -> ModelSpec:
    """What the engine shall load; imports torch."""
    from inference.engine.loader import ModelSpec

    return ModelSpec(
        name=row.name,
        path=path,
        dtype=row.dtype,
        device=row.device,
        trust_remote_code=row.trust_remote_code,
        allow_pickle=row.allow_pickle,
        max_seq_len=smallest(row.context_length, settings.MILLM_MAX_SEQ_LEN),
    )


class ModelRegistry:
    """Thread-safe. ``engine`` is None in processes that do not serve: they can look models up, not load them."""

    def __init__(
        self,
        engine: ModelEngine | None = None,
        *,
        is_busy: Callable[[str], bool] = lambda name: False,
        locate: Callable[[ModelSource], Path] = resolve_source,
        load_model: Callable[[ModelSpec], LoadedModel] = load_from_directory,
        table: Snapshot[ModelTable] = model_table,
        clock: Callable[[], float] = time.monotonic,
        load_timeout_s: float | None = None,
        retry_failed_after_s: float = RETRY_FAILED_AFTER_S,
    ) -> None:
        self._engine = engine
        self._is_busy = is_busy
        self._locate = locate
        self._load_model = load_model
        self._table = table
        self._clock = clock
        self._load_timeout_s = settings.MILLM_LOAD_TIMEOUT if load_timeout_s is None else load_timeout_s
        self._retry_failed_after_s = retry_failed_after_s
        self._lock = threading.Lock()  # guards the three dictionaries
        self._residents: dict[str, _Resident] = {}
        self._loads: dict[str, Future[None]] = {}  # queued or running
        self._failures: dict[str, _Failure] = {}
        self._loader = LoaderThread(self.housekeep)
        self._is_booted = engine is None

    def records(self) -> tuple[ModelRecord, ...]:
        return self._table.get().records

    def find(self, name: str) -> ModelRecord:
        """By name or alias; ModelNotFoundError. Never looks at files or the Hub."""
        return self._table.get().find(name)

    def is_loaded(self, name: str) -> bool:
        return name in self._residents

    def max_model_len(self, name: str) -> int | None:
        """Tokens that the model takes; None while that is known neither from its row nor from loading it."""
        record = self.find(name)
        resident = self._residents.get(record.name)
        return record.max_model_len if resident is None else resident.max_model_len

    async def ready(self, name: str) -> ReadyModel:
        """The model, loaded first if need be; requests for the same model share one load.

        Raises ModelNotFoundError, EngineDownError, and ModelNotReadyError after ``load_timeout_s`` or a failed load.
        """
        record = (await self._table.aget()).find(name)
        found = self._ready_now(record)
        if found is not None:
            return found
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self._begin_load(record))), self._load_timeout_s)
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
        with self._lock:
            self._failures.pop(record.name, None)
        return self._begin_load(record)

    def unload(self, name: str) -> Future[None]:
        """Begin to unload; returns at once. Running sequences fail with ``model_unloaded``."""
        record = self.find(name)
        self._require_engine()
        return self._loader.submit(lambda: self._unload(record))

    def start(self) -> Future[None]:
        """Reset what a dead process left in the rows, read the table, and load the models with ``autoload``."""
        self._require_engine()
        return self._loader.submit(self._boot)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Write that nothing is loaded any more. The engine itself is stopped by its client."""
        self._loader.stop(self._write_all_unloaded, timeout_s)

    def housekeep(self) -> None:
        """Unload models whose keep-alive ran out, or whose row is gone. Called on the loader thread every second."""
        if not self._is_booted:
            self._boot()
        records = {record.name: record for record in self.records()}
        for name, resident in list(self._residents.items()):
            record = records.get(name)
            if record is None:  # deleted or renamed
                self._remove(name)
                write_state(resident.pk, LanguageModel.State.UNLOADED)
            elif self._is_overdue(record, resident):
                self._unload(record)

    def _ready_now(self, record: ModelRecord) -> ReadyModel | None:
        resident = self._residents.get(record.name)
        if resident is None:
            return None
        resident.used_at = self._clock()
        return ReadyModel(record, resident.max_model_len, resident.vocab_size, resident.text)

    def _not_ready(self, record: ModelRecord) -> ReadyModel:
        """The load ended without a model."""
        with self._lock:
            failure = self._failures.get(record.name)
        if failure is None:
            raise ModelNotReadyError(f"The model {record.name} was unloaded meanwhile; try again.", 1.0)
        raise ModelNotReadyError(failure.message, max(1.0, failure.retry_at - self._clock()))

    def _begin_load(self, record: ModelRecord) -> Future[None]:
        """The running load of the model, or a new one. A recent failure is answered without another attempt."""
        self._require_engine()
        with self._lock:
            running = self._loads.get(record.name)
            if running is not None:
                return running
            failure = self._failures.get(record.name)
            if record.name in self._residents or (failure and failure.retry_at > self._clock()):
                return _done()
            future = self._loads[record.name] = self._loader.submit(lambda: self._load(record))
        return future

    def _require_engine(self) -> ModelEngine:
        if self._engine is None:
            raise EngineDownError("No engine runs in this process; models are loaded by the server.")
        return self._engine

    def _is_overdue(self, record: ModelRecord, resident: _Resident) -> bool:
        if record.keep_alive_s == 0 or record.is_pinned:
            return False
        if self._is_busy(record.name):
            resident.used_at = self._clock()
        return self._clock() - resident.used_at >= record.keep_alive_s

    # On the loader thread

    def _boot(self) -> None:
        reset_states(keep=[resident.pk for resident in self._residents.values()])
        table = self._table.refresh()
        for name in LanguageModel.objects.filter(autoload=True).values_list("name", flat=True):
            self._begin_load(table.find(name))
        self._is_booted = True

    def _load(self, record: ModelRecord) -> None:
        try:
            write_state(record.pk, LanguageModel.State.LOADING)
            learned = self._bring_in(LanguageModel.objects.get(pk=record.pk))
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a model is told in its row
            self._note_failure(record, failure_message(record.name, error))
        else:
            write_state(record.pk, LanguageModel.State.LOADED, loaded_at=timezone.now(), **learned)
        finally:
            with self._lock:
                self._loads.pop(record.name, None)

    def _bring_in(self, row: LanguageModel) -> dict[str, int]:
        """Locate, load, and hand over to the engine. Returns what the row can be told of the model now."""
        path = self._locate(row.model_source)
        loaded = self._load_model(spec_for(row, path))
        text = ModelText(loaded.tokenizer, max_model_len=loaded.max_model_len, chat_template=row.chat_template)
        self._require_engine().attach(loaded).result(ATTACH_TIMEOUT_S)
        with self._lock:
            self._residents[row.name] = _Resident(row.pk, loaded.max_model_len, loaded.vocab_size, text, self._clock())
        return {"memory_bytes": loaded.memory_bytes, "own_context_length": own_context_length(path)}

    def _note_failure(self, record: ModelRecord, message: str) -> None:
        with self._lock:
            self._failures[record.name] = _Failure(message, self._clock() + self._retry_failed_after_s)
        write_state(record.pk, LanguageModel.State.FAILED, error=message)

    def _unload(self, record: ModelRecord) -> None:
        self._remove(record.name)
        write_state(record.pk, LanguageModel.State.UNLOADED)

    def _remove(self, name: str) -> None:
        with self._lock:
            resident = self._residents.pop(name, None)
        if resident is not None:
            self._require_engine().detach(name).result(ATTACH_TIMEOUT_S)

    def _write_all_unloaded(self) -> None:
        for record in self.records():
            if record.name in self._residents:
                write_state(record.pk, LanguageModel.State.UNLOADED)


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
