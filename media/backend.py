"""The registry's backend for media models: a worker process, behind :class:`~media.client.MediaClient`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from core.errors import MillmError
from core.runtime import Service
from inference.registry.media import NEEDS_EXTRA, LoadedMedia, MediaRestartingError, MediaUnavailableError
from inference.registry.registry import get_registry
from media.client import MediaClient, WorkerBusyError
from media.messages import ModelSpec

if TYPE_CHECKING:
    from inference.engine.models.facts import ModelSpec as EngineSpec

PACKAGES = ("av", "diffusers")  # of the extra


class WorkerBackend:
    """Loads media models in the worker process."""

    def __init__(self, client: MediaClient) -> None:
        self.client = client

    def load(self, spec: EngineSpec) -> LoadedMedia:
        try:
            facts = self.client.load(_worker_spec(spec)).result()
        except WorkerBusyError as error:
            raise MediaRestartingError(error.message) from error
        return LoadedMedia(spec.name, facts.device, facts.memory_bytes, facts)

    def unload(self, name: str) -> None:
        self.client.unload(name).result()

    def is_busy(self, name: str) -> bool:
        return self.client.is_busy(name)


def is_installed() -> bool:
    """Return whether the packages of the extra ``media`` are installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


def _worker_spec(spec: EngineSpec) -> ModelSpec:
    kind = "transcription" if spec.kind == "translation" else spec.kind
    if kind not in ("transcription", "speech", "image", "video"):
        raise MillmError(f"{spec.name} is not a media model.")
    return ModelSpec(spec.name, kind, spec.path, spec.dtype, spec.device, spec.options)


def _no_client() -> MediaClient:
    raise MediaUnavailableError(NEEDS_EXTRA)


MEDIA_CLIENT: Service[MediaClient] = Service(_no_client)


def note_death(names: frozenset[str]) -> None:
    """Tell the registry that the models of a dead worker are not loaded any more."""
    get_registry().note_lost(names)
