"""Errors of the engine, with the status and code that clients see."""

from __future__ import annotations

from core.errors import MillmError


class EngineError(MillmError):
    """The engine refused a request."""

    status = 503
    code = "server_error"
    retry_after_s: float | None = 5.0
    names_files = True


class EngineDownError(EngineError):
    """The engine thread is not running (starting, draining or dead)."""

    code = "engine_unavailable"


class QueueFullError(EngineError):
    """Too many requests are waiting; ``retry_after_s`` says when to try again."""

    code = "server_is_overloaded"
    retry_after_s: float

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class ModelNotAttachedError(EngineError):
    """No model of that name is attached to the engine."""

    code = "model_not_ready"


class LoadError(EngineError):
    """A model could not be loaded; the message says why and what to do."""

    code = "model_load_failed"


class NotEnoughMemoryError(LoadError):
    """Memory ran out while the model was loaded, although the estimate fitted. The caller frees what was allocated."""


class UnsupportedModelError(LoadError):
    """The architecture needs something that is not supported. The message completes the sentence "is not supported:
    ..."."""
