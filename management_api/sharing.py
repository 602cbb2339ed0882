"""With which groups something is shared, as a request says it."""

from __future__ import annotations

from django.contrib.auth.models import Group, User
from rest_framework import serializers

from inference.permissions import groups_to_share_with, may_share
from management_api.strict import StrictInput, Text
from openai_api.http.errors import forbidden, invalid


class SharingInput(StrictInput):
    groups = serializers.ListField(child=Text(max_length=150), max_length=100)


def groups_named(user: User, owner: User | None, names: list[str], *, see_all: str) -> list[Group]:
    """Those that the user may choose; ApiError names one that is not among them."""
    if not may_share(user, owner, see_all=see_all):
        raise forbidden("Only its owner says with whom it is shared.", code="permission_denied")
    found = {group.name: group for group in groups_to_share_with(user, see_all=see_all)}
    if missing := [name for name in names if name not in found]:
        raise invalid(f"groups: you are in no group {missing[0][:100]!r}.", param="groups")
    return [found[name] for name in names]
