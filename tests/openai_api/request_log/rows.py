"""Rows of the log as tests want them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.utils import timezone

from openai_api.models import RequestLog


def values(number: int = 0, **fields: Any) -> dict[str, Any]:
    """The higher the number, the older."""
    common: dict[str, Any] = {
        "id": f"req_{number}",
        "created_at": timezone.now() - timedelta(minutes=number),
        "endpoint": "/v1/chat/completions",
        "model": "tiny",
        "status": 200,
    }
    return {**common, **fields}


def row(number: int = 0, **fields: Any) -> RequestLog:
    return RequestLog.objects.create(**values(number, **fields))


def rows(count: int, **fields: Any) -> list[RequestLog]:
    return RequestLog.objects.bulk_create(RequestLog(**values(number, **fields)) for number in range(count))
