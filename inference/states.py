"""What loading and unloading write back to a model's row."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from django.db import DatabaseError, InterfaceError, transaction

from inference.client import EngineError
from inference.models import LanguageModel
from inference.records import model_table
from inference.sources import SourceError
from inference.text import ChatTemplateError

logger = logging.getLogger(__name__)


def failure_message(name: str, error: Exception) -> str:
    """What the row and the clients are told; the cause of a surprise goes to the log."""
    if isinstance(error, (SourceError, EngineError)):
        return str(error)
    if isinstance(error, ChatTemplateError):
        return f"{name} was not loaded because of its chat template. {error}"
    logger.error("Loading %s failed unexpectedly.", name, exc_info=error)
    return f"{name} could not be loaded ({type(error).__name__}); the server's log says more."


def write_state(pk: int, state: LanguageModel.State, **fields: Any) -> None:
    """Write a model's state; other live fields go back to nothing. Serving goes on when the database is away."""
    values = {"error": "", "memory_bytes": 0, "loaded_at": None, **fields}
    try:
        with transaction.atomic():
            LanguageModel.objects.filter(pk=pk).update(state=state, **values)
            model_table.invalidate()
    except (DatabaseError, InterfaceError) as error:
        logger.warning("The state %s of model %s could not be written: %s", state, pk, error)


def reset_states(*, keep: Collection[int] = ()) -> None:
    """At the start: what a process that is gone had loaded, or was loading, is not loaded. ``keep``: pks that are."""
    live = (LanguageModel.State.LOADING, LanguageModel.State.LOADED)
    with transaction.atomic():
        LanguageModel.objects.filter(state__in=live).exclude(pk__in=keep).update(
            state=LanguageModel.State.UNLOADED, error="", memory_bytes=0, loaded_at=None
        )
        model_table.invalidate()
