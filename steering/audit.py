"""The trail of changes to what steers requests."""

from __future__ import annotations

from django.contrib.auth.models import User

from steering.models import AuditEvent


def record(action: AuditEvent.Action, subject: object, *, user: User | None, model: str = "", detail: str = "") -> None:
    """Adds an event, in the transaction of the change that it tells of."""
    AuditEvent.objects.create(
        action=action,
        subject=str(subject)[:300],
        user=user.get_username() if user is not None else "",
        model=model,
        detail=detail,
    )
