"""The inference app, and the parts that a serving process starts: engine thread, registry, snapshot listener."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.conf import settings
from django.db.models.signals import post_migrate

if TYPE_CHECKING:
    import subprocess

    from inference.client import LocalEngineClient
    from inference.engine.loop import EngineLoop
    from inference.engine.watchdog import Watchdog
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


class ServingState:
    """The engine and the registry of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._client: LocalEngineClient[EngineLoop] | None = None
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
        if client is None or registry is None or watchdog is None:
            return
        self._stop(client, registry, drain_s)
        watchdog.stop()

    def _start(self, on_failure: Callable[[str], None], models: Sequence[str]) -> None:
        from core.runtime import runtime
        from core.snapshots import start_listening
        from inference.client import ENGINE_CLIENT, LocalEngineClient
        from inference.engine.config import EngineConfig
        from inference.engine.loop import EngineLoop
        from inference.engine.watchdog import Watchdog
        from inference.registry.registry import MODEL_REGISTRY, ModelRegistry

        gc.freeze()  # frozen objects are not scanned: a full collection would stop all streams for half a second
        config = EngineConfig(**settings.MILLM_ENGINE)
        client = LocalEngineClient(lambda publish: EngineLoop(config, publish))
        client.start()
        watchdog = Watchdog(client.engine, stall_s=settings.MILLM_ENGINE_STALL_SECONDS, on_failure=on_failure)
        watchdog.start()
        registry = ModelRegistry(client.engine, is_busy=client.is_busy, kv_unwritten=client.kv_unwritten)
        runtime.install(ENGINE_CLIENT, client)
        runtime.install(MODEL_REGISTRY, registry)
        start_listening()
        self._client, self._registry, self._watchdog = client, registry, watchdog
        _await_boot(registry.start(models))

    @staticmethod
    def _stop(client: LocalEngineClient[EngineLoop], registry: ModelRegistry, drain_s: float) -> None:
        from core.snapshots import stop_listening

        client.stop(drain_s)
        registry.stop()
        stop_listening()


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
