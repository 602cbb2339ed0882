"""Adding to the trail, in the transaction of the change that an event tells of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from django.contrib.auth.models import AbstractBaseUser
from django.db import models

from audit.changes import Changes, changes_of
from audit.models import MAX_SUBJECT, AuditEvent
from audit.origin import current_origin


def record(
    action: AuditEvent.Action,
    subject: models.Model | str,
    *,
    user: AbstractBaseUser | None = None,
    model: str = "",
    detail: str = "",
    changes: Changes | None = None,
) -> AuditEvent:
    """Adds an event. ``user`` is who does it; by default whoever the request at hand belongs to.

    ``detail`` and ``changes`` never hold secrets, prompts or answers: many may read the trail.
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
    """Records that ``row`` was added (``before`` is None) or changed; nothing where no field differs.

    ``before`` is what :func:`audit.changes.stored_fields` said ahead of the save.
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
    """Call it ahead of the deletion, while the row still has its id."""
    return record(AuditEvent.Action.DELETE, row, user=user, model=model, detail=detail)


def _clean(text: str) -> str:
    """Postgres takes neither NUL nor lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()
