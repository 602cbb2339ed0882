"""The list: conditions, pages, what is refused by name, and what it costs."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from openai_api.keys.services import create_api_key, delete_api_keys, rotate_api_key
from openai_api.models import ApiKey, LogAccess, RequestLog
from openai_api.request_log.pages import search as search_pages
from openai_api.request_log.pages.search import PAGE_SIZE, search_page
from openai_api.request_log.search import OUTCOMES, LogSearch
from tests.openai_api.request_log.conftest import LOG, client_of, staff
from tests.openai_api.request_log.rows import row, rows

pytestmark = pytest.mark.django_db


def found(page: Any) -> set[int]:
    assert page.status_code == 200
    return {int(line.pk.removeprefix("req_")) for line in page.context.get("lines", ())}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {1, 2, 3, 4, 5, 6}),
        ({"id": "req_1"}, {1}),
        ({"id": "eq_1"}, set()),
        ({"id": "chatcmpl-1"}, {1}),
        ({"id": "resp_2"}, {2}),
        ({"id": "chatcmpl"}, set()),
        ({"id": "req%"}, set()),
        ({"user": "ann"}, {2}),
        ({"text": "the sea"}, {3}),
        ({"text": "SEA"}, {3}),
        ({"text": '"like the sea"'}, {3}),
        ({"text": '"sea the like"'}, set()),
        ({"text": "sea or rain"}, {3, 6}),
        ({"text": "sea -like"}, set()),
        ({"text": "(a+)+$"}, {6}),
        ({"text": "answered"}, {3}),
        ({"text": "newline"}, {6}),
        ({"text": "nnewline"}, set()),
        ({"text": "müller"}, {6}),
        ({"text": "MÜLLER"}, {6}),
        ({"outcome": "ok"}, {1, 2, 3, 6}),
        ({"outcome": "refused"}, {5}),
        ({"outcome": "left"}, {4}),
        ({"outcome": "error"}, set()),
        ({"status": "401"}, {5}),
        ({"code": "invalid_api_key"}, {5}),
        ({"model": "other"}, {2}),
        ({"profile": "gloomy"}, {3, 6}),
        ({"profile": "gloomy@3"}, {3}),
        ({"profile": "gloom"}, set()),
        ({"profile": "%"}, set()),
        ({"profile": "none"}, {1, 2, 4, 5}),
        ({"endpoint": "/v1/completions"}, {1}),
        ({"endpoint": " v1/completions "}, {1}),
        ({"endpoint": "completions"}, {1}),
        ({"endpoint": "-completions"}, {2, 3, 4, 5, 6}),
        ({"endpoint": "- /v1/chat/completions"}, {1}),
        ({"endpoint": "chat"}, set()),
        ({"stream": "yes"}, {4}),
        ({"stream": "no"}, {1, 2, 3, 5, 6}),
        ({"slower": "1500"}, {2}),
        ({"last": "hour"}, {1, 2, 3, 4, 5}),
        ({"until": "2000-01-01T00:00"}, set()),
        ({"since": "2000-01-01T00:00", "model": "other"}, {2}),
    ],
)
def test_conditions(auditor: Client, query: dict[str, str], expected: set[int]):
    row(1, endpoint="/v1/completions", total_ms=1499.9)
    row(2, model="other", user="ann", total_ms=1500)
    row(3, profile="gloomy@3", prompt="I like the sea.", completion="It answered.")
    row(4, stream=True, error_code="client_disconnected")
    row(5, status=401, error_code="invalid_api_key")
    row(90, id="req_6", profile="gloomy@12", prompt='[{"content": "a rain\\nnewline Müller"}]')
    assert found(auditor.get(LOG, query)) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, {1, 3}),
        ({"source": "all"}, {1, 2, 3}),
        ({"source": "console"}, {2}),
        ({"source": "client"}, {1}),
        ({"source": "job"}, {3}),
        ({"id": "req_2"}, {2}),
        ({"model": "tiny"}, {1, 3}),
        ({"model": "tiny", "source": "all"}, {1, 2, 3}),
    ],
)
def test_what_pages_of_the_console_asked_is_hidden_until_it_is_asked_for(
    auditor: Client, query: dict[str, str], expected: set[int]
):
    row(1)
    row(2, source="console", endpoint="/admin/playground/inspect")
    row(3, source="job")
    page = auditor.get(LOG, query)
    assert found(page) == expected
    chips = [(chip.label, chip.value) for chip in page.context["chips"]]
    assert (("Hidden", "console") in chips) == (not query.keys() & {"source", "id"})


def test_a_source_that_there_is_not_is_refused(auditor: Client):
    row(1)
    page = auditor.get(LOG, {"source": "mars"})
    assert found(page) == set()
    assert "mars" in " ".join(page.context["problems"])


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"outcome": "junk"}, "junk"),
        ({"since": "yesterday"}, "Since"),
        ({"since": "9999-12-31T23:59"}, ""),
        ({"until": "0001-01-01T00:00"}, ""),
        ({"status": "-1"}, "Status"),
        ({"status": "9" * 50}, "Status"),
        ({"slower": "nan"}, "Min duration"),
        ({"slower": "inf"}, "Min duration"),
        ({"text": "!!! ---"}, "at least one word"),
        ({"text": "x" * 5_000}, "Words"),
        ({"user": "a\0b"}, "Null characters"),
        ({"key": "nobody"}, 'There is no key "nobody"'),
        ({"p": "3"}, 'Unknown search field "p"'),
        ({"created_at__gte": "2020"}, 'Unknown search field "created_at__gte"'),
        ({"o": "1.2"}, 'Unknown search field "o"'),
        ({"before": "junk"}, "is not a valid cursor"),
        ({"after": "1.\0"}, "is not a valid cursor"),
        ({"last": "day", "since": "2020-01-01T00:00"}, "Choose either this"),
    ],
)
def test_what_makes_no_sense_is_said_and_finds_nothing(auditor: Client, query: dict[str, str], said: str):
    row(1)
    page = auditor.get(LOG, query)
    assert page.status_code == 200
    if said:
        assert found(page) == set()
        assert said in " ".join(page.context["problems"])


def test_keys_by_name_by_prefix_and_none(auditor: Client, admin_user: User):
    key = create_api_key(name="laptop", owner=admin_user).api_key
    row(1, api_key=key)
    row(2)
    for wanted, expected in (("laptop", {1}), (key.prefix, {1}), ("none", {2})):
        assert found(auditor.get(LOG, {"key": wanted})) == expected


def test_rows_keep_the_secret_that_was_sent_whatever_becomes_of_the_key(auditor: Client, admin_user: User):
    key = create_api_key(name="laptop", owner=admin_user).api_key
    first = key.prefix
    row(1, api_key=key, key_prefix=first)
    row(3, api_key=key)  # from before the log knew secrets
    second = rotate_api_key(api_key=key).api_key.prefix
    row(2, api_key=key, key_prefix=second)
    row(4, key_prefix=first, status=401, error_code="invalid_api_key")
    for wanted, expected in (("laptop", {1, 2, 3}), (first, {1, 4}), (second, {2, 3}), ("none", set())):
        assert found(auditor.get(LOG, {"key": wanted})) == expected
    shown = {line.pk: line.key for line in auditor.get(LOG).context["lines"]}
    assert shown == {
        "req_1": f"laptop ({first}…)",
        "req_2": f"laptop ({second}…)",
        "req_3": "laptop",
        "req_4": f"{first}…",
    }
    delete_api_keys(keys=ApiKey.objects.all())
    assert found(auditor.get(LOG, {"key": first})) == {1, 4}
    assert "invalid or deleted key" in auditor.get(f"{LOG}req_5F1/change/").content.decode()


def test_an_id_like_an_answer_s_is_still_a_client_s_own(auditor: Client):
    row(1)
    row(2, id="msg_1")
    page = auditor.get(LOG, {"id": "msg_1"})
    assert {line.pk for line in page.context["lines"]} == {"req_1", "msg_1"}


def test_an_endpoint_is_found_as_the_list_shows_it(auditor: Client):
    row(1)
    (line,) = auditor.get(LOG).context["lines"]
    assert found(auditor.get(LOG, {"endpoint": line.endpoint})) == {1}


def test_pages_lead_to_each_other(auditor: Client):
    rows(2 * PAGE_SIZE + 1, model="tiny")
    row(999, model="other")
    seen: list[str] = []
    query = "?model=tiny"
    while query:
        page = auditor.get(LOG + query)
        seen += [line.pk for line in page.context["lines"]]
        query = page.context["older"]
    assert seen == [f"req_{number}" for number in range(2 * PAGE_SIZE + 1)]
    back = auditor.get(LOG + page.context["newer"])
    assert [line.pk for line in back.context["lines"]] == seen[PAGE_SIZE : 2 * PAGE_SIZE]


def test_nothing_is_counted_or_passed_over_and_no_text_is_fetched_whole(auditor: Client):
    rows(PAGE_SIZE + 5)
    older = auditor.get(LOG).context["older"]
    for query in ("", older, "?outcome=ok&text=word"):
        with CaptureQueriesContext(connection) as queries:
            page = auditor.get(LOG + query)
        assert page.status_code == 200
        listed = [q["sql"] for q in queries if '"openai_api_requestlog"' in q["sql"] and "DESC LIMIT 51" in q["sql"]]
        assert len(listed) == 1
        assert "COUNT(" not in listed[0]
        assert "OFFSET" not in listed[0]
        assert '"prompt"' not in listed[0].split("FROM")[0]
        assert "completion" not in listed[0].split("FROM")[0].replace("completion_tokens", "")


def test_queries_do_not_grow_with_rows(auditor: Client, django_assert_max_num_queries: Any, admin_user: User):
    key = create_api_key(name="laptop", owner=admin_user).api_key
    rows(PAGE_SIZE + 5, api_key=key)
    auditor.get(LOG)
    with django_assert_max_num_queries(13):
        auditor.get(LOG)


def test_sizes_are_exact_on_one_page_and_said_to_be_estimates_beyond(auditor: Client):
    row(1)
    assert auditor.get(LOG).context["size"] == "1 request"
    RequestLog.objects.all().delete()
    rows(PAGE_SIZE * 3)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE openai_api_requestlog")
    assert auditor.get(LOG).context["size"] == "about 150 requests (estimate)"


def test_the_log_needs_its_permission():
    row(1)
    client = client_of(staff("stranger", "view_apikey"))
    assert client.get(LOG).status_code == 403
    assert client.get(f"{LOG}req_1/change/").status_code == 403
    assert client.post(f"{LOG}searches/add/", {"name": "a", "query": "model=x"}).status_code == 403
    assert Client().get(LOG).status_code == 302


@pytest.mark.parametrize("query", [{"text": "sea"}, {"text": "nothing"}])
def test_words_are_searched_by_those_only_who_may_see_texts(watcher: Client, query: dict[str, str]):
    row(1, prompt="the sea")
    page = watcher.get(LOG, query)
    assert found(page) == set()
    assert "permission to search request texts" in page.content.decode()
    assert b'name="text"' not in watcher.get(LOG).content


def test_searches_of_texts_are_in_the_trail(auditor: Client):
    rows(PAGE_SIZE + 1, prompt="the sea")
    page = auditor.get(LOG, {"text": "sea"})
    access = LogAccess.objects.get()
    assert (access.act, access.username, access.num_rows) == ("search", "auditor", PAGE_SIZE)
    assert access.detail == {
        "conditions": {"text": "sea"},
        "requests": [f"req_{number}" for number in range(PAGE_SIZE)],
    }
    auditor.get(LOG + page.context["older"])
    older = LogAccess.objects.exclude(pk=access.pk).get()
    assert (older.act, older.detail["requests"]) == ("list", [f"req_{PAGE_SIZE}"])


def test_searches_that_find_nothing_are_in_the_trail(auditor: Client):
    auditor.get(LOG, {"text": "sea"})
    assert LogAccess.objects.get().detail == {"conditions": {"text": "sea"}}


def test_the_list_takes_no_posts(admin_client: Client):
    row(1)
    data = {"action": "delete_selected", "_selected_action": ["req_1"], "post": "yes"}
    assert admin_client.post(LOG, data).status_code == 405
    assert RequestLog.objects.exists()


def test_thousands_of_keys_do_not_fill_the_page(auditor: Client, admin_user: User):
    ApiKey.objects.bulk_create(
        ApiKey(name=f"key {n}", prefix="x", digest=str(n), owner=admin_user) for n in range(1_000)
    )
    assert auditor.get(LOG).content.decode().count("<option") < 450


def test_saved_searches_are_ones_own_or_shared(auditor: Client, watcher: Client):
    row(1, model="tiny")
    query = urlencode({"model": "tiny", "outcome": "ok"})
    auditor.post(f"{LOG}searches/add/", {"name": "good", "query": query})
    auditor.post(f"{LOG}searches/add/", {"name": "words", "query": "text=secret", "is_shared": "on"})
    auditor.post(f"{LOG}searches/add/", {"name": "tiny", "query": "model=tiny", "is_shared": "on"})
    names = [search.name for search in auditor.get(LOG).context["searches"]]
    assert names == ["good", "tiny", "words"]
    others = watcher.get(LOG)
    assert [search.name for search in others.context["searches"]] == ["tiny"]
    assert b"secret" not in others.content
    (own,) = [search for search in auditor.get(LOG).context["searches"] if search.name == "good"]
    assert found(auditor.get(f"{LOG}?{own.query}")) == {1}


def test_a_saved_search_is_replaced_and_deleted_by_its_owner_only(auditor: Client, watcher: Client):
    auditor.post(f"{LOG}searches/add/", {"name": "a", "query": "model=x", "is_shared": "on"})
    auditor.post(f"{LOG}searches/add/", {"name": "a", "query": "model=y", "is_shared": "on"})
    (search,) = watcher.get(LOG).context["searches"]
    assert search.query == "model=y"
    assert watcher.post(f"{LOG}searches/{search.pk}/delete/").status_code == 403
    assert auditor.get(f"{LOG}searches/{search.pk}/delete/").status_code == 405
    assert auditor.post(f"{LOG}searches/{search.pk}/delete/").status_code == 302
    assert auditor.get(LOG).context["searches"] == []


@pytest.mark.parametrize(
    ("name", "query"),
    [("", "model=x"), ("n" * 101, "model=x"), ("a", ""), ("a", "junk=1"), ("a", "outcome=junk"), ("a\0", "model=x")],
)
def test_what_cannot_be_saved_is_said(auditor: Client, name: str, query: str):
    page = auditor.post(f"{LOG}searches/add/", {"name": name, "query": query}, follow=True)
    assert "was not saved" in page.content.decode()
    assert auditor.get(LOG).context["searches"] == []


def test_who_may_see_no_texts_saves_no_search_for_words(watcher: Client):
    page = watcher.post(f"{LOG}searches/add/", {"name": "a", "query": "text=sea"}, follow=True)
    assert "was not saved" in page.content.decode()


@pytest.mark.django_db
def test_few_failures_among_many_answers_have_an_index():
    with connection.cursor() as cursor:
        for plan in ("seqscan", "bitmapscan", "sort"):  # what an empty table would be read by
            cursor.execute(f"SET LOCAL enable_{plan} = off")
    failed = RequestLog.objects.filter(OUTCOMES["failed"][1]).order_by("-created_at", "-id")[:50]
    assert "log_failed_time" in failed.explain()


def test_saved_searches_are_links_and_the_current_one_is_marked(auditor: Client):
    row(1)
    query = urlencode({"outcome": "ok", "model": "tiny", "user": "ann"})
    auditor.post(f"{LOG}searches/add/", {"name": "<b>good</b>", "query": query})
    (search,) = auditor.get(LOG).context["searches"]
    page = auditor.get(f"{LOG}?{search.query}").content.decode()
    assert 'aria-current="page">&lt;b&gt;good&lt;/b&gt;</a>' in page
    assert 'aria-current="page">All requests</a>' in auditor.get(LOG).content.decode()


def test_metadata_of_requests(auditor, watcher):
    given = {"session_id": "a=b & c", "team": "red"}
    row(1, parameters={"metadata": given, "temperature": 1})
    row(2, parameters={"metadata": {"session_id": "other", "team": "red"}})
    row(3, parameters={"metadata": None})
    row(4, parameters={"metadata": "left out"})
    assert found(auditor.get(LOG, {"metadata": "team=red"})) == {1, 2}
    assert found(auditor.get(LOG, {"metadata": "session_id = a=b & c"})) == {1}
    assert found(auditor.get(LOG, {"metadata": "team=re"})) == set()
    assert "Enter a name and a value as name=value." in auditor.get(LOG, {"metadata": "team"}).content.decode()
    page = auditor.get(f"{LOG}req_1/change/").content.decode()
    assert (
        '<a href="/admin/openai_api/requestlog/?metadata=session_id%3Da%3Db+%26+c">session_id=a=b &amp; c</a>' in page
    )
    assert found(auditor.get(LOG + "?metadata=session_id%3Da%3Db+%26+c")) == {1}
    for number in (3, 4):
        assert auditor.get(f"{LOG}req_{number}/change/").status_code == 200
    assert found(auditor.get(LOG, {"metadata": "team=blue"})) == set()
    recorded = LogAccess.objects.latest("pk")
    assert (recorded.act, recorded.detail["conditions"]) == ("search", {"metadata": "team=blue"})
    assert "permission" in watcher.get(LOG, {"metadata": "team=red"}).content.decode()
    assert "team=red" not in watcher.get(f"{LOG}req_1/change/").content.decode()


def test_metadata_has_an_index():
    rows(50, parameters={"metadata": {"team": "red"}})
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    assert "log_metadata" in LogSearch(metadata=("team", "red")).rows().explain()


@pytest.mark.parametrize("recent", [1, 7, 30, 1_000])
@pytest.mark.parametrize("search", [LogSearch(text="storm"), LogSearch(metadata=("team", "red"))])
def test_matches_among_the_newest_requests_change_no_page(
    search: LogSearch, recent: int, monkeypatch: pytest.MonkeyPatch
):
    """The newest requests are searched first; the pages are those of a search of all, with any conditions of time."""
    monkeypatch.setattr(search_pages, "RECENT", recent)
    marked = [number for number in range(90) if number % 3 or 20 < number < 40]
    for number in range(90):
        told = {"prompt": "A storm.", "parameters": {"metadata": {"team": "red"}}} if number in marked else {}
        row(number, **told)
    now = timezone.now()
    half = replace(search, since=now - timedelta(minutes=60), until=now - timedelta(minutes=10))
    within = [number for number in marked if 10 < number < 60]
    for one, expected in ((search, marked), (half, within)):
        seen: list[int] = []
        cursor = ""
        while True:
            page, _ = search_page(one, before=cursor, size=8)
            seen += [int(line.pk.removeprefix("req_")) for line in page.rows]
            assert (page.newer is None) == (cursor == "")
            if page.older is None:
                break
            cursor = str(page.older)
        assert [number for number in seen if number not in (10, 60)] == [n for n in expected if n not in (10, 60)]
        assert [*one.rows(by_time=True).order_by("-created_at")] == [*one.rows().order_by("-created_at")]


def test_common_metadata_are_charted_without_their_index(monkeypatch: pytest.MonkeyPatch, auditor: Client):
    monkeypatch.setattr(search_pages, "RECENT", 100)
    rows(120, parameters={"metadata": {"team": "red"}})
    row(200, parameters={"metadata": {"team": "blue"}})
    for team, count in (("red", 120), ("blue", 1)):
        with CaptureQueriesContext(connection) as queries:
            page = auditor.get(LOG, {"metadata": f"team={team}"})
        assert sum(bar.requests for bar in page.context["histogram"].bars) == count
        (chart,) = [one["sql"] for one in queries if "bar.since" in one["sql"] and "EXPLAIN" not in one["sql"]]
        assert ("'metadata') @>" in chart) == (team == "blue"), "the expression of the index"
