"""A logged request as one line of the list."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.formats import date_format
from django.utils.timezone import localtime

from openai_api.models import RequestLog
from openai_api.request_log.timeline import milliseconds
from openai_api.request_log.visible_text import visible_text


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
            time=date_format(localtime(row.created_at), "Y-m-d H:i:s"),
            model=visible_text(row.model),
            profile=visible_text(row.profile),
            endpoint=row.endpoint.removeprefix("/v1/"),
            outcome=f"{row.status} {visible_text(row.error_code or row.finish_reason)}",
            is_bad=row.status >= 400 or bool(row.error_code),
            tokens=tokens_text(row),
            took=f"{milliseconds(row.ttft_ms)} / {milliseconds(row.total_ms)}",
            key=visible_text(str(row.api_key)) if row.api_key else "",
            user=visible_text(row.user),
        )


def tokens_text(row: RequestLog) -> str:
    cached = f" ({row.cached_tokens} cached)" if row.cached_tokens else ""
    return f"{row.prompt_tokens}{cached} → {row.completion_tokens}"
