"""Recording of audit events, in the transaction of the change that they describe."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import models

from audit.models import MAX_SUBJECT, AuditEvent
from audit.origin import current_origin

MAX_TEXT = 300
MAX_ITEMS = 50
HIDDEN = "(hidden)"
SECRET_FIELDS = frozenset({"password", "digest", "old_digest", "secret", "token"})

Changes = dict[str, list[Any]]


def stored_fields(row: models.Model) -> dict[str, Any] | None:
    """Return the row's columns as stored in the database, or None for a new row."""
    if row.pk is None:
        return None
    names = [field.attname for field in row._meta.concrete_fields]
    return type(row)._base_manager.filter(pk=row.pk).values(*names).first()


def changes_of(row: models.Model, before: Mapping[str, Any] | None, *, leave_out: Collection[str] = ()) -> Changes:
    """Return fields with their values before and after. For a new row, fields that differ from their defaults."""
    start = before if before is not None else _unset(row)
    found: Changes = {}
    for field in row._meta.concrete_fields:
        if field.primary_key or field.name in leave_out or (before is None and _is_set_by_database(field)):
            continue
        old, new = start.get(field.attname), getattr(row, field.attname)
        if old != new and not isinstance(new, models.expressions.BaseExpression):
            found[field.name] = [HIDDEN, HIDDEN] if field.name in SECRET_FIELDS else [plain(old), plain(new)]
    return found


def plain(value: Any) -> Any:
    """Return a value as JSON of limited size; long texts are truncated."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {_cut(str(name))[:100]: plain(each) for name, each in list(value.items())[:MAX_ITEMS]}
    if isinstance(value, list | tuple | set | frozenset):
        return _plain_list(list(value))
    return _cut(str(value))


def _plain_list(values: list[Any]) -> list[Any]:
    more = len(values) - MAX_ITEMS
    return [*map(plain, values[:MAX_ITEMS]), *([f"… {more} more"] if more > 0 else [])]


def _cut(text: str) -> str:
    text = text.replace("\0", "").encode("utf-8", "replace").decode()
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}… ({len(text)} characters)"


def _unset(row: models.Model) -> dict[str, Any]:
    """Return the default values of all fields."""
    fields = row._meta.concrete_fields
    return {field.attname: field.get_default() if field.has_default() else _nothing(field) for field in fields}


def _is_set_by_database(field: models.Field[Any, Any]) -> bool:
    """Return whether the database sets the value, such as the time of insertion."""
    return field.has_db_default() and not field.has_default()


def _nothing(field: models.Field[Any, Any]) -> Any:
    return "" if field.empty_strings_allowed and not field.null else None


def record(
    action: AuditEvent.Action,
    subject: models.Model | str,
    *,
    user: AbstractBaseUser | None = None,
    model: str = "",
    detail: str = "",
    changes: Changes | None = None,
) -> AuditEvent:
    """Add an event. ``user`` is the actor, by default the user of the current request.

    ``detail`` and ``changes`` must not contain secrets, prompts or answers, because many users can read the trail.
    """
    origin = current_origin()
    row = subject if isinstance(subject, models.Model) else None
    return AuditEvent.objects.create(
        action=action,
        kind=row._meta.label_lower if row is not None else "",
        object_id=str(row.pk)[:64] if row is not None else "",
        subject=_clean(str(subject))[:MAX_SUBJECT],
        user=user.get_username() if user is not None else origin.username()[:150],
        model=model,
        detail=_clean(detail),
        changes=changes or {},
        key=origin.key[:120],
        command=origin.command[:120],
        request_id=origin.request_id[:64],
    )


def record_saved(
    row: models.Model,
    *,
    before: Mapping[str, Any] | None,
    user: AbstractBaseUser | None = None,
    model: str = "",
    detail: str = "",
    leave_out: Collection[str] = (),
) -> AuditEvent | None:
    """Record that ``row`` was added (``before`` is None) or changed. Records nothing if no field differs.

    ``before`` is the result of :func:`audit.record.stored_fields` before the save.
    """
    changes = changes_of(row, before, leave_out=leave_out)
    if before is None:
        return record(AuditEvent.Action.ADD, row, user=user, model=model, detail=detail, changes=changes)
    if not changes:
        return None
    return record(AuditEvent.Action.CHANGE, row, user=user, model=model, detail=detail, changes=changes)


def record_deleted(
    row: models.Model, *, user: AbstractBaseUser | None = None, model: str = "", detail: str = ""
) -> AuditEvent:
    """Record a deletion. Call it before deleting, while the row still has its id."""
    return record(AuditEvent.Action.DELETE, row, user=user, model=model, detail=detail)


def _clean(text: str) -> str:
    """Remove NUL and lone surrogates, which Postgres cannot store."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
