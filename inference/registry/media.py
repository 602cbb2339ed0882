"""Where models for audio, images and videos run: outside the engine. The app ``media`` installs its backend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from core.runtime import Service
from inference.client import EngineError

if TYPE_CHECKING:
    from inference.engine.models.facts import ModelSpec

NEEDS_EXTRA = (
    "Models for audio, images and videos need additional packages. Install them with `pip install .[media]`, or start "
    "the server with `make run MEDIA=1`."
)


class MediaUnavailableError(EngineError):
    """The packages for media are not installed."""

    status = 501
    code = "media_not_installed"


class MediaRestartingError(EngineError):
    """The process of media models has died and is about to be restarted. The load is tried again."""

    status = 503
    code = "media_worker_died"


@dataclass(frozen=True, slots=True)
class LoadedMedia:
    """A loaded media model. ``facts``: what its requests can ask for."""

    name: str
    device: str
    memory_bytes: int
    facts: Any


class MediaBackend(Protocol):
    """Loads and unloads media models. Called on the loader thread, except :meth:`is_busy`."""

    def load(self, spec: ModelSpec) -> LoadedMedia:
        """Load a model. Raise MillmError."""

    def unload(self, name: str) -> None:
        """Unload a model; its requests fail."""

    def is_busy(self, name: str) -> bool:
        """Return whether requests for the model run or wait."""


class NoMediaBackend:
    """The backend of a server without the packages for media."""

    def load(self, spec: ModelSpec) -> LoadedMedia:
        raise MediaUnavailableError(NEEDS_EXTRA)

    def unload(self, name: str) -> None:
        """Do nothing: no model is loaded."""

    def is_busy(self, name: str) -> bool:
        return False


MEDIA_BACKEND: Service[MediaBackend] = Service(NoMediaBackend)
