"""Requests and errors of a search over time, counted from a bounded number of rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.db import connection
from django.db.models import QuerySet
from django.db.models.expressions import RawSQL

from openai_api.models import RequestLog
from openai_api.request_log.search import LogSearch
from openai_api.request_log.summary import CLIENT_DISCONNECTED

DEFAULT_PERIOD, MAX_PERIOD = timedelta(days=1), timedelta(days=366)
MAX_BARS = 48
MAX_COUNTED = 250  # rows of a bar; beyond them its numbers are estimates
MAX_COST = 60_000  # of Postgres's planner: searches that no index narrows have no histogram
WIDTHS = tuple(
    timedelta(**{unit: number})
    for unit, numbers in (
        ("seconds", (1, 2, 5, 10, 15, 30)),
        ("minutes", (1, 2, 5, 10, 15, 30)),
        ("hours", (1, 2, 3, 6, 12)),
        ("days", (1, 2, 7, 14)),
    )
    for number in numbers
)
HEIGHT, STEP = 60, 10  # of the drawing, as in the template
_EPOCH = datetime(2001, 1, 1, tzinfo=UTC)  # a Monday
_SQL = """
    SELECT bar.since, found.* FROM unnest(%s::timestamptz[]) AS bar (since) CROSS JOIN LATERAL (
        SELECT count(*), min(created_at),
            count(*) FILTER (WHERE (status >= 400 OR error_code <> '') AND error_code <> %s)
        FROM ({rows}) AS counted
    ) AS found
"""  # from an index on the time, a bar reads MAX_COUNTED rows at most


@dataclass(frozen=True, slots=True)
class Bar:
    """A part of the period. Its numbers are estimates if ``is_estimate``."""

    since: datetime
    until: datetime
    requests: int
    errors: int
    is_estimate: bool
    query: str  # of the search in this part

    @property
    def title(self) -> str:
        about = "about " if self.is_estimate else ""
        errors = f", {self.errors:,} error{'' if self.errors == 1 else 's'}" if self.errors else ""
        return f"{self.since:%b %d, %H:%M:%S} UTC: {about}{self.requests:,} requests{errors}"


@dataclass(frozen=True, slots=True)
class Histogram:
    """The bars, the oldest first; none if counting would take too long."""

    since: datetime
    until: datetime
    width: timedelta
    bars: tuple[Bar, ...]
    is_default_period: bool

    @property
    def is_empty(self) -> bool:
        return not any(bar.requests for bar in self.bars)

    @property
    def max_requests(self) -> int:
        return max(bar.requests for bar in self.bars)

    @property
    def highest(self) -> str:
        return f"{self.max_requests:,}"

    @property
    def drawing_width(self) -> int:
        return STEP * len(self.bars)

    def drawn(self) -> Iterator[dict[str, Any]]:
        """Yield each bar with the places of its rectangles."""
        scale = HEIGHT / self.max_requests
        for number, bar in enumerate(self.bars):
            height = max(round(bar.requests * scale, 1), 1.0) if bar.requests else 0
            errors = min(max(round(bar.errors * scale, 1), 1.0) if bar.errors else 0, height)
            yield {
                "bar": bar,
                "x": number * STEP,
                "y": HEIGHT - height,
                "height": height,
                "errors_y": HEIGHT - errors,
                "errors_height": errors,
            }


def histogram(
    search: LogSearch, conditions: Mapping[str, str], now: datetime, *, by_time: bool = False
) -> Histogram | None:
    """Count the rows of a search by time, by default of the last 24 hours. None for an empty period.

    ``by_time`` is the option of :meth:`LogSearch.rows`.
    """
    until = min(search.until or now, now)
    if until < _EPOCH:  # of no server
        return None
    since = max(search.since or until - DEFAULT_PERIOD, until - MAX_PERIOD)
    if since >= until:
        return None
    width = next((width for width in WIDTHS if (until - since) / width <= MAX_BARS), WIDTHS[-1])
    first = _EPOCH + (since - _EPOCH) // width * width
    starts = [first + number * width for number in range(-((first - until) // width))]
    others = {name: value for name, value in conditions.items() if name not in ("last", "since", "until")}
    bars = (
        _bar(counted, width, (max(counted.since, since), min(counted.since + width, until)), others)
        for counted in _counted(search.rows(by_time=by_time), starts, width)
    )
    return Histogram(since, until, width, tuple(bars), search.since is None)


class _Counted(NamedTuple):
    since: datetime
    rows: int
    oldest: datetime | None
    errors: int


def _counted(found: QuerySet[RequestLog], starts: list[datetime], width: timedelta) -> list[_Counted]:
    """Count up to MAX_COUNTED rows of each bar, or nothing if that would cost too much."""
    inside = found.filter(
        created_at__gte=RawSQL("bar.since", ()), created_at__lt=RawSQL("bar.since + %s::interval", (width,))
    )
    rows, params = (
        inside.order_by("-created_at").values("created_at", "status", "error_code")[:MAX_COUNTED].query
    ).sql_with_params()
    statement, values = _SQL.format(rows=rows), [starts, CLIENT_DISCONNECTED, *params]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}", values)
        (plan,) = cursor.fetchone()
        plans = json.loads(plan) if isinstance(plan, str) else plan
        if plans[0]["Plan"]["Total Cost"] > MAX_COST:
            return []
        cursor.execute(statement, values)
        return [_Counted(*row) for row in cursor.fetchall()]


def _bar(counted: _Counted, width: timedelta, covered: tuple[datetime, datetime], others: Mapping[str, str]) -> Bar:
    """Return the bar. If not all rows were counted, the time between the counted ones tells how many there are."""
    since, until = counted.since, counted.since + width
    factor = 1.0
    if counted.rows == MAX_COUNTED and counted.oldest is not None and covered[1] > counted.oldest:
        factor = max((covered[1] - covered[0]) / (covered[1] - counted.oldest), 1.0)
    query = urlencode({**others, "since": f"{since:%Y-%m-%dT%H:%M:%S}", "until": f"{until:%Y-%m-%dT%H:%M:%S}"})
    return Bar(
        since, until, _about(counted.rows * factor), _about(counted.errors * factor), factor > 1, query=f"?{query}"
    )


def _about(number: float) -> int:
    """Round to two digits beyond the number of rows that are counted."""
    places = max(0, len(str(round(number))) - 2) if number > MAX_COUNTED else 0
    return int(round(number, -places))
