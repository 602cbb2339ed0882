"""The histogram above the list: what it counts, of which period, and what it costs."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from openai_api.models import RequestLog
from openai_api.request_log.pages import histogram as module
from openai_api.request_log.pages.histogram import MAX_BARS, Histogram, histogram
from openai_api.request_log.search import LogSearch
from tests.openai_api.request_log.conftest import LOG
from tests.openai_api.request_log.rows import row, values

pytestmark = pytest.mark.django_db
NOW = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)


def counted(search: LogSearch | None = None, **conditions: str) -> Histogram:
    found = histogram(search or LogSearch(), conditions, NOW)
    assert found is not None
    return found


def add(count: int, at: datetime, **fields: Any) -> None:
    """Rows within a minute after ``at``."""
    start = RequestLog.objects.count()
    RequestLog.objects.bulk_create(
        RequestLog(**values(start + n, created_at=at + timedelta(seconds=59 * n / count), **fields))
        for n in range(count)
    )


def test_requests_and_errors_of_the_last_day_are_counted_by_half_hour():
    add(3, NOW - timedelta(hours=1))
    add(1, NOW - timedelta(hours=1), status=500)
    add(1, NOW - timedelta(hours=1), error_code="client_disconnected")
    add(2, NOW - timedelta(hours=20), status=200, error_code="server_killed")
    add(1, NOW - timedelta(hours=1), source="console")
    add(1, NOW - timedelta(hours=25))
    found = counted(model="tiny")
    assert (found.since, found.until, len(found.bars)) == (NOW - timedelta(days=1), NOW, 48)
    shown = {bar.since: (bar.requests, bar.errors) for bar in found.bars if bar.requests}
    assert shown == {NOW - timedelta(hours=1): (5, 1), NOW - timedelta(hours=20): (2, 2)}
    (bar,) = [bar for bar in found.bars if bar.requests == 5]
    assert bar.query == "?model=tiny&since=2026-11-26T11%3A00%3A00&until=2026-11-26T11%3A30%3A00"
    assert bar.title == "Nov 26, 11:00:00 UTC: 5 requests, 1 error"


@pytest.mark.parametrize(
    ("span", "width"),
    [
        (timedelta(seconds=30), timedelta(seconds=1)),
        (timedelta(hours=1), timedelta(minutes=2)),
        (timedelta(days=7), timedelta(hours=6)),
        (timedelta(days=30), timedelta(days=1)),
        (timedelta(days=366), timedelta(days=14)),
        (timedelta(days=5_000), timedelta(days=14)),
    ],
)
def test_bars_are_as_wide_as_the_period_needs(span: timedelta, width: timedelta):
    found = counted(LogSearch(since=NOW - span))
    assert found.width == width
    assert len(found.bars) <= MAX_BARS + 1
    assert found.bars[0].since <= found.since < found.bars[0].until
    assert found.bars[-1].since < found.until <= found.bars[-1].until


def test_a_bar_leads_to_its_own_period(auditor: Client):
    at = timezone.now() - timedelta(hours=3)
    add(4, at)
    row(1_000)
    page = auditor.get(LOG, {"model": "tiny"})
    links = re.findall(r'<th scope="row"><a href="([^"]+)"', page.content.decode())
    narrowed = auditor.get(LOG + links[-1].replace("&amp;", "&"))
    assert "problems" not in narrowed.context
    assert 0 < len(narrowed.context["lines"]) <= 4
    assert len(narrowed.context["histogram"].bars) > 1


def test_bars_of_many_requests_are_estimates_and_say_so(monkeypatch: pytest.MonkeyPatch, auditor: Client):
    monkeypatch.setattr(module, "MAX_COUNTED", 10)
    for minute in range(30):
        add(5, NOW - timedelta(minutes=60 - minute), status=200 if minute % 2 else 500)
    (bar,) = [bar for bar in counted().bars if bar.requests]
    assert bar.is_estimate
    assert 130 <= bar.requests <= 170
    assert 60 <= bar.errors <= 90
    assert "about" in bar.title


def test_searches_that_would_cost_too_much_have_no_histogram(monkeypatch: pytest.MonkeyPatch, auditor: Client):
    row(1)
    monkeypatch.setattr(module, "MAX_COST", 0)
    page = auditor.get(LOG)
    assert page.context["histogram"].bars == ()
    assert "too many requests to count for this search" in page.content.decode()
    assert len(page.context["lines"]) == 1


@pytest.mark.parametrize(
    "query",
    [
        {"until": "0001-01-01T00:00"},
        {"since": "9999-12-31T23:59"},
        {"since": "0001-01-01T00:00"},
        {"since": "2026-01-02T00:00", "until": "2026-01-01T00:00"},
        {"text": "sea or rain"},
        {"id": "req_1"},
        {"last": "hour", "outcome": "error", "profile": "a", "slower": "5"},
    ],
)
def test_every_search_has_a_page(auditor: Client, query: dict[str, str]):
    row(1, prompt="the sea")
    assert auditor.get(LOG, query).status_code == 200


def test_the_table_says_what_the_drawing_shows(auditor: Client):
    add(2, timezone.now() - timedelta(hours=2))
    add(1, timezone.now() - timedelta(hours=2), status=500)
    page = auditor.get(LOG).content.decode()
    assert page.count('class="log-requests"') == page.count('<th scope="row"><a href="?since=')
    assert "highest bar" in page
    assert "No requests in the last 24 hours." in auditor.get(LOG, {"model": "other"}).content.decode()


def test_requests_of_the_console_and_of_jobs_have_an_index():
    with connection.cursor() as cursor:
        for plan in ("seqscan", "bitmapscan", "sort"):  # what an empty table would be read by
            cursor.execute(f"SET LOCAL enable_{plan} = off")
    rows = LogSearch(source="job").rows().order_by("-created_at", "-id")[:50]
    assert "log_source_time" in rows.explain()
