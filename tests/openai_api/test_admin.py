"""The admin of keys."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client
from django.utils import timezone

from openai_api.keys.authentication import find_key, load_keys, snapshot
from openai_api.keys.record import KEY_START
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey, RequestLog

KEYS = "/admin/openai_api/apikey/"

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _cold_keys():
    snapshot.forget()
    yield
    snapshot.forget()


def staff(*permissions: str) -> Any:
    user = get_user_model().objects.create_user("staff", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


@pytest.fixture
def auditor(client: Client) -> Client:
    client.force_login(staff("view_requestlog", "view_apikey", "see_all_apikeys"))
    return client


def row(number: int = 0, **fields: Any) -> RequestLog:
    values: dict[str, Any] = {
        "id": f"req_{number}",
        "created_at": timezone.now(),
        "endpoint": "/v1/chat/completions",
        "model": "tiny",
        "status": 200,
    }
    return RequestLog.objects.create(**{**values, **fields})


def fields_of(user: Any, **more: Any) -> dict[str, Any]:
    fields = {"name": "laptop", "owner": user.pk, "priority": "0"}
    return {**fields, "min_intensity": "0", "max_intensity": "2", **more}


def test_a_new_key_is_shown_once(admin_client: Client, admin_user: Any):
    response = admin_client.post(KEYS + "add/", fields_of(admin_user))
    assert response.status_code == 200
    page = response.content.decode()
    start = page.index(KEY_START)
    plain = page[start : page.index("<", start)]
    key = ApiKey.objects.get()
    assert find_key(plain, load_keys()) is not None
    assert "no-store" in response["Cache-Control"]
    assert key.owner == admin_user
    for url in (KEYS, f"{KEYS}{key.pk}/change/", f"{KEYS}{key.pk}/history/"):
        later = admin_client.get(url)
        assert later.status_code == 200
        assert plain not in later.content.decode()
        assert key.digest not in later.content.decode()


def test_a_new_key_is_one_s_own_unless_one_says_otherwise(admin_client: Client, admin_user: Any):
    page = admin_client.get(KEYS + "add/").content.decode()
    assert f'<option value="{admin_user.pk}" selected>' in page
    assert "_addanother" not in page
    assert "_continue" not in page


def test_what_clients_are_told_is_said_with_the_key(admin_client: Client, admin_user: Any):
    page = admin_client.post(KEYS + "add/", fields_of(admin_user)).content.decode()
    assert "export OPENAI_BASE_URL=http://testserver/v1\nexport OPENAI_API_KEY=sk-millm-" in page


def test_changing_a_key_keeps_its_digest(admin_client: Client, admin_user: Any):
    created = create_api_key(name="a", owner=admin_user)
    data = fields_of(admin_user, name="b", digest="0" * 64, prefix="hacked", requests_per_minute="7")
    response = admin_client.post(f"{KEYS}{created.api_key.pk}/change/", data)
    assert response.status_code == 302
    key = ApiKey.objects.get()
    assert (key.name, key.requests_per_minute) == ("b", 7)
    assert (key.digest, key.prefix) == (created.api_key.digest, created.api_key.prefix)


def test_keys_are_revoked_by_an_action(admin_client: Client, admin_user: Any):
    created = create_api_key(name="a", owner=admin_user)
    data = {"action": "revoke", "_selected_action": [created.api_key.pk]}
    assert admin_client.post(KEYS, data).status_code == 302
    assert ApiKey.objects.get().revoked_at is not None
    assert load_keys() == {}
    assert b"revoked" in admin_client.get(KEYS).content


def test_deleting_a_key_keeps_its_log(admin_client: Client, admin_user: Any):
    key = create_api_key(name="a", owner=admin_user).api_key
    other = create_api_key(name="b", owner=admin_user).api_key
    row(1, api_key=key)
    assert admin_client.post(f"{KEYS}{key.pk}/delete/", {"post": "yes"}).status_code == 302
    data = {"action": "delete_selected", "_selected_action": [other.pk], "post": "yes"}
    assert admin_client.post(KEYS, data).status_code == 302
    assert not ApiKey.objects.exists()
    assert RequestLog.objects.get().api_key is None


def test_auditors_look_at_keys_and_change_nothing(auditor: Client, admin_user: Any):
    key = create_api_key(name="a", owner=admin_user).api_key
    page = auditor.get(KEYS)
    assert page.status_code == 200
    assert b'value="revoke"' not in page.content
    auditor.post(KEYS, {"action": "revoke", "_selected_action": [key.pk]})
    assert ApiKey.objects.get().revoked_at is None
    assert auditor.get(f"{KEYS}{key.pk}/change/").status_code == 200
    assert auditor.post(f"{KEYS}{key.pk}/change/", {"name": "b"}).status_code == 403
    assert auditor.get(KEYS + "add/").status_code == 403
    assert auditor.post(f"{KEYS}{key.pk}/delete/", {"post": "yes"}).status_code == 403
