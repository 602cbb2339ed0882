"""The admin of keys and of the request log."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.models import LanguageModel
from openai_api.keys import KEY_START, find_key, load_keys, snapshot
from openai_api.log_paginator import estimated_rows
from openai_api.models import ApiKey, RequestLog
from openai_api.services import create_api_key
from steering.models import ProfileVersion, SteeringProfile

KEYS = "/admin/openai_api/apikey/"
LOG = "/admin/openai_api/requestlog/"

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
    fields = {"name": "laptop", "owner": user.pk, "allowed_models": "", "allowed_profiles": "", "priority": "0"}
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


def test_the_log_is_read_only_even_for_admins(admin_client: Client):
    one = row(1)
    assert admin_client.get(f"{LOG}{one.pk}/change/").status_code == 200
    assert admin_client.post(f"{LOG}{one.pk}/change/", {"model": "x"}).status_code == 403
    assert admin_client.post(f"{LOG}{one.pk}/delete/", {"post": "yes"}).status_code == 403
    assert admin_client.get(LOG + "add/").status_code == 403
    admin_client.post(LOG, {"action": "delete_selected", "_selected_action": [one.pk], "post": "yes"})
    assert RequestLog.objects.get().model == "tiny"


def test_the_log_needs_its_permission(client: Client):
    client.force_login(staff("view_apikey", "see_all_apikeys"))
    assert client.get(LOG).status_code == 403


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {1, 2, 3, 4, 5}),
        ("q=req_1", {1}),
        ("q=eq_1", set()),
        ("q=ann", {2}),
        ("q=the+sea", {3}),
        ("q=(a%2B)%2B%24", set()),
        ("outcome=ok", {1, 2, 3}),
        ("outcome=refused", {5}),
        ("outcome=left", {4}),
        ("outcome=junk", {1, 2, 3, 4, 5}),
        ("of=other", {2}),
        ("with=gloomy", {3}),
        ("with=-", {1, 2, 4, 5}),
        ("at=/v1/completions", {1}),
        ("stream__exact=1", {4}),
    ],
)
def test_the_log_is_filtered_and_searched(auditor: Client, query: str, found: set[int]):
    LanguageModel.objects.create(name="other", source="x")
    row(1, endpoint="/v1/completions")
    row(2, model="other", user="ann")
    row(3, profile="gloomy@3", prompt="I like the sea.")
    row(4, stream=True, error_code="client_disconnected")
    row(5, status=401, error_code="invalid_api_key")
    page = auditor.get(f"{LOG}?{query}")
    assert page.status_code == 200
    assert {int(one.pk.removeprefix("req_")) for one in page.context["cl"].queryset} == found


def test_a_key_filters_the_log(auditor: Client, admin_user: Any):
    key = create_api_key(name="a", owner=admin_user).api_key
    row(1, api_key=key)
    row(2)
    page = auditor.get(f"{LOG}?api_key__id__exact={key.pk}")
    assert [one.pk for one in page.context["cl"].queryset] == ["req_1"]


def test_a_large_log_is_not_counted(auditor: Client):
    row(1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pg_class SET reltuples = 123456 WHERE relname = 'openai_api_requestlog'")
    assert estimated_rows("openai_api_requestlog") == 123456
    with CaptureQueriesContext(
        connection,
    ) as queries:
        page = auditor.get(LOG)
    assert page.context["cl"].paginator.count == 123456
    assert not any("COUNT(" in query["sql"] and "openai_api_requestlog" in query["sql"] for query in queries)
    assert auditor.get(LOG + "?outcome=ok").context["cl"].paginator.count == 1


EVIL = "<script>alert(1)</script>"


def test_the_detail_page_is_readable_and_escapes_everything(auditor: Client):
    one = row(
        1,
        prompt='[{"role": "user", "content": "line one\\nline <b>two"}, {"role": "tool", "content": "x", "id": 7}]',
        completion=EVIL,
        user=EVIL,
        error_message=EVIL,
        parameters={"stop": [EVIL], "temperature": 0.5},
        queue_ms=1.2,
        ttft_ms=20,
        total_ms=2345.6,
        prompt_tokens=12,
        cached_tokens=8,
        completion_tokens=34,
        fingerprint="abc",
        steering_expected=5,
        steering_applied=5,
    )
    page = auditor.get(f"{LOG}{one.pk}/change/").content.decode()
    assert EVIL not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4
    assert '<h4 class="log-role">user</h4><pre>line one\nline &lt;b&gt;two</pre>' in page
    assert "12 (8 cached) → 34" in page
    assert "2.35 s" in page
    assert "5 of 5 layer applications" in page
    assert "&quot;temperature&quot;: 0.5" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('["one", "two"]', '<h4 class="log-role">#0</h4><pre>one</pre><h4 class="log-role">#1</h4><pre>two</pre>'),
        ("[1, 2]", "<pre>[1, 2]</pre>"),
        ("[not json", "<pre>[not json</pre>"),
        ("[" * 100_000, "<pre>[[["),
        ("plain", "<pre>plain</pre>"),
        ('[{"role": "user", "content": [{"type": "text", "text": "part"}]}]', "&quot;part&quot;"),
        ('[{"role": "assistant", "content": null, "tool_calls": [1]}]', "&quot;tool_calls&quot;"),
    ],
    ids=lambda value: value[:20],
)
def test_texts_of_all_kinds_are_shown(auditor: Client, text: str, shown: str):
    one = row(1, prompt=text)
    assert shown in auditor.get(f"{LOG}{one.pk}/change/").content.decode()


def test_a_row_links_to_its_profile_version(admin_client: Client):
    model = LanguageModel.objects.create(name="tiny", source="x")
    profile = SteeringProfile.objects.create(name="gloomy", model=model)
    version = ProfileVersion.objects.create(profile=profile, number=3, edits=[], fingerprint="abc")
    one, gone = row(1, profile="gloomy@3"), row(2, profile="gloomy@4")
    page = admin_client.get(f"{LOG}{one.pk}/change/").content.decode()
    links = (f'href="/admin/steering/{view}/{pk}/change/"' for view, pk in version_pages(version))
    assert any(link in page for link in links)
    assert "gloomy@4" in admin_client.get(f"{LOG}{gone.pk}/change/").content.decode()


def version_pages(version: ProfileVersion) -> list[tuple[str, int]]:
    return [("profileversion", version.pk), ("steeringprofile", version.profile_id)]
