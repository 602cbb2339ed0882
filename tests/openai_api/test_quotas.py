"""Daily quotas: held exactly, counted once, kept in Postgres."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from core.errors import MillmError
from core.runtime import runtime
from openai_api.keys.authentication import load_keys
from openai_api.keys.limits import RATE_LIMITS, Limits
from openai_api.keys.quotas import Quotas
from openai_api.keys.record import DayUse, KeyRecord
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey, KeyDay, RequestLog
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.store import LogStore
from tests.openai_api.conftest import Api

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass
class Wall:
    """A clock of the day."""

    now: datetime = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def wall(api: Api) -> Wall:
    wall = Wall()
    runtime.install(RATE_LIMITS, Limits(api.clock, Quotas(wall)))
    return wall


def key(**fields: Any) -> KeyRecord:
    return KeyRecord(**{"pk": 1, "name": "k", "digest": "d", **fields})


async def test_requests_of_a_day(api: Api, wall: Wall):
    headers = api.keys.add("key", requests_per_day=2)
    statuses = [(await api.chat(headers)).status_code for _ in range(2)]
    refused = await api.chat(headers)
    error = refused.json()["error"]
    left_s = round(
        (datetime.combine(wall.now.date() + timedelta(days=1), time(), tzinfo=UTC) - wall.now).total_seconds()
    )
    wall.now += timedelta(hours=12)

    assert statuses == [200, 200]
    assert (refused.status_code, error["type"], error["code"]) == (429, "insufficient_quota", "insufficient_quota")
    assert (refused["x-should-retry"], refused["Retry-After"]) == ("false", str(left_s))
    assert api.log.entries[-1].error_code == "insufficient_quota"
    assert (await api.chat(headers)).status_code == 200


async def test_tokens_of_a_day_are_reserved_and_given_back(api: Api, wall: Wall):
    headers = api.keys.add("key", tokens_per_day=80)
    assert (await api.chat(headers, max_tokens=50)).status_code == 200  # uses 4 + 9 of 54
    assert (await api.chat(headers, max_tokens=50)).status_code == 200  # 26 are used
    refused = await api.chat(headers, max_tokens=70)

    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert "54 of 80 tokens are left" in refused.json()["error"]["message"]
    assert (await api.chat(headers, max_tokens=50)).status_code == 200, "a refused one uses nothing"


async def test_a_restart_goes_on_where_the_database_was(api: Api, wall: Wall):
    headers = api.keys.add("key", requests_per_day=10, used=DayUse(NOON.date(), 10, 0))
    old = api.keys.add("old", requests_per_day=10, used=DayUse(NOON.date() - timedelta(days=1), 10, 0))

    assert (await api.chat(headers)).status_code == 429
    assert (await api.chat(old)).status_code == 200, "that was yesterday"


async def test_one_refused_by_another_limit_does_not_count(api: Api, wall: Wall):
    headers = api.keys.add("key", requests_per_day=2, requests_per_minute=1)
    statuses = []
    for _ in range(3):
        statuses.append((await api.chat(headers)).status_code)
        statuses.append((await api.chat(headers)).status_code)
        api.clock.now += 60

    assert statuses == [200, 429, 200, 429, 429, 429]


async def test_only_admitted_requests_are_metered(api: Api, wall: Wall):
    headers = api.keys.add("key", requests_per_day=1)
    await api.chat(headers)
    await api.chat(headers)

    assert [entry.is_metered for entry in api.log.entries] == [True, False]


@given(amounts=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), limit=st.integers(0, 100))
def test_a_day_never_holds_more_than_its_quota(amounts: list[tuple[int, int]], limit: int):
    """Whatever is reserved, and less of it used."""
    quotas, used = Quotas(lambda: NOON), 0
    for reserved, wanted in amounts:
        draw = None
        try:
            draw = quotas.admit(key(tokens_per_day=limit))
            draw.reserve_tokens(reserved)
        except MillmError:
            if draw is not None:
                draw.settle(0)
            assert used + reserved > limit or used >= limit
            continue
        draw.settle(min(wanted, reserved))
        used += min(wanted, reserved)
        assert used <= limit


def test_what_ends_after_midnight_leaves_the_new_day_alone():
    wall = Wall(NOON)
    quotas = Quotas(wall)
    limited = key(tokens_per_day=10)
    late = quotas.admit(limited)
    late.reserve_tokens(10)
    wall.now += timedelta(days=1)
    quotas.admit(limited).reserve_tokens(10)
    late.settle(0)

    with pytest.raises(MillmError, match="exceeded: 10 tokens"):
        quotas.admit(limited)


def entry(number: int, api_key: ApiKey, **fields: Any) -> LogEntry:
    own = {"api_key_id": api_key.pk, "is_metered": True, "prompt_tokens": 3, "completion_tokens": 4, "status": 200}
    created_at = fields.pop("created_at", timezone.now())
    return LogEntry(f"req_q{number}", created_at, "/v1/chat/completions", None, **{**own, **fields})


@pytest.fixture
def stored_key(db: None) -> ApiKey:
    owner = get_user_model().objects.create_user("quota-owner")
    return create_api_key(name="k", owner=owner, requests_per_day=5, tokens_per_day=100).api_key


def test_the_log_writes_days_down(stored_key: ApiKey):
    yesterday = timezone.now() - timedelta(days=1)
    entries = [
        entry(1, stored_key),
        entry(2, stored_key, completion_tokens=0),
        entry(3, stored_key, is_metered=False, status=429),
        entry(4, stored_key, created_at=yesterday),
    ]
    store = LogStore()
    store.insert(entries)
    store.insert(entries)  # once more, as after a lost connection
    store.insert([entry(5, stored_key)])

    days = {day.day: (day.requests, day.tokens) for day in KeyDay.objects.all()}
    assert days == {timezone.now().date(): (3, 17), yesterday.date(): (1, 7)}
    assert RequestLog.objects.count() == 5
    assert load_keys()[stored_key.digest].used == DayUse(timezone.now().date(), 3, 17)


def test_a_new_process_knows_the_day(stored_key: ApiKey):
    LogStore().insert([entry(number, stored_key) for number in range(5)])
    record = load_keys()[stored_key.digest]

    with pytest.raises(MillmError) as caught:
        Quotas().admit(record)
    assert caught.value.code == "insufficient_quota"


def test_the_admin_shows_it(stored_key: ApiKey, admin_client: Client):
    LogStore().insert([entry(1, stored_key)])
    page = admin_client.get(reverse("admin:openai_api_apikey_change", args=[stored_key.pk])).content.decode()
    days = admin_client.get(reverse("admin:openai_api_keyday_changelist")).content.decode()

    assert "1 requests, 7 tokens" in page
    assert stored_key.name in days
    assert str(timezone.now().year) in days
    assert admin_client.get(reverse("admin:openai_api_keyday_add")).status_code == 403
