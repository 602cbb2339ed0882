"""Who may ask: header forms, wrong keys, loopback, and keys in the database."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from django.test import RequestFactory
from django.utils import timezone

from audit.models import AuditEvent
from core.runtime import runtime
from openai_api.backend import BACKEND, Backend
from openai_api.http.client_address import client_address, is_loopback
from openai_api.keys.authentication import find_key, load_keys, snapshot
from openai_api.keys.record import KEY_START, digest_of, new_key
from openai_api.keys.services import change_api_key, create_api_key, delete_api_keys, revoke_api_keys
from openai_api.models import ApiKey
from tests.openai_api.conftest import Api
from tests.openai_api.connection import Connection

MODELS = "/v1/models"
PROXY_HEADERS = (
    *("CF-Connecting-IP", "CF-Connecting-IPv6", "CF-Ray", "CDN-Loop", "True-Client-IP", "Fastly-Client-IP"),
    *("X-Client-IP", "X-Cluster-Client-IP", "X-Azure-ClientIP", "X-Azure-SocketIP", "X-Original-Forwarded-For"),
    *("X-Envoy-External-Address", "X-Appengine-User-IP", "Fly-Client-IP", "X-Vercel-Forwarded-For", "X-Vercel-Id"),
    *(
        "X-NF-Client-Connection-IP",
        "DO-Connecting-IP",
        "X-ProxyUser-IP",
        "Tailscale-User-Login",
        "CloudFront-Viewer-Address",
    ),
    *("Akamai-Origin-Hop", "X-Sucuri-ClientIP", "Incap-Client-IP", "Forwarded-For", "X-Forwarded", "X-Forwarded-Host"),
    *("X-Forwarded-Port", "X-Forwarded-Proto", "X-Forwarded-Server", "Client-IP", "WL-Proxy-Client-IP"),
    *("X-Remote-Addr", "X-Original-For", "X-Original-Host", "X-Amz-Cf-Id", "ngrok-trace-id"),
)


@pytest.fixture
def required(api: Api, settings: Any) -> Api:
    settings.MILLM_AUTH = "required"
    api.keys.add("sk-millm-good")
    return api


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer sk-millm-good"},
        {"Authorization": "bearer   sk-millm-good "},
        {"api-key": "sk-millm-good"},
        {"x-api-key": "sk-millm-good"},
    ],
    ids=repr,
)
async def test_all_header_forms_are_one(required: Api, headers: dict[str, str]):
    assert (await required.client.get(MODELS, headers=headers)).status_code == 200
    assert required.log.only.api_key_id == 1


WRONG: list[dict[str, str]] = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer sk-millm-bad"},
    {"Authorization": "Bearer sk-millm-good x"},
    {"Authorization": "Bearer SK-MILLM-GOOD"},
    {"Authorization": "sk-millm-good"},
    {"Authorization": "Basic sk-millm-good"},
    {"Authorization": "Basic x", "api-key": "sk-millm-good"},
    {"Authorization": "Bearer ' OR 1=1 --"},
    {"Authorization": "Bearer sk-millm-good\0"},
    {"Authorization": "Bearer \u00e9\u00ff"},
    {"Authorization": "Bearer " + "x" * 1_000_000},
    {"api-key": ""},
    {"x-api-key": "none"},
]


@pytest.mark.parametrize("headers", WRONG, ids=lambda headers: repr(headers)[:50])
async def test_all_wrong_keys_get_the_same_answer(required: Api, headers: dict[str, str]):
    response = await required.client.get(MODELS, headers=headers)
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert response.json()["error"] == {
        "message": "Incorrect API key provided, or none. Send a key of this server as `Authorization: Bearer <key>`.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    entry = required.log.only
    assert (entry.status, entry.error_code, entry.api_key_id) == (401, "invalid_api_key", None)
    assert "sk-millm" not in repr(entry)


async def test_the_log_has_the_beginning_of_the_secret_that_was_sent(required: Api):
    good, revoked = new_key(), new_key()
    headers = required.keys.add(good, prefix=good[:13])
    assert (await required.client.get(MODELS, headers=headers)).status_code == 200
    for secret in (revoked, f"{revoked}x", "sk-proj-" + "x" * 44):
        assert (await required.client.get(MODELS, headers={"api-key": secret})).status_code == 401
    assert [entry.key_prefix for entry in required.log.entries] == [good[:13], revoked[:13], "", ""]
    assert revoked[:14] not in repr(required.log.entries)


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/chat/completions", "/v1/models/tiny"])
async def test_every_route_asks_for_the_key(required: Api, path: str):
    assert (await required.client.delete(path)).status_code == 401


async def test_an_expired_key_is_a_wrong_one(required: Api):
    required.keys.records.clear()
    headers = required.keys.add("old", expires_at=timezone.now() - timedelta(seconds=1))
    assert (await required.client.get(MODELS, headers=headers)).status_code == 401
    headers = required.keys.add("new", expires_at=timezone.now() + timedelta(hours=1))
    assert (await required.client.get(MODELS, headers=headers)).status_code == 200


async def test_keys_in_a_database_that_is_away(required: Api):
    required.keys.failure = OperationalError("connection refused to 10.0.0.5")
    response = await required.client.get(MODELS, headers={"api-key": "x"})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "database_unavailable"
    assert "10.0.0.5" not in response.json()["error"]["message"]
    assert "Retry-After" in response.headers


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Authorization": "Bearer "}, 200),
        ({"Authorization": "Bearer EMPTY"}, 200),
        ({"x-api-key": "DUMMY_KEY"}, 200),
        ({"Authorization": "Bearer sk-millm-unknown"}, 401),
        ({"Authorization": "Bearer sk-anything"}, 401),
        ({"X-Forwarded-For": "203.0.113.9"}, 401),
        ({"X-Forwarded-For": "127.0.0.1, 203.0.113.9"}, 401),
        ({"X-Forwarded-For": "127.0.0.1", "X-Real-Ip": "203.0.113.9"}, 401),
        ({"Forwarded": "for=127.0.0.1"}, 401),
        ({"Via": "1.1 proxy"}, 401),
        ({"X-Forwarded-For": "junk"}, 401),
        ({"X-Forwarded-For": "127.0.0.1"}, 200),
        *[({name: "203.0.113.9"}, 401) for name in PROXY_HEADERS],
        *[({name: "127.0.0.1"}, 401) for name in PROXY_HEADERS],
        ({"X-Forwarded-For": "127.0.0.1", "CF-Connecting-IP": "203.0.113.9"}, 401),
        # pages of other sites, open in a browser on this machine
        ({"Origin": "https://evil.example"}, 401),
        ({"Origin": "null"}, 401),
        ({"Origin": ""}, 401),
        ({"Origin": "http://testserver.evil.example"}, 401),
        ({"Origin": "http://testserver:81"}, 401),
        ({"Origin": "https://evil.example", "api-key": "none"}, 401),
        ({"Sec-Fetch-Site": "cross-site"}, 401),
        ({"Sec-Fetch-Site": "same-site"}, 401),
        ({"Origin": "http://testserver"}, 200),
        ({"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, 200),
    ],
    ids=repr,
)
async def test_anonymous_on_loopback(api: Api, headers: dict[str, str], status: int):
    assert (await api.client.get(MODELS, headers=headers)).status_code == status


@pytest.mark.parametrize("address", ["203.0.113.9", "10.0.0.1", "::ffff:10.0.0.1"])
async def test_others_need_a_key(api: Api, address: str):
    assert await Connection({}, MODELS, method="GET", address=address).status() == 401
    headers = {"api-key": "none"}
    assert await Connection({}, MODELS, method="GET", address=address, headers=headers).status() == 401
    assert not is_loopback(RequestFactory().get(MODELS, REMOTE_ADDR=address))


def test_a_peer_without_an_address_is_not_on_loopback():
    assert not is_loopback(RequestFactory().get(MODELS, REMOTE_ADDR=""))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_addresses(address: str, settings: Any):
    assert is_loopback(RequestFactory().get(MODELS, REMOTE_ADDR=address))
    settings.MILLM_TRUSTED_PROXIES = ()
    assert not is_loopback(RequestFactory().get(MODELS, REMOTE_ADDR=address, headers={"X-Forwarded-For": "127.0.0.1"}))


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("203.0.113.9", "", "203.0.113.9"),
        ("203.0.113.9", "198.51.100.1", "203.0.113.9"),
        ("127.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "1.2.3.4, 198.51.100.1", "198.51.100.1"),
        ("127.0.0.1", "198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("127.0.0.1", "junk", None),
        ("::1", "", "::1"),
        ("fe80::1%eth0", "", "fe80::1"),
        ("", "", None),
    ],
)
def test_the_clients_address(settings: Any, peer: str, forwarded: str, expected: str | None):
    settings.MILLM_TRUSTED_PROXIES = ("127.0.0.1", "10.0.0.0/8")
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    assert client_address(RequestFactory().get("/", REMOTE_ADDR=peer, headers=headers)) == expected


@pytest.fixture
def owner(db: None) -> Any:
    snapshot.forget()
    yield get_user_model().objects.create_user("owner")
    snapshot.forget()


def test_a_key_is_kept_as_a_digest_only(owner: Any):
    created = create_api_key(name="laptop", owner=owner)
    assert created.plain.startswith(KEY_START)
    row = ApiKey.objects.get()
    assert created.plain.startswith(row.prefix)
    assert len(row.prefix) < len(created.plain) / 2
    values = " ".join(str(getattr(row, field.attname)) for field in row._meta.concrete_fields)
    assert created.plain not in values
    assert row.digest == digest_of(created.plain) != digest_of(created.plain + "x")
    assert find_key(created.plain, load_keys()) == row.record()


def test_keys_that_cannot_be_used_are_not_loaded(owner: Any):
    usable = create_api_key(name="a", owner=owner)
    revoked = create_api_key(name="b", owner=owner)
    revoke_api_keys(keys=ApiKey.objects.filter(name="b"))
    assert set(load_keys()) == {usable.api_key.digest}
    assert not ApiKey.objects.get(pk=revoked.api_key.pk).is_usable
    owner.is_active = False
    owner.save()
    assert load_keys() == {}


def test_fields_are_validated(owner: Any):
    with pytest.raises(ValidationError):
        create_api_key(name="x" * 200, owner=owner)


@pytest.mark.django_db(transaction=True)
def test_the_snapshot_follows_every_write():
    snapshot.forget()
    owner = get_user_model().objects.create_user("owner")
    created = create_api_key(name="a", owner=owner)
    assert find_key(created.plain, snapshot.get()) is not None
    key = created.api_key
    key.default_profile = "gloomy"
    change_api_key(api_key=key)
    assert snapshot.get()[key.digest].default_profile == "gloomy"
    owner.is_active = False
    owner.save()
    assert snapshot.get() == {}
    owner.is_active = True
    owner.save()
    assert revoke_api_keys(keys=ApiKey.objects.all()) == 1
    assert revoke_api_keys(keys=ApiKey.objects.all()) == 0
    assert snapshot.get() == {}
    delete_api_keys(keys=ApiKey.objects.all())
    assert not ApiKey.objects.exists()
    snapshot.forget()


@pytest.mark.django_db(transaction=True)
async def test_a_key_of_the_database_opens_the_door(api: Api, settings: Any):

    settings.MILLM_AUTH = "required"
    snapshot.forget()
    runtime.install(BACKEND, Backend(lambda: api.engine, lambda: api.registry))
    owner = await get_user_model().objects.acreate_user("owner")
    created = await sync_to_async(create_api_key)(name="a", owner=owner, requests_per_minute=5)
    headers = {"Authorization": f"Bearer {created.plain}"}
    response = await api.client.get(MODELS, headers=headers)
    assert response.status_code == 200
    assert response["x-ratelimit-limit-requests"] == "5"
    await sync_to_async(revoke_api_keys)(keys=ApiKey.objects.all())
    assert (await api.client.get(MODELS, headers=headers)).status_code == 401
    snapshot.forget()
    await sync_to_async(connections.close_all)()


def test_the_command_prints_the_key_once(owner: Any):
    out = StringIO()
    arguments = [
        "ci",
        "--user",
        "owner",
        "--allow-model",
        "tiny",
        "--requests-per-minute",
        "9",
        "--expires-in-days",
        "3",
    ]
    call_command("create_api_key", *arguments, stdout=out, stderr=StringIO())
    row = ApiKey.objects.get()
    assert out.getvalue().strip().startswith(row.prefix)
    assert find_key(out.getvalue().strip(), load_keys()) is not None
    assert (row.allowed_models, row.requests_per_minute) == (["tiny"], 9)
    assert row.expires_at is not None


def test_the_command_sets_every_right_of_steering(owner: Any):
    options = ["--default-profile", "calm@2", "--allow-profile", "calm", "--allow-profile", "cats", "--allow-inline"]
    options += ["--min-intensity", "0.5", "--max-intensity", "1.5"]
    out = StringIO()
    call_command("create_api_key", "ci", "--user", "owner", *options, stdout=out, stderr=StringIO())
    key = find_key(out.getvalue().strip(), load_keys())
    assert key is not None
    assert (key.default_profile, key.allowed_profiles) == ("calm@2", frozenset({"calm", "cats"}))
    assert (key.may_steer_inline, key.min_intensity, key.max_intensity) == (True, 0.5, 1.5)
    changes = AuditEvent.objects.get(kind="openai_api.apikey").changes
    assert changes["default_profile"] == ["", "calm@2"]
    assert changes["allowed_profiles"] == [[], ["calm", "cats"]]
    assert (changes["may_steer_inline"], changes["min_intensity"]) == ([False, True], [0.0, 0.5])


def test_the_command_says_nothing_of_rights_that_nobody_gave(owner: Any):
    call_command("create_api_key", "ci", "--user", "owner", stdout=StringIO(), stderr=StringIO())
    assert set(AuditEvent.objects.get(kind="openai_api.apikey").changes) == {"name", "owner"}


@pytest.mark.parametrize(
    "option", ["--min-intensity=1.1", "--max-intensity=0.9", "--max-intensity=2.1", "--min-intensity=nan"]
)
def test_the_command_refuses_ranges_without_one(owner: Any, option: str):
    with pytest.raises(CommandError):
        call_command("create_api_key", "ci", "--user", "owner", option, stdout=StringIO(), stderr=StringIO())
    assert not ApiKey.objects.exists()


def test_the_command_names_what_is_wrong(owner: Any):
    with pytest.raises(CommandError, match="The user `nobody` does not exist"):
        call_command("create_api_key", "x", "--user", "nobody")
    with pytest.raises(CommandError, match="at most 100"):
        call_command("create_api_key", "x" * 101, "--user", "owner")


async def test_the_key_s_priority_reaches_the_engine(api: Api):
    headers = api.keys.add("urgent", priority=7)
    await api.chat(headers)
    assert [request.priority for request in api.engine.requests] == [7]
