"""Parts of the request log's detail page. Logged text is data of strangers: it is always escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from openai_api.models import RequestLog
from steering.models import ProfileVersion


def pretty_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True)


def tokens_text(row: RequestLog) -> str:
    cached = f" ({row.cached_tokens} cached)" if row.cached_tokens else ""
    return f"{row.prompt_tokens}{cached} → {row.completion_tokens}"


def conversation(text: str) -> SafeString:
    """A chat's messages under their roles, several texts under their numbers, anything else as it is."""
    if not text:
        return format_html("{}", "-")
    return format_html_join("", '<h4 class="log-role">{}</h4><pre>{}</pre>', _blocks(text))


def _blocks(text: str) -> Iterable[tuple[str, str]]:
    value = _parsed(text)
    if isinstance(value, list) and all(isinstance(item, dict) and "role" in item for item in value):
        return [(str(item["role"]), _message_text(item)) for item in value]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [(f"#{number}", item) for number, item in enumerate(value)]
    return [("", text)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None


def _message_text(message: dict[str, Any]) -> str:
    """The content, and whatever else the message has."""
    content = message.get("content")
    rest = {key: value for key, value in message.items() if key not in {"role", "content"} and value is not None}
    shown = content if isinstance(content, str) else pretty_json(content) if content is not None else ""
    return "\n".join(part for part in (shown, pretty_json(rest) if rest else "") if part)


def profile_link(row: RequestLog) -> str | SafeString:
    """The profile's version in the admin, as long as it exists."""
    if not row.profile:
        return "none"
    name, _, number = row.profile.rpartition("@")
    found = ProfileVersion.objects.filter(
        profile__model__name=row.model, profile__name=name, number=number if number.isdecimal() else 0
    ).first()
    url = _version_url(found) if found else None
    return format_html('<a href="{}">{}</a>', url, row.profile) if url else row.profile


def _version_url(version: ProfileVersion) -> str | None:
    for view, pk in (("profileversion", version.pk), ("steeringprofile", version.profile_id)):
        try:
            return reverse(f"admin:steering_{view}_change", args=[pk])
        except NoReverseMatch:
            continue
    return None
