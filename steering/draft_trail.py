"""Drafts in the audit trail: their edits in words."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib.auth.models import User

from audit.changes import plain
from audit.models import AuditEvent
from audit.trail import record
from steering.drafts import draft_edits
from steering.models import SteeringProfile
from steering.spec.errors import InvalidSpecError
from steering.spec.wording import describe_edit


def draft_words(profile: SteeringProfile) -> list[str]:
    """A line for each edit; a draft that makes no sense yet is told by its rows."""
    try:
        return [describe_edit(edit) for edit in draft_edits(profile)]
    except InvalidSpecError:
        return [str(row) for row in profile.edits.all()]


def record_draft(
    *, profile: SteeringProfile, before: Sequence[str], user: User | None = None, detail: str = ""
) -> None:
    """Records what the draft's edits are now; nothing where they are what they were."""
    after = draft_words(profile)
    if list(before) != after:
        changes = {"edits": [plain(list(before)), plain(after)]}
        record(AuditEvent.Action.CHANGE, profile, user=user, model=profile.model.name, detail=detail, changes=changes)
