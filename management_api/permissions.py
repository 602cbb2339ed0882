"""One permission for each act of a view, the same that the console's page asks for."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request


class ActPermission(BasePermission):
    """Staff only, as for the console. ``view.permissions`` names the permission of each action; None needs no other."""

    message = "You may not do this; ask an administrator for the role that may (docs/roles.md)."

    def has_permission(self, request: Request, view: Any) -> bool:
        user = request.user
        if not user.is_authenticated or not user.is_active or not user.is_staff:
            return False
        if view.action in {None, "metadata"}:  # a method that the view does not have, or OPTIONS
            return True
        needed = view.permissions[view.action]
        return needed is None or user.has_perm(needed)
