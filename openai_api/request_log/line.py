"""A logged request as one line of the list."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from openai_api.models import RequestLog
from openai_api.request_log.timeline import milliseconds
from openai_api.request_log.visible_text import visible_text

ROOT = "/v1/"  # of all endpoints, and not shown in the list


@dataclass(frozen=True, slots=True)
class LogLine:
    """Nothing of this is a client's text but names, whose acting characters are named."""

    pk: str
    time: str
    model: str
    profile: str
    endpoint: str
    outcome: str
    is_bad: bool
    tokens: str
    took: str
    key: str
    user: str

    @classmethod
    def of(cls, row: RequestLog) -> LogLine:
        return cls(
            pk=row.pk,
            time=utc_text(row.created_at),
            model=visible_text(row.model),
            profile=visible_text(row.profile),
            endpoint=row.endpoint.removeprefix(ROOT),
            outcome=f"{row.status} {visible_text(row.error_code or row.finish_reason)}",
            is_bad=row.status >= 400 or bool(row.error_code),
            tokens=tokens_text(row),
            took=f"{milliseconds(row.ttft_ms, beside=row.total_ms)} / {milliseconds(row.total_ms)}",
            key=key_text(row),
            user=visible_text(row.user),
        )


def utc_text(at: datetime) -> str:
    """To the second: people put it beside what other machines say."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def key_text(row: RequestLog) -> str:
    """The key under the secret that was sent, which may be another than it has now. Of a deleted key that is all."""
    secret = f"{row.key_prefix}…" if row.key_prefix else ""
    name = row.api_key.name if row.api_key else ""
    return visible_text(f"{name} ({secret})" if name and secret else name or secret)


def tokens_text(row: RequestLog) -> str:
    cached = f" ({row.cached_tokens} cached)" if row.cached_tokens else ""
    return f"{row.prompt_tokens}{cached} → {row.completion_tokens}"
