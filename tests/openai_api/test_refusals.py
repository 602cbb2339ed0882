"""Requests without a valid key fill neither the log's table nor its memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from core.runtime import runtime
from openai_api.keys.services import create_api_key
from openai_api.models import RequestLog
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.refusals import MAX_KINDS, ROWS_OF_ALL, ROWS_PER_ADDRESS, WINDOW_S, Refusals
from openai_api.request_log.retention import Retention, prune_log
from openai_api.request_log.store import LogStore
from openai_api.request_log.writer import LOG_WRITER, LogWriter
from tests.openai_api.test_log_writer import FakeStore, entry


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(number: int = 0, **fields: Any) -> LogEntry:
    given = {"status": 401, "error_code": "invalid_api_key", "client_address": "192.0.2.1"}
    return entry(number, **{**given, **fields})


def flood(refusals: Refusals, count: int, **fields: Any) -> int:
    """How many of so many get a row of their own."""
    return sum(refusals.keeps(refused(number, **fields)) for number in range(count))


def test_an_address_gets_some_rows_and_then_one_for_the_rest():
    clock = Clock()
    refusals = Refusals(clock)
    assert flood(refusals, 1_000) == ROWS_PER_ADDRESS
    assert refusals.due() == []
    clock.now = WINDOW_S
    (summary,) = refusals.due()
    assert summary.parameters == {"refusals": 1_000 - ROWS_PER_ADDRESS}
    assert (summary.status, summary.error_code, summary.client_address) == (401, "invalid_api_key", "192.0.2.1")
    assert "990 more such requests from 192.0.2.1" in summary.error_message
    assert refusals.due() == []
    clock.now += 1
    assert flood(refusals, 1_000) == ROWS_PER_ADDRESS


def test_many_addresses_share_a_bound_too():
    refusals = Refusals(Clock())
    kept = sum(flood(refusals, 20, client_address=f"10.0.{number // 250}.{number % 250}") for number in range(3_000))
    assert kept == ROWS_OF_ALL
    summaries = refusals.due(all_of_them=True)
    assert len(summaries) <= MAX_KINDS + 1
    assert kept + sum(each.parameters["refusals"] for each in summaries) == 60_000
    assert {each.client_address for each in summaries} >= {None}


def test_an_ipv6_network_is_one_address():
    refusals = Refusals(Clock())
    assert sum(flood(refusals, 1, client_address=f"2001:db8::{number:x}") for number in range(100)) == ROWS_PER_ADDRESS


def test_nothing_else_is_counted():
    refusals = Refusals(Clock())
    for fields in ({"status": 200}, {"status": 400}, {"status": 503}, {"status": 401, "api_key_id": 1}):
        assert flood(refusals, 50, **fields) == 50
    assert flood(refusals, 50, status=404, endpoint="/v1/models/{id}") == 50
    assert flood(refusals, 50, status=404, endpoint="/v1/*", api_key_id=1) == 50
    assert flood(refusals, 50, status=404, endpoint="/v1/*") == ROWS_PER_ADDRESS


def test_a_client_s_own_words_are_not_in_the_row():
    refusals = Refusals(Clock())
    flood(refusals, 20, id="chosen", user="me", error_message="quoted", model="x", prompt="p")
    (summary,) = refusals.due(all_of_them=True)
    assert summary.id.startswith("req_")
    assert (summary.user, summary.model, summary.prompt) == ("", "", "")


def test_the_writer_writes_what_was_counted():
    store, clock = FakeStore(), Clock()
    writer = LogWriter(store, refusals=Refusals(clock))
    writer.start()
    for number in range(500):
        writer.write(refused(number))
    assert writer.flush(5)
    assert len(store.written) == ROWS_PER_ADDRESS + 1
    for number in range(500, 600):
        writer.write(refused(number))
    writer.stop()
    assert sum(one.parameters.get("refusals", 1) for one in store.written) == 600


@pytest.mark.django_db(transaction=True)
async def test_a_flood_of_wrong_keys_and_addresses_writes_few_rows(async_client: Any, settings: Any):
    settings.MILLM_AUTH = "required"
    writer = LogWriter(LogStore())
    runtime.install(LOG_WRITER, writer)
    try:
        writer.start()
        for number in range(40):
            path = "/v1/models" if number % 2 else f"/v1/nothing-{number}"
            response = await async_client.get(path, headers={"authorization": f"Bearer wrong-{number}"})
            assert response.status_code == 401
        assert writer.flush(20)
    finally:
        writer.stop()
        runtime.remove(LOG_WRITER)
    rows = [row async for row in RequestLog.objects.all()]
    assert len(rows) == ROWS_PER_ADDRESS + 2  # one for each endpoint
    assert sum(row.parameters.get("refusals", 1) for row in rows) == 40


@pytest.mark.django_db
def test_refusals_have_a_retention_of_their_own(admin_user: User):
    key = create_api_key(name="k", owner=admin_user).api_key
    old = timezone.now() - timedelta(days=8)
    common = {"created_at": old, "client_address": None}
    rows = {
        "wrong-key": {"status": 401, "endpoint": "/v1/models"},
        "nowhere": {"status": 404, "endpoint": "/v1/*"},
        "of-a-key": {"status": 404, "endpoint": "/v1/*", "api_key": key},
        "unknown-model": {"status": 404, "endpoint": "/v1/chat/completions"},
        "fine": {"status": 200, "endpoint": "/v1/chat/completions"},
    }
    for name, fields in rows.items():
        RequestLog.objects.create(id=name, **{**common, **fields})
    RequestLog.objects.create(id="young", status=401, endpoint="/v1/models", created_at=timezone.now())
    assert prune_log(retention=Retention(days=0, text_days=0, refusal_days=7)).rows == 2
    assert set(RequestLog.objects.values_list("pk", flat=True)) == {"of-a-key", "unknown-model", "fine", "young"}
