"""What changes models: registering, editing, removing, loading. Used by commands, the admin and the API alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from audit.changes import stored_fields
from audit.models import AuditEvent
from audit.trail import record, record_deleted, record_saved
from inference.client import EngineError, get_client
from inference.models import LanguageModel
from inference.records import model_table
from inference.registry import get_registry
from inference.sources import (
    ModelSource,
    SourceError,
    is_local,
    kind_of_directory,
    local_directory,
    own_context_length,
    present_directory,
    resolve_source,
)

LIVE_FIELDS = frozenset({"state", "error", "memory_bytes", "loaded_at", "created_at"})
NOT_AUDITED = LIVE_FIELDS | {"own_context_length", "kind"}  # what the server finds out is nobody's change


@transaction.atomic
def register_model(
    *,
    name: str,
    source: str,
    revision: str = "",
    dtype: str = LanguageModel.Dtype.AUTO,
    device: str = "auto",
    quantization: str = LanguageModel.Quantization.NONE,
    aliases: Iterable[str] = (),
    is_default: bool = False,
    autoload: bool = False,
    pinned: bool = False,
    keep_alive_s: int | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    context_length: int = 0,
    chat_template: str = "",
    tool_format: str = "",
    default_sampling: Mapping[str, Any] | None = None,
    default_profile: str = "",
    exist_ok: bool = False,
) -> LanguageModel:
    """Register a model; ValidationError or SourceError when it cannot be served.

    With ``exist_ok`` a model of that name is brought to these values instead. A Hub source is downloaded by
    :func:`inference.sources.resolve_source` before (see :func:`add_model`) or when it is first loaded.
    """
    row = LanguageModel.objects.select_for_update().filter(name=name).first()
    if row is not None and not exist_ok:
        raise ValidationError(f"There is a model named {name} already; choose another name, or remove that one.")
    row = row or LanguageModel(name=name)
    values = {
        "source": absolute_source(source),
        "revision": revision,
        "dtype": dtype,
        "device": device,
        "quantization": quantization,
        "aliases": list(aliases),
        "is_default": is_default,
        "autoload": autoload,
        "pinned": pinned,
        "keep_alive_s": keep_alive_s,
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
        "context_length": context_length,
        "chat_template": chat_template,
        "tool_format": tool_format,
        "default_sampling": dict(default_sampling or {}),
        "default_profile": default_profile,
    }
    for field, value in values.items():
        setattr(row, field, value)
    return save_model(row)


def add_model(*, name: str, source: str, **options: Any) -> LanguageModel:
    """Like :func:`register_model`, for sources that may have to be downloaded and are checked here and now."""
    located = resolve_source(
        ModelSource(
            source,
            options.get("revision", ""),
            options.get("trust_remote_code", False),
            options.get("allow_pickle", False),
        )
    )
    return register_model(name=name, source=str(located) if is_local(source) else source, **options)


@transaction.atomic
def save_model(row: LanguageModel) -> LanguageModel:
    """Check and write a row, and tell all processes. Live fields are left to the registry."""
    row.full_clean(exclude=LIVE_FIELDS)
    directory = local_directory(row.source)
    row.own_context_length = own_context_length(directory) if directory else 0
    row.kind = kind_of_directory(directory) if directory else row.kind  # a Hub model's is known once it was loaded
    before = stored_fields(row)
    if row.is_default:
        LanguageModel.objects.filter(is_default=True).exclude(pk=row.pk).update(is_default=False)
    row.save(update_fields=None if row.pk is None else edited_fields())
    record_saved(row, before=before, model=row.name, leave_out=NOT_AUDITED)
    models_changed()
    return row


@transaction.atomic
def set_default_model(*, model: LanguageModel) -> None:
    before = LanguageModel.objects.filter(is_default=True).exclude(pk=model.pk).first()
    LanguageModel.objects.filter(is_default=True).exclude(pk=model.pk).update(is_default=False)
    LanguageModel.objects.filter(pk=model.pk).update(is_default=True)
    detail = f"the default model; before: {before or 'none'}"
    record(AuditEvent.Action.DEFAULT, model, model=model.name, detail=detail)
    models_changed()


@transaction.atomic
def remove_models(*, models: Iterable[LanguageModel]) -> None:
    """Delete rows; the registry unloads what has no row within a second. ProtectedError while profiles use one."""
    rows = list(models)
    for row in rows:
        record_deleted(row, model=row.name, detail=f"from {row.source}")
    LanguageModel.objects.filter(pk__in=[row.pk for row in rows]).delete()
    models_changed()


@transaction.atomic
def load_model(*, model: LanguageModel) -> None:
    """Begin to load in this process; EngineDownError outside serving processes."""
    record(AuditEvent.Action.LOAD, model, model=model.name)
    get_registry().load(model.name)


@transaction.atomic
def unload_model(*, model: LanguageModel) -> None:
    """Begin to unload in this process; EngineDownError outside serving processes."""
    record(AuditEvent.Action.UNLOAD, model, model=model.name)
    get_registry().unload(model.name)


@transaction.atomic
def pin_model(*, model: LanguageModel, is_pinned: bool) -> None:
    """A pinned model is never unloaded to make room, or for being idle."""
    before = stored_fields(model)
    model.pinned = is_pinned
    model.save(update_fields=["pinned"])
    record_saved(model, before=before, model=model.name, leave_out=NOT_AUDITED)
    models_changed()


def describe_memory(*, model: LanguageModel) -> str:
    """What the model needs and what there is, in a sentence. Measured by serving processes, which have torch loaded."""
    registry = get_registry()
    if not registry.is_serving:
        return "Only the server measures memory."
    try:
        path = present_directory(model.model_source)
        return str(registry.room(model, path)) if path else "Not known before the model has been downloaded."
    except (SourceError, EngineError) as error:
        return str(error)


def describe_limits(*, model: LanguageModel) -> Mapping[str, object]:
    """What was chosen for the model from the machine, the settings and the model itself; nothing while it is not
    loaded. EngineDownError outside serving processes.
    """
    found = next((each for each in get_client().stats().by_model if each.name == model.name), None)
    return {} if found is None else dataclasses.asdict(found.limits)


def models_changed() -> None:
    """Call inside the transaction that writes rows: all processes read them again at its commit."""
    model_table.invalidate()


def absolute_source(source: str) -> str:
    """Local paths are kept absolute, because servers start in other directories."""
    return str(local_directory(source)) if is_local(source) else source


def edited_fields() -> list[str]:
    names = {field.name for field in LanguageModel._meta.concrete_fields}
    return sorted(names - LIVE_FIELDS - {"id"})
