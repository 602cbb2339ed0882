"""Admin pages of stored responses and conversations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from openai_api.responses.items import item_text
from openai_api.responses.models import Conversation, StoredItem, StoredResponse
from openai_api.stored_object_admin import Block, StoredObjectAdmin, json_text, text_blocks


@admin.register(StoredResponse)
class StoredResponseAdmin(StoredObjectAdmin):
    empty_words = 'No stored responses yet. Requests to /v1/responses are stored unless they set "store": false.'
    list_display = ("id", "model", "status", "owner", "is_background", "tokens", "created_at")
    list_filter = ("status", "is_background", ("created_at", admin.DateFieldListFilter))
    list_select_related = ("owner",)
    search_fields = ("id__startswith", "owner__username")
    search_help_text = "Start of an id, or a user name."
    readonly_fields = ("tokens",)
    fieldsets = (
        (None, {"fields": ("id", "model", "status", "owner", "created_at", "used_at", "tokens")}),
        ("Context", {"fields": ("previous_response_id", "conversation", "is_background", "is_streamed", "job_id")}),
    )
    text_fields = ("input_items", "output_items", "request_body")

    @admin.display(description="tokens")
    def tokens(self, row: StoredResponse) -> str:
        usage = row.body.get("usage") or {}
        return f"{usage.get('input_tokens', 0)} → {usage.get('output_tokens', 0)}" if usage else "-"

    @admin.display(description="input")
    def input_items(self, row: StoredResponse) -> SafeString:
        return text_blocks(blocks_of(row.items.filter(is_output=False)))

    @admin.display(description="output")
    def output_items(self, row: StoredResponse) -> SafeString:
        return text_blocks(blocks_of(row.items.filter(is_output=True)))

    @admin.display(description="as JSON")
    def request_body(self, row: StoredResponse) -> SafeString:
        return text_blocks([("", json_text(row.body))])


@admin.register(Conversation)
class ConversationAdmin(StoredObjectAdmin):
    empty_words = "No conversations yet. Clients create them at /v1/conversations."
    list_display = ("id", "owner", "created_at")
    list_filter = (("created_at", admin.DateFieldListFilter),)
    list_select_related = ("owner",)
    search_fields = ("id__startswith", "owner__username")
    search_help_text = "Start of an id, or a user name."
    fieldsets = ((None, {"fields": ("id", "owner", "created_at")}),)
    text_fields = ("item_texts", "metadata_text")

    @admin.display(description="items")
    def item_texts(self, row: Conversation) -> SafeString:
        return text_blocks(blocks_of(row.items.all()))

    @admin.display(description="metadata")
    def metadata_text(self, row: Conversation) -> SafeString:
        return text_blocks([("", json_text(row.metadata))])


def blocks_of(items: Iterable[StoredItem]) -> Iterator[Block]:
    """Return each item with its kind as heading."""
    for item in items:
        yield _title(item.body), item_text(item.body)


def _title(body: dict[str, Any]) -> str:
    kind = str(body.get("type", ""))
    return str(body.get("role") or body.get("name") or kind)
