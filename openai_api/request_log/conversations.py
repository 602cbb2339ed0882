"""Requests of one conversation: chains of responses, and chats whose messages extend one another.

A client of chat completions sends all messages again with each turn. The turn before a request is thus the request of
the same client whose messages are the beginning of this one's, and whose answer is the message that follows them.
Prompts are compared by their whole text as it was logged, which Postgres can do without reading those of other lengths.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet

from openai_api.models import RequestLog
from openai_api.request_id import request_id_of

PREVIOUS = "previous_response_id"
CHAT = "/v1/chat/completions"
MAX_TURNS = 20
WINDOW = timedelta(days=1)
MAX_COMPARED = 2_000  # requests of the client in the window, the nearest in time
MAX_LATER = 200  # of which the beginning of the prompt is read
_LEAST = ("pk", "created_at", "model", "status", "endpoint", "user", "api_key_id", "client_address")


def earlier_turns(row: RequestLog) -> list[RequestLog]:
    """Return the requests whose responses this one continues (`previous_response_id`), the oldest first."""
    turns: list[RequestLog] = []
    seen = {row.pk}
    while row.status < 400 and len(turns) < MAX_TURNS and isinstance(row.parameters.get(PREVIOUS), str):
        pk = request_id_of(row.parameters[PREVIOUS])
        found = None if pk in seen else RequestLog.objects.filter(pk=pk).first()
        if found is None:
            break
        seen.add(pk)
        turns.insert(0, row := found)
    return turns


def earlier_chats(row: RequestLog) -> list[RequestLog]:
    """Return the chats that this one continues, the oldest first. They have no texts but their own last turn's."""
    turns: list[RequestLog] = []
    messages = chat_messages(row)
    while len(turns) < MAX_TURNS and (place := _last_answer(messages)):
        found = _chat(row, messages[:place], messages[place])
        if found is None:
            break
        turns.insert(0, row := found)
        messages = messages[:place]
    return turns


def next_chat(row: RequestLog) -> RequestLog | None:
    """Return the first later chat that continues this one with its answer."""
    messages = chat_messages(row)
    if not messages or not row.completion:
        return None
    beginning = row.prompt[:-1]  # without the bracket that closes the list
    later = _of_client(row).filter(created_at__gt=row.created_at, created_at__lte=row.created_at + WINDOW)
    nearest = later.order_by("created_at", "pk").values("pk")[:MAX_LATER]
    rows = RequestLog.objects.filter(pk__in=nearest, prompt__startswith=beginning).order_by("created_at", "pk")
    for found in rows.only(*_LEAST, "prompt")[:MAX_TURNS]:
        its_own = chat_messages(found)
        if len(its_own) > len(messages) and _says(its_own[len(messages)], row.completion):
            return found
    return None


def chat_messages(row: RequestLog) -> list[dict[str, Any]]:
    """Return the messages of a chat as they were sent; none for other requests, and where texts are not stored."""
    if row.endpoint != CHAT or not row.prompt.startswith("["):
        return []
    try:
        found = json.loads(row.prompt)
    except (ValueError, RecursionError):
        return []
    return found if all(isinstance(message, dict) for message in found) else []


def _last_answer(messages: list[dict[str, Any]]) -> int:
    """Return the place of the last message of the assistant, 0 if there is none after a first message."""
    return max((n for n, message in enumerate(messages) if message.get("role") == "assistant"), default=0)


def _chat(row: RequestLog, messages: list[dict[str, Any]], answer: dict[str, Any]) -> RequestLog | None:
    """Return the newest earlier request of the same client with these messages and this answer."""
    earlier = _of_client(row).filter(created_at__lt=row.created_at, created_at__gte=row.created_at - WINDOW)
    nearest = earlier.order_by("-created_at", "-pk").values("pk")[:MAX_COMPARED]
    text = json.dumps(messages, ensure_ascii=False)  # as the log writes it
    rows = RequestLog.objects.filter(pk__in=nearest, prompt=text).order_by("-created_at", "-pk")
    return next(
        (found for found in rows.only(*_LEAST, "completion")[:MAX_TURNS] if _says(answer, found.completion)), None
    )


def _says(message: dict[str, Any], text: str) -> bool:
    content = message.get("content")
    return message.get("role") == "assistant" and isinstance(content, str) and content.strip() == text.strip() != ""


def _of_client(row: RequestLog) -> QuerySet[RequestLog]:
    """Return the requests of the same key and user; without a key, of the same address."""
    rows = RequestLog.objects.filter(endpoint=CHAT, model=row.model, user=row.user, api_key=row.api_key_id)
    return rows if row.api_key_id else rows.filter(client_address=row.client_address)
