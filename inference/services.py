"""Register, edit, remove, load and unload models. Used by commands, the admin and the API."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction

from audit.models import AuditEvent
from audit.record import record, record_deleted, record_saved, stored_fields
from core.errors import MillmError
from inference.client import get_client
from inference.files.sources import (
    ALLOW_CODE_HINT,
    ModelSource,
    check_within_roots,
    is_local,
    local_directory,
    num_labels,
    own_context_length,
    present_directory,
    resolve_source,
    source_at_shell,
)
from inference.models import LanguageModel
from inference.permissions import FieldDenied, is_superuser
from inference.registry.records import model_table
from inference.registry.registry import get_registry

LIVE_FIELDS = frozenset({"state", "error", "memory_bytes", "loaded_at", "created_at"})
TRUST_FIELDS = ("trust_remote_code", "allow_pickle")
ORIGIN_FIELDS = ("source", "revision")
NOT_AUDITED = LIVE_FIELDS | {"own_context_length", "kind", "num_labels"}  # values that the server detects


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
    replicas: int | None = None,
    shared_prefix_cache: bool = False,
    input_price: float | None = None,
    cached_input_price: float | None = None,
    output_price: float | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    context_length: int = 0,
    chat_template: str = "",
    tool_format: str = "",
    use_as: str = "",
    default_sampling: Mapping[str, Any] | None = None,
    default_profile: str = "",
    exist_ok: bool = False,
    user: User | None = None,
) -> LanguageModel:
    """Register a model. Raise ValidationError, SourceError, or what :func:`save_model` raises.

    With ``exist_ok`` an existing model of that name is updated. A Hub source is downloaded before, by
    :func:`add_model`, or when the model is first loaded.
    """
    row = LanguageModel.objects.select_for_update().filter(name=name).first()
    if row is not None and not exist_ok:
        raise ValidationError(f"A model named {name} already exists; choose another name, or remove that model.")
    row = row or LanguageModel(name=name)
    values = {
        "source": source,
        "revision": revision,
        "dtype": dtype,
        "device": device,
        "quantization": quantization,
        "aliases": list(aliases),
        "is_default": is_default,
        "autoload": autoload,
        "pinned": pinned,
        "keep_alive_s": keep_alive_s,
        "replicas": replicas,
        "shared_prefix_cache": shared_prefix_cache,
        "input_price": input_price,
        "cached_input_price": cached_input_price,
        "output_price": output_price,
        "trust_remote_code": trust_remote_code,
        "allow_pickle": allow_pickle,
        "context_length": context_length,
        "chat_template": chat_template,
        "tool_format": tool_format,
        "use_as": use_as,
        "default_sampling": dict(default_sampling or {}),
        "default_profile": default_profile,
    }
    for field, value in values.items():
        setattr(row, field, value)
    return save_model(row, user=user)


def add_model(*, name: str, source: str, user: User | None = None, **options: Any) -> LanguageModel:
    """Download and check the source, then register the model; see :func:`register_model`."""
    row = LanguageModel.objects.filter(name=name).first() or LanguageModel(name=name)
    before = stored_fields(row)
    for field in (*TRUST_FIELDS, *ORIGIN_FIELDS):
        setattr(row, field, source if field == "source" else options.get(field, "" if field == "revision" else False))
    check_may_trust(row, before, user)
    if user is not None:
        check_within_roots(source)
    located = resolve_source(
        ModelSource(
            source,
            options.get("revision", ""),
            options.get("trust_remote_code", False),
            options.get("allow_pickle", False),
        )
    )
    return register_model(name=name, source=str(located) if is_local(source) else source, user=user, **options)


def ensure_model(given: str) -> LanguageModel:
    """Return the model that an operator names as ``NAME``, ``SOURCE`` or ``NAME=SOURCE``, registered if it was not yet.

    Idempotent: a model that is registered with this source stays as it is, also if the console has changed its options.
    The name of a source is the Hub id, or the name of the folder. Raise ValidationError or what :func:`add_model`
    raises.
    """
    row = LanguageModel.objects.filter(name=given).first()
    if row is not None:
        return row
    name, source = named_source(given)
    source = absolute_source(source)
    row = LanguageModel.objects.filter(name=name).first()
    if row is None:
        return add_model(name=name, source=source)
    if row.source != source:
        raise ValidationError(
            f"A model named {name} already exists, with the source {row.source}. Choose another name: NAME={source}"
        )
    return row


def named_source(given: str) -> tuple[str, str]:
    """Return the name and the source of ``NAME=SOURCE`` or ``SOURCE``. Raise ValidationError."""
    source = source_at_shell(given)
    name, equals, rest = given.partition("=")
    if equals and not is_local(source):
        name, source = name.strip(), source_at_shell(rest.strip())
    else:
        name = Path(source).expanduser().resolve().name if is_local(source) else source
    if not name or not source:
        raise ValidationError(f"A model must be a directory, a Hub id or NAME=SOURCE, got `{given}`.")
    return name, source


@transaction.atomic
def save_model(row: LanguageModel, *, user: User | None = None) -> LanguageModel:
    """Validate and save a row, and notify all processes. The registry writes the live fields.

    ``user`` made the request over the network; None is an operator at the shell, or the program itself. Raise
    ValidationError, or FieldDenied for a field that this user may not change.
    """
    before = stored_fields(row)
    check_may_trust(row, before, user)
    if user is not None and (before is None or before["source"] != row.source):
        check_within_roots(row.source)
    row.source = absolute_source(row.source)
    row.full_clean(exclude=LIVE_FIELDS)
    directory = local_directory(row.source)
    row.own_context_length = own_context_length(directory) if directory else 0
    row.num_labels = num_labels(directory) if directory else 0
    row.kind = row.detected_kind()  # that of a Hub model is known once it has been downloaded
    if row.is_default:
        LanguageModel.objects.filter(is_default=True, kind=row.kind).exclude(pk=row.pk).update(is_default=False)
    row.save(update_fields=None if row.pk is None else edited_fields())
    record_saved(row, before=before, model=row.name, leave_out=NOT_AUDITED)
    models_changed()
    return row


@transaction.atomic
def set_default_model(*, model: LanguageModel) -> None:
    """Make this the default model of its kind."""
    others = LanguageModel.objects.filter(is_default=True, kind=model.kind).exclude(pk=model.pk)
    before = others.first()
    others.update(is_default=False)
    LanguageModel.objects.filter(pk=model.pk).update(is_default=True)
    detail = f"the default {model.kind} model; before: {before or 'none'}"
    record(AuditEvent.Action.DEFAULT, model, model=model.name, detail=detail)
    models_changed()


@transaction.atomic
def remove_models(*, models: Iterable[LanguageModel]) -> None:
    """Delete rows. The registry unloads these models within a second. Raise ProtectedError if profiles use one."""
    rows = list(models)
    for row in rows:
        record_deleted(row, model=row.name, detail=f"from {row.source}")
    LanguageModel.objects.filter(pk__in=[row.pk for row in rows]).delete()
    models_changed()


@transaction.atomic
def load_model(*, model: LanguageModel) -> None:
    """Start to load the model in this process. Raise EngineDownError outside serving processes."""
    record(AuditEvent.Action.LOAD, model, model=model.name)
    get_registry().load(model.name)


@transaction.atomic
def unload_model(*, model: LanguageModel, now: bool = False) -> None:
    """Unload the model in this process after its running requests; ``now`` fails them with ``model_unloaded``.

    Raise EngineDownError outside serving processes.
    """
    record(AuditEvent.Action.UNLOAD, model, model=model.name, detail="running requests were cancelled" if now else "")
    get_registry().unload(model.name, now=now)


@transaction.atomic
def pin_model(*, model: LanguageModel, is_pinned: bool) -> None:
    """Pin or unpin a model. A pinned model is never unloaded to free memory or because it is idle."""
    before = stored_fields(model)
    model.pinned = is_pinned
    model.save(update_fields=["pinned"])
    record_saved(model, before=before, model=model.name, leave_out=NOT_AUDITED)
    models_changed()


def describe_memory(*, model: LanguageModel) -> str:
    """Return a sentence about the memory that the model needs and that is available. Only in serving processes."""
    registry = get_registry()
    if not registry.is_serving:
        return "Only the running server can measure it."
    try:
        path = present_directory(model.model_source)
        return str(registry.memory_plan(model, path)) if path else "Unknown until the model is downloaded."
    except MillmError as error:
        return str(error)


def describe_limits(*, model: LanguageModel) -> Mapping[str, object]:
    """Return the limits derived for a loaded model; empty if it is not loaded.

    Raise EngineDownError outside serving processes.
    """
    found = next((each for each in get_client().stats().by_model if each.name == model.name), None)
    return {} if found is None else dataclasses.asdict(found.limits)


def check_may_trust(row: LanguageModel, before: Mapping[str, Any] | None, user: User | None) -> None:
    """Raise ValidationError or FieldDenied if the user may not let this model run its own code.

    Only a superuser may, and only if the deployment allows it. Changing the source of a trusted model changes the code
    that runs, so its source and revision are reserved for superusers too. ``before``: the row's stored fields.
    """
    stored = before or {}
    new_trust = [name for name in TRUST_FIELDS if getattr(row, name) and not stored.get(name)]
    if new_trust and not settings.MILLM_ALLOW_REMOTE_CODE:
        raise ValidationError({new_trust[0]: f"This server does not run code of models. {ALLOW_CODE_HINT}"})
    if user is None or is_superuser(user):
        return
    if new_trust:
        raise FieldDenied(
            new_trust[0], f"Only a superuser can set {new_trust[0]}, because the model could run its own code."
        )
    if any(stored.get(name) and getattr(row, name) for name in TRUST_FIELDS):
        moved = [name for name in ORIGIN_FIELDS if getattr(row, name) != stored[name]]
        if moved:
            raise FieldDenied(
                moved[0], f"Only a superuser can change the {moved[0]} of a model that may run its own code."
            )


def models_changed() -> None:
    """Make all processes reload the rows at commit. Call inside the transaction that writes them."""
    model_table.invalidate()


def absolute_source(source: str) -> str:
    """Return local paths as absolute ones, because the server may start in another directory."""
    return str(local_directory(source)) if is_local(source) else source


def edited_fields() -> list[str]:
    names = {field.name for field in LanguageModel._meta.concrete_fields}
    return sorted(names - LIVE_FIELDS - {"id"})
