"""Permission to read logged texts, and the record of who did."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AnonymousUser, User

from openai_api.models import LogAccess

SEE_TEXT = "openai_api.view_prompt_text"
EXPORT = "openai_api.export_requestlog"
HIDDEN = "You need the permission to view request texts."


def may_see_text(user: User | AnonymousUser) -> bool:
    """Return whether the user may read logged texts. Pages check the permission to see the log first."""
    return user.has_perm(SEE_TEXT)


def record_access(
    *,
    act: LogAccess.Act,
    user: User | None,
    request_id: str = "",
    detail: dict[str, Any] | None = None,
    num_rows: int | None = None,
    is_complete: bool = True,
) -> LogAccess:
    """Record an access to the log. ``user`` is None for management commands."""
    return LogAccess.objects.create(
        act=act,
        username=user.get_username() if user is not None else "",
        request_id=request_id,
        detail=detail or {},
        num_rows=num_rows,
        is_complete=is_complete,
    )
