"""The table of registered models, cached in this process for requests, and the functions that write a model's state."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.db import DatabaseError, InterfaceError, transaction

from core.errors import MillmError, quote
from core.snapshots import Snapshot
from inference.models import LanguageModel
from inference.text.chat_template import ChatTemplateError


class ModelNotFoundError(MillmError, LookupError):
    """No registered model has this name or alias."""

    status = 404
    code = "model_not_found"
    param = "model"

    def __init__(self, name: str) -> None:
        super().__init__(f"The model `{quote(name)}` does not exist. GET /v1/models lists the models of this server.")


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The fields of a :class:`LanguageModel` that requests need. ``created`` is Unix time in seconds.

    ``max_model_len`` is None for a Hub model that has not been downloaded yet.
    """

    pk: int
    name: str
    aliases: tuple[str, ...]
    default_profile: str
    default_sampling: Mapping[str, Any]
    is_default: bool
    state: str
    error: str
    created: int
    max_model_len: int | None
    keep_alive_s: int | None = None
    is_pinned: bool = False
    shared_prefix_cache: bool = False
    kind: str = LanguageModel.Kind.GENERATION
    num_labels: int = 0  # of a classifier; 0 while unknown


def default_of(records: Iterable[ModelRecord], kind: str) -> ModelRecord | None:
    """Return the default model of a kind, or the only one; None if there is none, or several and no default."""
    known = [record for record in records if record.kind == kind]
    chosen = known if len(known) == 1 else [record for record in known if record.is_default]
    return chosen[0] if chosen else None


@dataclass(frozen=True)
class ModelTable:
    """All records, by name and alias. A name takes precedence over another model's alias."""

    records: tuple[ModelRecord, ...]
    _by_name: dict[str, ModelRecord] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_alias = {alias: record for record in self.records for alias in record.aliases}
        object.__setattr__(self, "_by_name", by_alias | {record.name: record for record in self.records})

    def find(self, name: str) -> ModelRecord:
        """Return the model with that name or alias. Raise ModelNotFoundError."""
        record = self._by_name.get(name)
        if record is None:
            raise ModelNotFoundError(name)
        return record


def model_record(row: LanguageModel) -> ModelRecord:
    return ModelRecord(
        pk=row.pk,
        name=row.name,
        aliases=tuple(row.aliases),
        default_profile=row.default_profile,
        default_sampling=row.default_sampling,
        is_default=row.is_default,
        state=row.state,
        error=row.error,
        created=int(row.created_at.timestamp()),
        max_model_len=smallest(row.context_length, row.own_context_length, settings.MILLM_MAX_SEQ_LEN) or None,
        keep_alive_s=row.keep_alive_s,
        is_pinned=row.pinned,
        shared_prefix_cache=row.shared_prefix_cache,
        kind=row.kind,
        num_labels=row.num_labels,
    )


def smallest(*lengths: int) -> int:
    """Return the smallest length that is set (not 0), or 0."""
    return min((length for length in lengths if length), default=0)


def _load_table() -> ModelTable:
    rows = LanguageModel.objects.order_by("-is_default", "name")
    return ModelTable(tuple(model_record(row) for row in rows))


model_table: Snapshot[ModelTable] = Snapshot("millm_models", _load_table)


logger = logging.getLogger(__name__)


def failure_message(name: str, error: BaseException) -> str:
    """Return the message for the row and for clients. Unexpected errors are logged with their traceback."""
    if isinstance(error, ChatTemplateError):
        return f"{name} was not loaded because of its chat template. {error}"
    if isinstance(error, MillmError):
        return error.message
    logger.error("Loading %s failed unexpectedly.", name, exc_info=error)
    return f"{name} could not be loaded ({type(error).__name__}); see the server's log."


def write_state(pk: int, state: LanguageModel.State, **fields: Any) -> None:
    """Write a model's state and reset its other live fields. A database error is only logged: serving continues."""
    values = {"error": "", "memory_bytes": 0, "loaded_at": None, **fields}
    try:
        with transaction.atomic():
            others = LanguageModel.objects.filter(kind=fields.get("kind"), is_default=True).exclude(pk=pk)
            if "kind" in fields and others.exists():  # the kind of a Hub model is known now, and has a default
                values["is_default"] = False
            LanguageModel.objects.filter(pk=pk).update(state=state, **values)
            model_table.invalidate()
    except (DatabaseError, InterfaceError) as error:
        logger.warning("The state %s of model %s could not be saved: %s", state, pk, error)


def reset_states(*, keep: Collection[int] = ()) -> None:
    """Mark models as unloaded that an earlier process had loaded or was loading, except those in ``keep`` (pks)."""
    live = (LanguageModel.State.LOADING, LanguageModel.State.LOADED)
    with transaction.atomic():
        LanguageModel.objects.filter(state__in=live).exclude(pk__in=keep).update(
            state=LanguageModel.State.UNLOADED, error="", memory_bytes=0, loaded_at=None
        )
        model_table.invalidate()
