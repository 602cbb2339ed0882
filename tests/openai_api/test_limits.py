"""Limits of a key: buckets on a clock of ours, headers, and 429."""

from __future__ import annotations

import pytest

from core.errors import MillmError
from openai_api.keys.limits import Limits, TokenBucket
from openai_api.keys.record import KeyRecord
from tests.openai_api.conftest import Api, Clock, chunks_of


def test_a_bucket_refills_within_a_minute():
    bucket = TokenBucket(60, now=0)
    bucket.take(60, now=0)
    assert bucket.level(now=0) == 0
    assert bucket.wait_s(1, now=0) == pytest.approx(1)
    assert bucket.level(now=30) == 30
    assert bucket.level(now=1_000) == 60


def test_a_bucket_can_owe():
    bucket = TokenBucket(60, now=0)
    bucket.take(90, now=0)
    assert bucket.wait_s(1, now=0) == pytest.approx(31)


def test_a_changed_limit_keeps_what_was_used():
    bucket = TokenBucket(10, now=0)
    bucket.take(8, now=0)
    bucket.resize(100, now=0)
    assert bucket.level(now=0) == 92


async def test_requests_per_minute(api: Api):
    headers = api.keys.add("key", requests_per_minute=2)
    first = await api.chat(headers)
    assert first["x-ratelimit-limit-requests"] == "2"
    assert first["x-ratelimit-remaining-requests"] == "1"
    assert first["x-ratelimit-reset-requests"] == "30s"
    assert (await api.chat(headers)).status_code == 200
    refused = await api.chat(headers)
    assert refused.status_code == 429
    assert refused["Retry-After"] == "30"
    assert refused["x-ratelimit-remaining-requests"] == "0"
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
    assert api.log.entries[-1].status == 429
    assert api.log.entries[-1].api_key_id == 1
    api.clock.now += 30
    assert (await api.chat(headers)).status_code == 200


async def test_tokens_per_minute(api: Api):
    headers = api.keys.add("key", tokens_per_minute=100)
    response = await api.chat(headers, max_tokens=50)
    assert response.status_code == 200
    after = await api.client.get("/v1/models", headers=headers)
    assert after["x-ratelimit-remaining-tokens"] == "87", "what was reserved and not used is given back"
    assert (await api.chat(headers, max_tokens=50)).status_code == 200
    refused = await api.chat(headers, max_tokens=90)
    assert refused.status_code == 429
    assert int(refused["Retry-After"]) >= 1
    assert api.engine.requests[-1].sampling.max_tokens == 50, "refused before submit"
    api.clock.now += 60
    assert (await api.chat(headers, max_tokens=90)).status_code == 200


async def test_a_request_larger_than_the_bucket_takes_all_of_it(api: Api):
    headers = api.keys.add("key", tokens_per_minute=10)
    assert (await api.chat(headers, max_tokens=90)).status_code == 200
    assert (await api.chat(headers, max_tokens=90)).status_code == 429


async def test_concurrent_requests(api: Api):
    headers = api.keys.add("key", max_concurrent_requests=1)
    running = await api.chat(headers, stream=True)
    refused = await api.chat(headers)
    assert refused.status_code == 429
    assert refused["Retry-After"] == "1"
    await chunks_of(running)
    assert (await api.chat(headers)).status_code == 200


@pytest.mark.parametrize("body", [{"temperature": 9}, {"profile": "nope"}])
async def test_refused_requests_give_their_place_back(api: Api, body: dict[str, object]):
    headers = api.keys.add("key", max_concurrent_requests=1, tokens_per_minute=1_000)
    for _ in range(3):
        assert (await api.chat(headers, **body)).status_code in {400, 404}
    response = await api.chat(headers)
    assert response.status_code == 200


async def test_keys_without_limits_have_no_headers(api: Api):
    response = await api.chat(api.keys.add("key"))
    assert not any(name.lower().startswith("x-ratelimit") for name in response.headers)


async def test_keys_do_not_share_limits(api: Api):
    one, other = api.keys.add("one", requests_per_minute=1), api.keys.add("other", requests_per_minute=1)
    assert (await api.chat(one)).status_code == 200
    assert (await api.chat(other)).status_code == 200
    assert (await api.chat(one)).status_code == 429


def test_a_limit_of_zero_admits_nothing():
    with pytest.raises(MillmError, match="0 requests per minute"):
        Limits(Clock()).admit(KeyRecord(1, "k", "d", requests_per_minute=0))


def test_a_lease_closes_once():
    limits = Limits(Clock())
    key = KeyRecord(1, "k", "d", max_concurrent_requests=1)
    lease = limits.admit(key)
    lease.close(0)
    lease.close(0)
    limits.admit(key)
    with pytest.raises(MillmError):
        limits.admit(key)


@pytest.mark.parametrize(("per_minute", "reset"), [(120, "500ms"), (60, "1s"), (25, "2.4s")])
def test_resets_are_written_as_openai_does(per_minute: int, reset: str):
    limits = Limits(Clock())
    key = KeyRecord(1, "k", "d", requests_per_minute=per_minute)
    limits.admit(key)
    assert limits.headers(key)["x-ratelimit-reset-requests"] == reset
