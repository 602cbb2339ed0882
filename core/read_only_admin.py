"""Admin pages that are read-only for everybody."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """An admin that is read-only for all users. Its rows never change, so they have no history."""

    has_history = False
    actions: Any = None

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row by ``object_id``, or by the id as the address has it: programs and people who make addresses
        write ids as they are, in which the admin takes "_26" for an escaped "&"."""
        row = super().get_object(request, object_id, from_field)
        match = request.resolver_match
        written = object_id if match is None else match.kwargs.get("object_id", object_id)
        return super().get_object(request, written, from_field) if row is None and written != object_id else row

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
