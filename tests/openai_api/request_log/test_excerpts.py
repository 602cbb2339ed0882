"""Excerpts in the list: their content, the permission that they need, and the record of the access."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import record_access
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.pages.messages import MAX_SHOWN, fetch_excerpts, messages
from openai_api.request_log.store import row_of
from tests.openai_api.request_log.conftest import LOG, client_of, staff
from tests.openai_api.request_log.rows import row

pytestmark = pytest.mark.django_db


def excerpt(prompt: str, answer: str = "", search: str = "") -> tuple[str, str]:
    row(1, prompt=prompt, completion=answer)
    found = fetch_excerpts(["req_1"], search)["req_1"]
    return found.prompt, found.answer


def chat(*texts: str) -> str:
    roles = ("system", "user", "assistant")
    return json.dumps([{"role": roles[min(place, 2)], "content": text} for place, text in enumerate(texts)])


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("plain  text\nof two lines", "plain text of two lines"),
        (chat("Be brief.", "Hello", "Hi"), "Hello"),
        (json.dumps([{"role": "user", "content": [{"type": "text", "text": "part"}]}]), "part"),
        (json.dumps({"instructions": "Be brief.", "input": "Hello"}), "Hello"),
        (json.dumps([{"role": "user", "content": "Call."}, {"type": "function_call", "name": "f"}]), "Call."),
        ('["one", "two"]', "one"),
        ("[1, 2]", "[1, 2]"),
        ("[" * 10_000, "[" * MAX_SHOWN + "…"),
        ("x" * 500, "x" * MAX_SHOWN + "…"),
        (chat("x" * 9_000, "Tell me a story."), "Tell me a story."),
        (chat("x" * 9_000, "Line\none"), "Line one"),
        (chat("müller " * 600, "Tell me."), "Tell me."),
    ],
    ids=lambda value: value[:20],
)
def test_excerpts_show_what_the_user_said_last(prompt: str, shown: str):
    assert excerpt(prompt) == (shown, "")


@pytest.mark.parametrize(
    ("search", "shown"),
    [
        ("sea", "the <mark>sea</mark> and the SEAL"),
        ("THE", "<mark>the</mark> sea and <mark>the</mark> SEAL"),
        ('"sea and" -ship or seal', "the <mark>sea</mark> <mark>and</mark> the <mark>SEAL</mark>"),
        ("-sea", "the sea and the SEAL"),
        ("(a+)+$", "the sea and the SEAL"),
    ],
)
def test_matched_words_are_marked(search: str, shown: str):
    assert excerpt("the sea and the SEAL", search=search) == (shown, "")


def test_the_excerpt_of_a_search_starts_near_the_first_match():
    prompt, answer = excerpt(chat("Tell of storms.", "word " * 1_000), "filler " * 500 + "storms at last", "storms")
    assert "Tell of <mark>storms</mark>." in prompt
    assert answer == "…" + ("filler " * 6)[-40:] + "<mark>storms</mark> at last"


@pytest.mark.parametrize("search", ["", "alert"])
def test_hostile_texts_are_shown_as_text(auditor: Client, search: str):
    hostile = "<script>alert(1)</script>\x1b[31m\u202egnp.exe\u2066 \ud800\x00 alert"
    entry = LogEntry("req_1", timezone.now(), "/v1/completions", None, status=200, prompt=hostile, completion=hostile)
    row_of(entry, "full").save()
    page = auditor.get(LOG, {"text": search} if search else {}).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;" in page
    assert ("<mark>alert</mark>" in page) == bool(search)
    assert "⟨U+001B⟩" in page
    assert "⟨U+202E⟩" in page
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", page)


def test_a_prompt_of_a_megabyte_is_not_fetched_whole(auditor: Client):
    row(1, prompt=chat("system", "ab " * 400_000))
    began = time.monotonic()
    page = auditor.get(LOG)
    assert time.monotonic() - began < 5
    assert len(page.content) < 100_000
    (line,) = page.context["lines"]
    assert len(line.excerpt.prompt) == MAX_SHOWN + 1
    assert messages("{" * 100_000) != []


def test_without_the_permission_no_text_leaves_the_database(watcher: Client):
    row(1, prompt="SECRET-1", completion="SECRET-2")
    with CaptureQueriesContext(connection) as queries:
        page = watcher.get(LOG)
    assert "SECRET" not in page.content.decode()
    assert not any("LEFT(" in query["sql"] for query in queries)
    assert [line.excerpt for line in page.context["lines"]] == [None]
    assert not LogAccess.objects.exists()


def test_a_page_of_excerpts_is_one_access_with_its_ids(auditor: Client):
    row(1, prompt="hello")
    row(2, prompt="hello")
    row(3)
    auditor.get(LOG, {"model": "tiny"})
    access = LogAccess.objects.get()
    assert (access.act, access.username, access.num_rows) == ("list", "auditor", 2)
    assert access.detail == {"conditions": {"model": "tiny"}, "requests": ["req_1", "req_2"]}


@pytest.mark.parametrize("fields", [{}, {"status": 400}])
def test_a_page_without_texts_is_no_access_to_texts(auditor: Client, fields: dict[str, Any]):
    row(1, **fields)
    auditor.get(LOG)
    auditor.get(LOG, {"before": "junk"})
    assert not LogAccess.objects.exists()


def test_accesses_to_a_request_are_found_whether_it_was_read_or_listed(auditor: Client):
    row(1, prompt="hello")
    row(12, prompt="hello")
    auditor.get(LOG)
    auditor.get(f"{LOG}req_1/change/")
    record_access(act=LogAccess.Act.EXPORT, user=None, detail={"conditions": {}})
    reader = client_of(staff("reader", "view_logaccess"))
    for term, acts in (("req_1", {"list", "read"}), ("req_12", {"list"}), ("req_3", set())):
        found = reader.get("/admin/openai_api/logaccess/", {"q": term}).context["cl"].queryset
        assert {access.act for access in found} == acts
    listed = LogAccess.objects.get(act="list")
    page = reader.get(f"/admin/openai_api/logaccess/{listed.pk}/change/").content.decode()
    assert f'href="{LOG}req_5F12/change/"' in page
    assert "2 requests" in page


def test_filters_are_chips_with_a_link_that_removes_them(auditor: Client):
    row(1)
    chips = auditor.get(LOG, {"last": "day", "model": "a&b"}).context["chips"]
    assert [(chip.label, chip.value, chip.query) for chip in chips] == [
        ("Time", "last 24 hours", "?model=a%26b"),
        ("Model", "a&b", "?last=day"),
        ("Hidden", "console", "?last=day&model=a%26b&source=all"),
    ]
    (chip,) = auditor.get(LOG, {"source": "all"}).context["chips"]
    assert (chip.label, chip.value, chip.query) == ("Source", "all", "?")


def test_an_id_in_the_search_bar_is_searched_as_an_id(auditor: Client):
    row(1, source="console")
    row(2, prompt="what is req_1")
    for text, found in (("req_1", ["req_1"]), ("chatcmpl-1", ["req_1"]), ('"req_1"', ["req_2"])):
        page = auditor.get(LOG, {"text": text})
        assert [line.pk for line in page.context["lines"]] == found


def test_times_are_relative_with_the_exact_time_beside_them(auditor: Client):
    at = row(3).created_at
    page = auditor.get(LOG).content.decode()
    assert f'<time datetime="{at.isoformat()}" title="{at:%Y-%m-%d %H:%M:%S} UTC">3 min ago</time>' in page
    assert RequestLog.objects.count() == 1
