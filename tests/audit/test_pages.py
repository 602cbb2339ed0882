"""The trail in the admin: who sees it, how it is searched, its pages, and text of strangers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from audit.models import AuditEvent
from audit.record import record
from core.pagination import ByKey, keyset_page
from inference.services import register_model
from tests import database

pytestmark = pytest.mark.django_db
TRAIL = "/admin/audit/auditevent/"
EVIL = (
    "<script>alert(1)</script>",
    '"><svg onload=alert(1)>',
    "\x1b[31mred\x1b[0m",
    "\u202etxt.exe",
    "{{ 7|add:7 }}{% now 'Y' %}",
)
Action = AuditEvent.Action


def events(count: int, **fields: Any) -> list[AuditEvent]:
    rows = [AuditEvent(action=Action.EXPORT, subject=f"event {number}", **fields) for number in range(count)]
    return AuditEvent.objects.bulk_create(rows)


def shown(response: Any) -> list[str]:
    return [row["event"].subject for row in response.context["rows"]]


def auditor() -> User:
    user = User.objects.create_user("olga", is_staff=True)
    user.groups.add(Group.objects.get(name="Auditors"))
    return user


def test_auditors_read_it_and_nobody_writes_it(client: Client):
    client.force_login(auditor())
    event = record(Action.EXPORT, "x")
    page = f"{TRAIL}{event.pk}/change/"
    assert client.get(TRAIL).status_code == client.get(page).status_code == 200
    assert client.post(page, {"subject": "y"}).status_code == 403
    assert client.get(TRAIL + "add/").status_code == 403
    assert client.post(f"{TRAIL}{event.pk}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("group", ["Researchers", None])
def test_others_do_not_see_it(client: Client, group: str | None):
    user = User.objects.create_user("rita", is_staff=True)
    if group:
        user.groups.add(Group.objects.get(name=group))
    client.force_login(user)
    event = record(Action.EXPORT, "x")
    assert client.get(TRAIL).status_code == 403
    assert client.get(f"{TRAIL}{event.pk}/change/").status_code == 403


def test_not_even_a_superuser_changes_it(admin_client: Client):
    event = record(Action.EXPORT, "x")
    assert admin_client.post(f"{TRAIL}{event.pk}/change/", {"subject": "y"}).status_code == 403
    data = {"action": "delete_selected", "_selected_action": [event.pk], "post": "yes"}
    admin_client.post(TRAIL, data)
    assert AuditEvent.objects.get(pk=event.pk).subject == "x"


def test_a_change_made_in_the_admin_names_the_user_and_the_request(admin_client: Client, admin_user: User):
    admin_client.post(reverse("admin:auth_group_add"), {"name": "Own"})
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.subject, event.user, event.command) == ("add", "Own", "admin", "")
    assert event.request_id.startswith("req_")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"a", "b", "c"}),
        ("q=a", {"a", "b"}),
        ("q=<script>", set()),
        ("user=rita", {"b"}),
        ("action=publish", {"c"}),
        ("kind=inference.languagemodel", {"b"}),
        ("kind=inference.languagemodel&object=7", {"b"}),
        ("object=8", set()),
        ("since=2000-01-01", {"a", "b", "c"}),
        ("until=2000-01-01", set()),
        ("until=9999-12-31", {"a", "b", "c"}),
        ("since=0001-01-01", {"a", "b", "c"}),
        ("q=req_9", {"c"}),
    ],
)
def test_it_is_searched(admin_client: Client, query: str, found: set[str]):
    start = AuditEvent.objects.latest("pk").pk if AuditEvent.objects.exists() else 0
    record(Action.EXPORT, "a")
    model = {"kind": "inference.languagemodel", "object_id": "7"}
    AuditEvent.objects.create(action=Action.ADD, subject="b", detail="A thing", user="rita", **model)
    AuditEvent.objects.create(action=Action.PUBLISH, subject="c", request_id="req_9")
    response = admin_client.get(f"{TRAIL}?{query}")
    assert response.status_code == 200
    assert {row["event"].subject for row in response.context["rows"] if row["event"].pk > start} == found


@pytest.mark.parametrize(
    "query",
    ["action=junk", "since=junk", "before=x", "before=-1", f"before={10**30}", "q=%00", "q=" + "x" * 1000, "user=%ff"],
)
def test_a_search_that_makes_no_sense_says_so(admin_client: Client, query: str):
    record(Action.EXPORT, "a")
    response = admin_client.get(f"{TRAIL}?{query}")
    assert response.status_code == 200
    if query != "user=%ff":
        assert "Please correct the errors above" in response.content.decode()


def test_pages_follow_each_other_without_gap_or_repeat(admin_client: Client):
    rows = events(120)
    seen: list[str] = []
    url = TRAIL + "?action=export"
    links: list[str] = []
    while url:
        response = admin_client.get(url)
        seen += shown(response)
        links.append(url)
        url = f"{TRAIL}?{response.context['older']}" if response.context["older"] else ""
    assert seen == [row.subject for row in reversed(rows)]
    assert len(links) == 3
    back = admin_client.get(f"{TRAIL}?{admin_client.get(links[-1]).context['newer']}")
    assert shown(back) == seen[50:100]
    first = admin_client.get(f"{TRAIL}?{back.context['newer']}")
    assert shown(first) == seen[:50]
    assert first.context["newer"] is None
    assert "action=export" in back.context["newer"]


@given(st.integers(0, 30), st.integers(1, 7))
def test_keyset_pages_are_the_whole_table(count: int, size: int):
    start = AuditEvent.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    pks = [row.pk for row in events(count)]
    rows = AuditEvent.objects.filter(pk__gt=start)
    seen: list[int] = []
    page = keyset_page(rows, ByKey(), size=size)
    while True:
        seen += [row.pk for row in page.rows]
        if page.older is None:
            break
        page = keyset_page(rows, ByKey(), size=size, before=page.older)
    assert [pk for pk in seen if pk in pks] == pks[::-1]
    back = list(page.rows)
    while page.newer is not None:
        page = keyset_page(rows, ByKey(), size=size, after=page.newer)
        back = [*page.rows, *back]
    assert [row.pk for row in back] == seen


def test_the_page_takes_the_same_queries_for_few_events_and_for_many(client: Client):
    client.force_login(auditor())
    counts = []
    for more in (1, 500):
        events(more)
        with CaptureQueriesContext(connection) as queries:
            assert client.get(TRAIL).status_code == 200
        counts.append(len(queries))
        assert not any("COUNT(" in query["sql"] or "OFFSET" in query["sql"] for query in queries.captured_queries)
    assert counts[0] == counts[1] <= 5


@pytest.mark.parametrize("evil", EVIL)
def test_text_of_strangers_is_escaped(admin_client: Client, evil: str):
    changes = {evil: [evil, [evil, {evil: evil}]]}
    event = AuditEvent.objects.create(
        action=Action.ADD, subject=evil, detail=evil, user=evil[:20], key=evil, command=evil, model=evil,
        kind="inference.languagemodel", object_id="1", changes=changes,
    )  # fmt: skip
    for url in (TRAIL, f"{TRAIL}{event.pk}/change/", f"{TRAIL}?q={evil}&user={evil}"):
        page = admin_client.get(url).content.decode()
        assert "<script>alert" not in page
        assert "<svg onload" not in page
        assert "1414" not in re.sub(r'datetime="[^"]*"', "", page)  # which a microsecond may contain


def test_an_event_links_to_its_object_as_long_as_it_is_there(admin_client: Client):
    row = register_model(name="m", source="org/x")
    event = AuditEvent.objects.latest("pk")
    page = admin_client.get(f"{TRAIL}{event.pk}/change/").content.decode()
    assert reverse("admin:inference_languagemodel_change", args=[row.pk]) in page
    assert f"kind=inference.languagemodel&amp;object={row.pk}" in page
    assert "org/x" in page
    gone = AuditEvent.objects.create(action=Action.ADD, subject="x", kind="no.such", object_id="1")
    assert admin_client.get(f"{TRAIL}{gone.pk}/change/").status_code == 200


def test_an_object_s_history_leads_to_its_events(admin_client: Client, client: Client):
    row = register_model(name="m", source="org/x")
    history = reverse("admin:inference_languagemodel_history", args=[row.pk])
    link = f"{TRAIL}?kind=inference.languagemodel&amp;object={row.pk}"
    assert link in admin_client.get(history).content.decode()
    assert shown(admin_client.get(link.replace("&amp;", "&"))) == ["m"]
    user = User.objects.create_user("rita", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_languagemodel"))
    client.force_login(user)
    assert link not in client.get(history).content.decode()


def test_an_empty_trail_says_what_it_will_hold(admin_client: Client):
    database.delete_rows("audit_auditevent")
    assert "No events yet" in admin_client.get(TRAIL).content.decode()
    assert "No matching events" in admin_client.get(TRAIL + "?q=x").content.decode()


def test_the_permission_is_granted_to_auditors_under_its_new_name():
    permission = Permission.objects.get(codename="view_auditevent")
    assert permission.content_type.app_label == "audit"
    assert permission in Group.objects.get(name="Auditors").permissions.all()
