"""Which keys a user may see: one's own, or everybody's with the permission for it."""

from __future__ import annotations

from django.db.models import QuerySet

from inference.ownership import Viewer, seen_by
from openai_api.models import ApiKey, KeyDay

SEE_ALL_KEYS = "openai_api.see_all_apikeys"


def visible_keys(user: Viewer, rows: QuerySet[ApiKey] | None = None) -> QuerySet[ApiKey]:
    found = ApiKey.objects.all() if rows is None else rows
    return seen_by(found, user, owner="owner", see_all=SEE_ALL_KEYS, is_shared=False)


def visible_days(user: Viewer, rows: QuerySet[KeyDay] | None = None) -> QuerySet[KeyDay]:
    found = KeyDay.objects.all() if rows is None else rows
    return found if user.has_perm(SEE_ALL_KEYS) else found.filter(api_key__in=visible_keys(user).values("pk"))
