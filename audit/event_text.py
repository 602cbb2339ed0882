"""How an event reads. All of it is plain text: templates escape it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from django.urls import NoReverseMatch, reverse

from audit.models import AuditEvent


def through(event: AuditEvent) -> str:
    """The request, key or command by which it was done."""
    parts = (f"key {event.key}" if event.key else "", event.command, event.request_id)
    return ", ".join(part for part in parts if part)


def change_rows(event: AuditEvent) -> list[tuple[str, str, str]]:
    """Field, before, after."""
    return list(_rows(event.changes))


def _rows(changes: Any) -> Iterator[tuple[str, str, str]]:
    if isinstance(changes, dict):
        for field, values in changes.items():
            if isinstance(values, list) and len(values) == 2:
                yield field.replace("_", " "), _shown(values[0]), _shown(values[1])


def _shown(value: Any) -> str:
    if value is None or value == "" or value == [] or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "\n".join(each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def object_url(event: AuditEvent) -> str | None:
    """The object's page in the admin, which may be gone meanwhile."""
    if not event.kind or not event.object_id or event.action == AuditEvent.Action.DELETE:
        return None
    try:
        return reverse(f"admin:{event.kind.replace('.', '_')}_change", args=[event.object_id])
    except NoReverseMatch:
        return None
