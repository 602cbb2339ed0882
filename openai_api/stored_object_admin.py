"""Read-only admin pages of stored objects, without texts for users who may not see them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from core.read_only_admin import ReadOnlyAdmin
from openai_api.request_log.access import HIDDEN, may_see_text

Block = tuple[str, str]


class StoredObjectAdmin(ReadOnlyAdmin):
    """``text_fields`` are shown to users with the permission."""

    text_fields: tuple[str, ...] = ()
    show_full_result_count = False

    class Media:
        css = {"all": ("openai_api/log.css",)}

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        shown = self.text_fields if may_see_text(request.user) else ("hidden_texts",)
        return [*super().get_fieldsets(request, obj), ("Texts", {"fields": shown, "classes": ("log-text",)})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), *self.text_fields, "hidden_texts")

    @admin.display(description="texts")
    def hidden_texts(self, row: Any) -> str:
        return HIDDEN


def text_blocks(blocks: Iterable[Block]) -> SafeString:
    """Render texts under their titles, escaped."""
    found = list(blocks)
    if not found:
        return format_html("{}", "-")
    return format_html_join("", '<h4 class="log-role">{}</h4><pre tabindex="0">{}</pre>', found)


def json_text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
