"""Sharing profiles and vectors with groups."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib.auth.models import Group, User
from django.db import transaction

from audit.models import AuditEvent
from audit.trail import record
from steering.models import SteeringProfile, VectorSet


@transaction.atomic
def share_with_groups(*, subject: SteeringProfile | VectorSet, groups: Iterable[Group], user: User | None) -> None:
    """From now on these groups see it, and no others. The audit trail tells what changed."""
    before = _names(subject.shared_with.all())
    subject.shared_with.set(groups)
    after = _names(subject.shared_with.all())
    if before != after:
        changes = {"shared_with": [before, after]}
        record(AuditEvent.Action.CHANGE, subject, user=user, model=subject.model.name, changes=changes)


def _names(groups: Iterable[Group]) -> list[str]:
    return sorted(group.name for group in groups)
