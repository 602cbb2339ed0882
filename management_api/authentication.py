"""Authentication of /api by key or session, permissions, and sharing with groups."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Group, User
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication
from rest_framework.authentication import SessionAuthentication as DjangoSessionAuthentication
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from inference.permissions import groups_to_share_with, may_share
from management_api.serializers import StrictInput, Text
from openai_api.http.errors import forbidden, invalid, wrong_key
from openai_api.keys.authentication import current_keys, find_key, presented_key


class CsrfFailed(PermissionDenied):
    default_code = "csrf_failed"


class KeyAuthentication(BaseAuthentication):
    """Authenticates by the key in a header, which takes precedence over a session: a wrong key is always an error."""

    def authenticate(self, request: Request) -> tuple[User, object] | None:
        plain = presented_key(request)
        if plain is None:
            return None
        record = find_key(plain, current_keys())
        if record is None:
            raise wrong_key()
        if not record.may_manage:
            message = f"The key `{record.name}` cannot access /api. Add the scope to the key, or use another key."
            raise forbidden(message, code="scope_required")
        assert record.owner_id is not None  # only requests without a key have no owner
        return User.objects.get(pk=record.owner_id), record

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class SessionAuthentication(DjangoSessionAuthentication):
    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied as error:
            raise CsrfFailed(f"{error.detail}. Send the CSRF token of the page in the X-CSRFToken header.") from None


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[misc]  # drf-spectacular has no types
    target_class = "management_api.authentication.KeyAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}


class SessionScheme(OpenApiAuthenticationExtension):  # type: ignore[misc]  # drf-spectacular has no types
    target_class = "management_api.authentication.SessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {"type": "apiKey", "in": "cookie", "name": "millm_session"}


class ActionPermission(BasePermission):
    """Allows staff only, like the console. ``view.permissions`` maps each action to its permission, or None."""

    message = "You do not have permission to do this. Ask an administrator for a role that does (docs/roles.md)."

    def has_permission(self, request: Request, view: Any) -> bool:
        user = request.user
        if not user.is_authenticated or not user.is_active or not user.is_staff:
            return False
        if view.action in {None, "metadata"}:  # an unsupported method, or OPTIONS
            return True
        needed = view.permissions[view.action]
        return needed is None or user.has_perm(needed)


class SharingInput(StrictInput):
    groups = serializers.ListField(child=Text(max_length=150), max_length=100)


def groups_named(user: User, owner: User | None, names: list[str], *, see_all: str) -> list[Group]:
    """Return the groups with these names. Raise MillmError for a group that the user may not choose."""
    if not may_share(user, owner, see_all=see_all):
        raise forbidden("Only the owner can share this object.", code="permission_denied")
    found = {group.name: group for group in groups_to_share_with(user, see_all=see_all)}
    if missing := [name for name in names if name not in found]:
        raise invalid(f"groups: you are not a member of the group `{missing[0][:100]}`.", param="groups")
    return [found[name] for name in names]
