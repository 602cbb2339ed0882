"""Recording of changes to users and groups.

Django's admin, createsuperuser and changepassword save these models without calling a service of ours, so changes are
recorded from the signals of the two models.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group
from django.db import models
from django.db.models.signals import m2m_changed, post_save, pre_delete, pre_save

from audit.models import AuditEvent
from audit.origin import current_origin
from audit.record import record, record_deleted, record_saved, stored_fields

NO_CHANGE = frozenset({"last_login"})  # a login is not recorded as a change of the user
_BEFORE = "_audit_before"


def watch_accounts() -> None:
    """Start to record changes to users and groups. Idempotent."""
    user = get_user_model()
    for account in (user, Group):
        pre_save.connect(_before_save, sender=account, dispatch_uid=f"audit.before.{account.__name__}")
        post_save.connect(_after_save, sender=account, dispatch_uid=f"audit.after.{account.__name__}")
        pre_delete.connect(_before_delete, sender=account, dispatch_uid=f"audit.delete.{account.__name__}")
    for name, relation in _relations(user):
        m2m_changed.connect(_members_changed, sender=relation, dispatch_uid=f"audit.members.{name}")


def _relations(user: Any) -> tuple[tuple[str, Any], ...]:
    return (
        ("groups", user.groups.through),
        ("user permissions", user.user_permissions.through),
        ("permissions", Group.permissions.through),
    )


def _before_save(instance: models.Model, *, raw: bool = False, **_: Any) -> None:
    if not raw:
        setattr(instance, _BEFORE, stored_fields(instance))


def _after_save(instance: models.Model, *, raw: bool = False, **_: Any) -> None:
    if not raw and not current_origin().is_own:
        record_saved(instance, before=getattr(instance, _BEFORE, None), leave_out=NO_CHANGE)


def _before_delete(instance: models.Model, **_: Any) -> None:
    record_deleted(instance)


def _members_changed(
    sender: Any,
    instance: models.Model,
    action: str,
    reverse: bool,  # noqa: FBT001 - Django's
    pk_set: Collection[int] | None,
    model: Any,
    **_: Any,
) -> None:
    """Record membership changes. ``pre_clear`` comes without keys, because all members are removed."""
    if current_origin().is_own or action not in {"post_add", "post_remove", "pre_clear"}:
        return
    field = next(name for name, relation in _relations(get_user_model()) if relation is sender)
    accessor = "user_set" if reverse else field.replace(" ", "_")
    rows = getattr(instance, accessor).all() if pk_set is None else model._base_manager.filter(pk__in=pk_set)
    names = sorted(map(str, rows))
    if names:
        change = [None, names] if action == "post_add" else [names, None]
        record(AuditEvent.Action.CHANGE, instance, changes={"users" if reverse else field: change})
