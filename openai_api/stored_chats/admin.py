"""Admin pages of stored chat completions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.safestring import SafeString

from openai_api.stored_chats.models import StoredChat
from openai_api.stored_object_admin import StoredObjectAdmin, json_text, text_blocks


@admin.register(StoredChat)
class StoredChatAdmin(StoredObjectAdmin):
    empty_words = 'No stored completions yet. Requests to /v1/chat/completions with "store": true are stored.'
    list_display = ("id", "model", "owner", "tokens", "created_at")
    list_filter = (("created_at", admin.DateFieldListFilter),)
    list_select_related = ("owner",)
    search_fields = ("id__startswith", "owner__username")
    search_help_text = "Start of an id, or a user name."
    readonly_fields = ("tokens",)
    fieldsets = ((None, {"fields": ("id", "model", "owner", "created_at", "tokens")}),)
    text_fields = ("message_texts", "answer", "metadata_text")

    @admin.display(description="tokens")
    def tokens(self, row: StoredChat) -> str:
        usage = row.body.get("usage") or {}
        return f"{usage.get('prompt_tokens', 0)} → {usage.get('completion_tokens', 0)}"

    @admin.display(description="messages")
    def message_texts(self, row: StoredChat) -> SafeString:
        return text_blocks((str(message.get("role", "")), _text(message)) for message in row.messages)

    @admin.display(description="answer")
    def answer(self, row: StoredChat) -> SafeString:
        choices = row.body.get("choices") or ()
        return text_blocks((f"#{choice.get('index', 0)}", _text(choice.get("message") or {})) for choice in choices)

    @admin.display(description="metadata")
    def metadata_text(self, row: StoredChat) -> SafeString:
        return text_blocks([("", json_text(row.metadata))])


def _text(message: dict[str, Any]) -> str:
    """Return the content if there is nothing else, otherwise the whole message."""
    rest = {key: value for key, value in message.items() if key not in {"role", "content"} and value}
    content = message.get("content")
    return content if isinstance(content, str) and not rest else json_text(message)
