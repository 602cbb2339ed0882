"""What this server keeps of requests, and for how long, in words: who looks for a request has to know what is gone."""

from __future__ import annotations

from django.conf import settings

TEXTS = {
    "full": "Texts are kept{until}",
    "hash": "Of texts a SHA-256 is kept{until}",
    "none": "Nothing of texts is kept",
}


def kept_text() -> str:
    """A key may have less kept of its own requests."""
    days, text_days = settings.MILLM_LOG_RETENTION_DAYS, settings.MILLM_LOG_TEXT_RETENTION_DAYS
    rows = f"Rows are deleted after {_days(days)}" if days else "Rows are kept for ever"
    until = f" for {_days(text_days)}" if text_days else " as long as their rows"
    texts = TEXTS[settings.MILLM_LOG_CONTENT].format(until=until)
    return f"{rows}. {texts}. A key may have less kept."


def _days(days: int) -> str:
    return f"{days} day{'' if days == 1 else 's'}"
