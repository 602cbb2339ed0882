"""The inference app, and the parts that a serving process starts: engine thread, registry, snapshot listener."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import TYPE_CHECKING, Protocol

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate

from core.runtime import runtime
from core.snapshots import start_listening, stop_listening
from inference.client import ENGINE_CLIENT, EngineClient, LocalEngineClient
from inference.engine.config import EngineConfig
from inference.steering_refs import ENGINE_SAES

if TYPE_CHECKING:
    import subprocess

    from inference.engine.loop import EngineLoop
    from inference.engine.watchdog import Watchdog
    from inference.engine_process.client import ProcessEngineClient
    from inference.engine_process.replicas import ReplicaSet
    from inference.registry.registry import ModelRegistry

logger = logging.getLogger(__name__)
BOOT_WAIT_S = 10.0


class InferenceConfig(AppConfig):
    name = "inference"
    verbose_name = "Inference"

    def ready(self) -> None:
        from inference.job_kinds import register_kinds
        from inference.permissions import grant_after_migrate

        register_kinds()
        post_migrate.connect(grant_after_migrate, dispatch_uid="inference.permissions")


def _log_failure(error: str) -> None:
    logger.critical("This process no longer serves models: %s", error)


class ServingClient(EngineClient, Protocol):
    """The client of the engine that this process started."""

    def start(self) -> None: ...

    def is_busy(self, model: str) -> bool: ...


class ServingState:
    """The engine and the registry of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: ServingClient | None = None
        self._registry: ModelRegistry | None = None
        self._watchdog: Watchdog | None = None

    def start(self, on_failure: Callable[[str], None] = _log_failure, models: Sequence[str] = ()) -> None:
        with self._lock:
            if self._client is None:
                self._start(on_failure, models)

    def stop(self, drain_s: float) -> None:
        with self._lock:
            client, registry, watchdog = self._client, self._registry, self._watchdog
            self._client = self._registry = self._watchdog = None
        if client is None or registry is None:
            return
        client.stop(drain_s)
        registry.stop()
        stop_listening()
        runtime.remove(ENGINE_SAES)
        if watchdog is not None:
            watchdog.stop()

    def _start(self, on_failure: Callable[[str], None], models: Sequence[str]) -> None:
        from inference.registry.registry import MODEL_REGISTRY

        gc.freeze()  # frozen objects are not scanned: a full collection would stop all streams for half a second
        if settings.MILLM_ENGINE == "thread":
            self._client, self._registry, self._watchdog = _thread_engine(on_failure)
        else:
            self._client, self._registry = _process_engine()
        runtime.install(ENGINE_CLIENT, self._client)
        runtime.install(MODEL_REGISTRY, self._registry)
        start_listening()
        _await_boot(self._registry.start(models))


def _thread_engine(
    on_failure: Callable[[str], None],
) -> tuple[LocalEngineClient[EngineLoop], ModelRegistry, Watchdog]:
    """Start the engine as a thread of this process."""
    from inference.engine.loop import EngineLoop
    from inference.engine.watchdog import Watchdog
    from inference.registry.registry import ModelRegistry

    config = EngineConfig(**settings.MILLM_ENGINE_OPTIONS)
    client = LocalEngineClient(lambda publish: EngineLoop(config, publish))
    client.start()
    watchdog = Watchdog(client.engine, stall_s=settings.MILLM_ENGINE_STALL_SECONDS, on_failure=on_failure)
    watchdog.start()
    registry = ModelRegistry(
        client.engine, is_busy=client.is_busy, kv_unwritten=lambda name: client.stats().kv_unwritten(name)
    )
    return client, registry, watchdog


def _process_engine() -> tuple[ProcessEngineClient, ModelRegistry]:
    """Start engines in processes of their own, which are started again whenever they end."""
    from inference.engine_process.client import ProcessEngineClient, ProcessModels, ProcessSAEs
    from inference.registry.memory_plan import MemoryBudget
    from inference.registry.registry import ModelRegistry

    replicas = _replicas()
    client = ProcessEngineClient(replicas, EngineConfig(**settings.MILLM_ENGINE_OPTIONS))
    models = ProcessModels(replicas)
    registry = ModelRegistry(
        models,
        is_busy=client.is_busy,
        kv_unwritten=replicas.kv_unwritten,
        loading=models.loading,
        budget=MemoryBudget(settings.MILLM_MEMORY_BUDGET, models.measure, replicas.num_sharing),
    )
    replicas.listen(partial(registry.note_lost, reloads=True))
    client.start()
    runtime.install(ENGINE_SAES, ProcessSAEs(replicas))
    return client, registry


def _replicas() -> ReplicaSet:
    from inference.engine_process.launcher import LocalLauncher, share_of_machine
    from inference.engine_process.replicas import ReplicaSet

    least = settings.MILLM_ENGINE_REPLICAS
    most = max(least, settings.MILLM_ENGINE_MAX_REPLICAS)
    make = partial(
        ReplicaSet,
        stall_s=settings.MILLM_ENGINE_STALL_SECONDS,
        least=least,
        most=most,
        patience_s=settings.MILLM_ENGINE_SCALE_SECONDS,
    )
    if settings.MILLM_ENGINE == "process":
        return make(lambda number: LocalLauncher(environment=share_of_machine(number, most)))

    from inference.engine_process.ray_launcher import ActorPort, RayLauncher, RayOptions

    port = ActorPort(*settings.MILLM_RAY_LISTEN)
    ray = RayOptions(settings.MILLM_RAY_ADDRESS, settings.MILLM_RAY_CPUS, settings.MILLM_RAY_GPUS)
    return make(lambda number: RayLauncher(ray, port), close=port.close)


def _await_boot(booted: Future[None]) -> None:
    """Wait until the models are known. Without a database the server starts anyway, and the registry retries."""
    try:
        booted.result(BOOT_WAIT_S)
    except FutureTimeoutError:
        logger.warning("The model table could not be read within %g s; retrying.", BOOT_WAIT_S)
    except Exception as error:  # noqa: BLE001 - a server without models still answers; the loader thread tries again
        logger.warning("The model table could not be read (%s); retrying.", error)


_serving = ServingState()


def compile_kernels_ahead() -> subprocess.Popen[bytes] | None:
    """Compile the CPU's kernels in another process if there are none yet, while this one prepares to serve."""
    from inference.engine.kernels.library_cache import compile_ahead

    return compile_ahead()


def start_serving(on_failure: Callable[[str], None] = _log_failure, models: Sequence[str] = ()) -> None:
    """Start the engine of this process and read the model table. Idempotent. For serving processes only.

    ``on_failure`` is called on its own thread with the reason if the engine is lost for good. ``models`` are loaded
    beside those with ``autoload``. Imports torch. Database work runs on the loader thread, so this may be called
    inside an event loop.
    """
    _serving.start(on_failure, models)


def stop_serving(drain_s: float) -> None:
    """Let running sequences finish for ``drain_s`` seconds, fail the rest, and stop the threads. Idempotent."""
    _serving.stop(drain_s)
