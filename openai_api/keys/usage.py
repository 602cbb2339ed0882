"""Usage of a key over the last days, as data for plots and as text beside its limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from django.utils import timezone

from openai_api.keys.limits import get_limits
from openai_api.models import ApiKey

DAYS = 30
WIDTH, HEIGHT, GAP = 300, 60, 2


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in the plot's units; ``day`` and ``value`` form its title."""

    x: float
    y: float
    width: float
    height: float
    day: date
    value: int


@dataclass(frozen=True, slots=True)
class UsagePlot:
    """``limit_y`` is the position of the limit's line; None without a limit or when it is out of range."""

    title: str
    bars: tuple[Bar, ...]
    total: int
    most: int
    today: int
    limit: int | None
    limit_y: float | None
    share: int | None

    @property
    def is_near_limit(self) -> bool:
        return self.share is not None and self.share >= 80


def usage_plots(key: ApiKey) -> tuple[UsagePlot, UsagePlot]:
    """Return the plots of requests and tokens, with one query."""
    today = timezone.now().date()
    days = [today - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]
    rows = {row.day: row for row in key.days.filter(day__gte=days[0])}
    requests = [rows[day].requests if day in rows else 0 for day in days]
    tokens = [rows[day].tokens if day in rows else 0 for day in days]
    return (
        usage_plot("Requests", days, requests, key.requests_per_day),
        usage_plot("Tokens", days, tokens, key.tokens_per_day),
    )


def usage_plot(title: str, days: Sequence[date], values: Sequence[int], limit: int | None) -> UsagePlot:
    """Return a plot scaled to the highest bar, or to the limit where that is at most twice as high."""
    most = max(values, default=0)
    is_limit_shown = limit is not None and 0 < limit <= 2 * max(most, 1)
    top = max(most, limit if is_limit_shown and limit else 0, 1)
    step = WIDTH / max(len(days), 1)
    bars = tuple(
        Bar(round(number * step, 2), round(HEIGHT - height, 2), round(step - GAP, 2), height, day, value)
        for number, (day, value) in enumerate(zip(days, values, strict=True))
        for height in [round(HEIGHT * value / top, 2)]
    )
    today = values[-1] if values else 0
    return UsagePlot(
        title=title,
        bars=bars,
        total=sum(values),
        most=most,
        today=today,
        limit=limit,
        limit_y=round(HEIGHT - HEIGHT * limit / top, 2) if is_limit_shown and limit else None,
        share=None if limit is None else (100 if limit == 0 else min(100, today * 100 // limit)),
    )


def minute_use(key: ApiKey) -> list[str]:
    """Return what is left of the limits per minute."""
    headers = get_limits().current_headers(key.record())
    return [
        f"{headers[f'x-ratelimit-remaining-{kind}']} of {headers[f'x-ratelimit-limit-{kind}']} {kind} per minute left"
        for kind in ("requests", "tokens")
        if f"x-ratelimit-limit-{kind}" in headers
    ]
