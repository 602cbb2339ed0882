"""The page of a logged request: content by permission, escaping, and that reading texts is recorded."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import time
from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.utils import quote
from django.contrib.auth.models import User
from django.test import Client

from core.text import clean_text
from inference.models import LanguageModel
from openai_api.generation.stats import TokenTimes
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.access import record_access
from openai_api.request_log.pages import admin
from openai_api.request_log.summary import phases
from openai_api.request_log.writer import LogBacklog
from steering.models import ProfileVersion, SteeringProfile, WatchEvent
from tests.openai_api.request_log.conftest import LOG, SEES_ROWS, SEES_TEXT, client_of, staff
from tests.openai_api.request_log.rows import row, values

pytestmark = pytest.mark.django_db

SCRIPT = "<script>alert(1)</script>"
PAYLOADS = {
    "script": SCRIPT,
    "svg": "<svg onload=alert(1)><a href='javascript:alert(1)'>x</a></svg>",
    "attribute": '" autofocus onfocus="alert(1)" x=\'',
    "template": "{% debug %}{{ settings.SECRET_KEY }}",
    "ansi": "\x1b[2J\x1b[31mred\x1b[0m\x07",
    "bidi": "safe\u202egnp.exe\u2066\u200f",
    "end": "</pre></td></table><h1>Logged out</h1><!--",
}


def detail(client: Client, pk: str = "req_1") -> str:
    page = client.get(f"{LOG}{pk}/change/")
    assert page.status_code == 200
    return page.content.decode()


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_every_text_of_strangers_is_only_text(auditor: Client, payload: str):
    row(
        1,
        model=payload,
        profile=f"{payload}@1",
        user=payload,
        error_code="failed",
        error_message=payload,
        finish_reason=payload[:30],
        prompt=json.dumps([{"role": "user", "content": payload}]),
        completion=payload,
        parameters={"stop": [payload], payload: 1},
    )
    for page in (detail(auditor), auditor.get(LOG).content.decode()):
        assert payload not in page or payload == PAYLOADS["template"]  # which has nothing to escape
        assert settings.SECRET_KEY not in page
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u200f]", page)
        assert "<script>alert" not in page
        assert "<svg onload" not in page
        assert "href='javascript:" not in page
        assert "<h1>Logged out" not in page
        assert 'onfocus="' not in page


def test_acting_characters_are_named(auditor: Client):
    row(1, completion="a\x1b[31mb\u202ec\nd\te")
    assert "a⟨U+001B⟩[31mb⟨U+202E⟩c\nd\te" in detail(auditor)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_ids_of_clients_lead_to_their_row(auditor: Client, number: int):
    pk = {1: "a/b?c#d", 2: "x y+z%41", 3: "_5F'\"<b>"}[number]
    row(1, id=pk)
    page = auditor.get(LOG)
    (link,) = re.findall(r'<th scope="row" class="field-request"><a href="([^"]+)"', page.content.decode())
    found = auditor.get(link.replace("&#x27;", "'").replace("&amp;", "&"))
    assert found.status_code == 200
    assert found.context["original"].pk == pk


@pytest.mark.parametrize("page", ["change", "replay"])
def test_ids_in_addresses_are_found_as_they_are(page: str):
    """The admin's own links escape "_", others don't, and the admin takes "_26" for an escaped "&"."""
    pk = "req_2698c67932e949c0bba637da89fd0726"
    row(1, id=pk, endpoint="/v1/chat/completions", parameters={"max_tokens": 1})
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    for written in (pk, quote(pk)):
        assert client.get(f"{LOG}{written}/{page}/").status_code == 200
    assert client.get(f"{LOG}{pk}0/{page}/").status_code in {302, 404}


def test_who_may_see_no_texts_sees_numbers_only(watcher: Client):
    row(
        1,
        status=400,
        error_code="invalid_request",
        error_message="The role “SECRET-4” is none.",
        prompt="SECRET-1",
        completion="SECRET-2",
        prompt_tokens=77,
        parameters={"stop": ["SECRET-3"], "temperature": 0.25, "tools": [{"name": "SECRET-5"}]},
    )
    page = detail(watcher)
    assert "SECRET" not in page
    assert "77" in page
    assert "&quot;temperature&quot;: 0.25" in page
    assert "Visible to users who can view request texts" in page
    assert "SECRET" not in watcher.get(LOG).content.decode()
    assert not LogAccess.objects.exists()


def test_reading_a_text_is_in_the_trail(auditor: Client):
    row(1, prompt="hello")
    row(2)
    detail(auditor)
    detail(auditor, "req_2")
    access = LogAccess.objects.get()
    assert (access.act, access.username, access.request_id) == ("read", "auditor", "req_1")


def test_a_missing_row_leaves_no_trace(auditor: Client):
    assert auditor.get(f"{LOG}nothing/change/").status_code == 302
    assert not LogAccess.objects.exists()


def test_a_row_that_waits_to_be_written_is_waited_for(auditor: Client, monkeypatch):
    asked: list[int] = []

    def waiting() -> LogBacklog:
        asked.append(1)
        if len(asked) == 30:  # longer than a row of another process is waited for
            row(1)
        return LogBacklog(waiting=1)

    monkeypatch.setattr(admin, "log_backlog", waiting)
    monkeypatch.setattr(admin, "WRITING_S", 0.1)
    assert auditor.get(f"{LOG}req_1/change/").status_code == 200
    assert len(asked) == 30


def test_the_trail_has_its_own_permission_and_is_read_only(auditor: Client):
    row(1, prompt="hello")
    detail(auditor)
    trail = "/admin/openai_api/logaccess/"
    assert auditor.get(trail).status_code == 403
    reader = client_of(staff("reader", "view_logaccess"))
    page = reader.get(trail)
    assert b"req_1" in page.content
    assert b"hello" not in page.content
    boss = client_of(User.objects.create_superuser("boss"))
    pk = LogAccess.objects.get().pk
    assert boss.get(f"{trail}{pk}/change/").status_code == 200
    assert boss.post(f"{trail}{pk}/change/", {"username": "x"}).status_code == 403
    assert boss.post(f"{trail}{pk}/delete/", {"post": "yes"}).status_code == 403
    assert boss.get(f"{trail}add/").status_code == 403


def test_the_trail_says_in_words_and_to_the_second_what_was_done(auditor: Client):
    row(1, prompt="hello")
    detail(auditor)
    auditor.get(LOG, {"text": "hello", "model": "tiny"})
    record_access(
        act=LogAccess.Act.EXPORT, user=None, detail={"conditions": {}, "format": "csv", "texts": False}, num_rows=1
    )
    page = client_of(staff("reader", "view_logaccess")).get("/admin/openai_api/logaccess/").content.decode()
    for said in ("words: hello, model: tiny", "all requests, format: csv, without texts", "Past 7 days"):
        assert said in page
    for access in LogAccess.objects.all():
        assert f"{access.at.astimezone(UTC):%Y-%m-%d %H:%M:%S}" in page
    assert f'href="{LOG}req_5F1/change/"' in page


def test_a_request_and_the_list_say_when_to_the_second(auditor: Client):
    at = datetime(2026, 11, 22, 14, 7, 9, tzinfo=UTC)
    row(1, created_at=at)
    for page in (detail(auditor), auditor.get(LOG).content.decode()):
        assert "2026-11-22 14:07:09" in page


@pytest.mark.parametrize(
    ("content", "days", "text_days", "said"),
    [
        ("full", 0, 0, "Rows are never deleted. Texts are stored."),
        ("full", 90, 1, "Rows are deleted after 90 days. Texts are stored for 1 day."),
        ("hash", 1, 7, "Rows are deleted after 1 day. Only a SHA-256 of each text is stored for 7 days."),
        ("none", 30, 7, "Rows are deleted after 30 days. Texts are not stored."),
    ],
)
def test_the_list_says_what_is_kept(watcher: Client, settings: Any, content: str, days: int, text_days: int, said: str):
    settings.MILLM_LOG_CONTENT = content
    settings.MILLM_LOG_RETENTION_DAYS, settings.MILLM_LOG_TEXT_RETENTION_DAYS = days, text_days
    assert said in watcher.get(LOG).content.decode()


def test_rows_are_read_only_even_for_admins(admin_client: Client):
    row(1)
    assert admin_client.get(f"{LOG}req_1/change/").status_code == 200
    assert admin_client.post(f"{LOG}req_1/change/", {"model": "x"}).status_code == 403
    assert admin_client.post(f"{LOG}req_1/delete/", {"post": "yes"}).status_code == 403
    assert admin_client.get(LOG + "add/").status_code == 403
    assert RequestLog.objects.get().model == "tiny"


def test_the_timeline_tells_what_happened_when(auditor: Client):
    row(1, queue_ms=12, ttft_ms=212, total_ms=2212, prompt_tokens=90, cached_tokens=8, completion_tokens=101)
    page = detail(auditor)
    for text in (
        "queued 12 ms",
        "prefill 200 ms",
        "90 prompt tokens, 8 of them cached",
        "tokens 2.00 s",
        "50.0 per second",
    ):
        assert text in page
    assert '<rect class="log-prefill" x="5.4" y="0" width="90.4"' in page
    assert "style=" not in page.split('id="content-main"')[1]


def test_the_timeline_has_a_line_for_each_token_and_the_longest_pause(auditor: Client):
    times = {"queue_ms": 0, "ttft_ms": 100, "total_ms": 1000, "completion_tokens": 4}
    row(1, **times, token_ms=[100, 150, 850, 5_000])
    page = detail(auditor)
    assert '<path class="log-ticks" d="M100.0 4V16M150.0 4V16M850.0 4V16M1000.0 4V16"/>' in page
    assert "longest pause 4.15 s" in page
    RequestLog.objects.update(token_ms=list(range(100, 140)), completion_tokens=80)
    assert "longest pause" not in detail(auditor), "every second token is not in the list"
    RequestLog.objects.update(token_ms=[])
    assert "log-ticks" not in detail(auditor)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 1000])
def test_times_of_tokens_are_bounded_and_evenly_chosen(count: int):
    times = TokenTimes()
    for number in range(count):
        times.note(number / 1000)
    kept = times.milliseconds
    assert len(kept) <= TokenTimes.MAX
    assert list(kept[:1]) == [0] * min(count, 1)
    assert len({after - before for before, after in pairwise(kept)}) <= 1
    assert count <= TokenTimes.MAX or len(kept) > TokenTimes.MAX / 4


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({}, []),
        ({"total_ms": 5}, [("processed", 0, 5)]),
        ({"queue_ms": 3, "total_ms": 5}, [("queued", 0, 3), ("after the queue", 3, 5)]),
        ({"queue_ms": 9, "ttft_ms": 4, "total_ms": 6}, [("queued", 0, 9), ("prefill", 9, 9), ("tokens", 9, 9)]),
        ({"queue_ms": 0, "ttft_ms": 0, "total_ms": 0}, [("queued", 0, 0), ("prefill", 0, 0), ("tokens", 0, 0)]),
        ({"ttft_ms": 7}, [("prefill", 0, 7), ("tokens", 7, 7)]),
    ],
)
def test_phases_follow_each_other(times: dict[str, float], expected: list[tuple[str, float, float]]):
    found = phases(RequestLog(**values(1, **times)))
    assert [(phase.name, phase.start_ms, phase.end_ms) for phase in found] == expected


def test_the_receipt_and_what_was_logged_are_shown(auditor: Client):
    row(
        1,
        prompt='[{"role": "user", "content": "line one\\nline <b>two"}, {"role": "tool", "content": "x", "id": 7}]',
        fingerprint="abc",
        policies="mild@2",
        steering_expected=5,
        steering_applied=5,
        steering_effects=[
            {"site": "layers.1.resid_post", "tokens": 4, "changed_share": 0.75, "mean_change": 0.31},
            {"site": "<b>", "tokens": 1, "changed_share": 1.0, "mean_change": None},
        ],
        parameters={"temperature": 0.5},
    )
    page = detail(auditor)
    assert '<h3 class="log-role">user</h3><pre tabindex="0">line one\nline &lt;b&gt;two</pre>' in page
    effects = "layer 1 (resid_post): changed 75% of 4 tokens, by 31% of their norm on average"
    other = "&lt;b&gt;: changed 100% of 1 tokens, by an overflowing amount"
    assert f"applied at 5 of 5 steering points; {effects}; {other}; fingerprint abc, policies mild@2" in page
    assert "&quot;temperature&quot;: 0.5" in page


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('["one", "two"]', '#1</h3><pre tabindex="0">two</pre>'),
        ('{"instructions": "Be brief.", "input": "Hi"}', 'input</h3><pre tabindex="0">Hi</pre>'),
        ('{"input": [{"role": "user", "content": "Hi"}, {"type": "function_call"}]}', "function_call</h3>"),
        ("[1, 2]", '<pre tabindex="0">[1, 2]</pre>'),
        ("[not json", '<pre tabindex="0">[not json</pre>'),
        ("[" * 100_000, '<pre tabindex="0">[[['),
        ("plain", '<pre tabindex="0">plain</pre>'),
        ('[{"role": "user", "content": [{"type": "text", "text": "part"}]}]', '<pre tabindex="0">part</pre>'),
        ('[{"role": "assistant", "content": null, "tool_calls": [1]}]', "&quot;tool_calls&quot;"),
    ],
    ids=lambda value: value[:20],
)
def test_texts_of_all_kinds_are_shown(auditor: Client, text: str, shown: str):
    row(1, prompt=text)
    assert shown in detail(auditor)


def version(number: int, **fields: Any) -> ProfileVersion:
    model, _ = LanguageModel.objects.get_or_create(name="tiny", defaults={"source": "x"})
    profile, _ = SteeringProfile.objects.get_or_create(name="gloomy", model=model)
    return ProfileVersion.objects.create(profile=profile, number=number, edits=[], fingerprint=f"f{number}", **fields)


def test_a_row_shows_its_version_and_what_changed_with_it(admin_client: Client):
    found = version(3)
    row(1, profile="gloomy@3")
    row(2, profile="gloomy@4")
    page = detail(admin_client)
    assert f"/{found.pk}/change/" in page
    assert "Changes in gloomy@3" in page
    assert "This version no longer exists" in detail(admin_client, "req_2")


def test_a_version_is_shown_to_those_who_may_see_versions():
    version(3)
    row(1, profile="gloomy@3")
    assert "Changes in" not in detail(client_of(staff("one", *SEES_TEXT)))
    assert "Changes in" in detail(client_of(staff("two", *SEES_TEXT, "view_profileversion")))


def test_stored_activations_are_shown(watcher: Client):
    found = row(1)
    WatchEvent.objects.create(
        at=found.created_at,
        rule="no-rage",
        action="alert",
        model="tiny",
        sae="tiny-sae",
        feature=5,
        label=SCRIPT,
        threshold=2.0,
        value=7.25,
        num_tokens=3,
        place=11,
        in_prompt=False,
        request_id="req_1",
    )
    page = detail(watcher)
    assert "no-rage" in page
    assert "7.25" in page
    assert "11 (answer)" in page
    assert SCRIPT not in page


def test_queries_of_a_page_are_few(auditor: Client, django_assert_max_num_queries: Any):
    row(1, prompt="hello", profile="gloomy@3")
    detail(auditor)
    with django_assert_max_num_queries(16):
        detail(auditor)


def test_replays_need_the_permission_for_texts():
    row(1, prompt="hello")
    steers = ("change_steeringprofile", "view_job")
    blind = client_of(staff("blind", *SEES_ROWS, *steers))
    assert blind.get(f"{LOG}req_1/replay/").status_code == 403
    assert blind.post(f"{LOG}req_1/replay/", {"profile": ""}).status_code == 403
    seeing = client_of(staff("seeing", *SEES_TEXT, *steers))
    assert seeing.get(f"{LOG}req_1/replay/").status_code == 200
    assert not LogAccess.objects.filter(act="replay").exists()
    assert seeing.post(f"{LOG}req_1/replay/", {"profile": ""}).status_code == 302
    assert LogAccess.objects.get(act="replay").username == "seeing"


def test_the_row_of_a_request_that_has_just_ended_is_waited_for(auditor: Client, monkeypatch: pytest.MonkeyPatch):
    """It is written behind, and the link to it may be quicker."""
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: row(1))
    monkeypatch.setattr("openai_api.request_log.pages.admin.time", clock)
    assert "req_1" in detail(auditor)


def test_a_row_that_does_not_exist_is_not_waited_for_long(auditor: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("openai_api.request_log.pages.admin.WRITING_S", 0.1)
    assert auditor.get(f"{LOG}req_1/change/").status_code == 302


def test_the_conversation_ends_with_the_answers(auditor: Client):
    row(1, prompt=json.dumps([{"role": "user", "content": "Hi"}]), completion='["one", "two"]')
    page = detail(auditor)
    said = re.findall(r'<div class="log-message log-message-(\w+)"><h3 class="log-role">([^<]+)</h3>', page)
    assert said == [("user", "user"), ("answer", "answer #0"), ("answer", "answer #1")]


def links(page: str) -> dict[str, str]:
    found = re.findall(r'<li><a href="([^"]+)"(?: rel="\w+")?>(Newer|Older|Back to results)</a></li>', page)
    return {name: url.replace("&amp;", "&") for url, name in found}


def test_a_request_leads_to_the_next_ones_of_the_search(auditor: Client):
    row(1)
    row(2, model="other")
    row(3, source="console")
    row(4)
    row(5, model="other")
    assert links(detail(auditor, "req_4")) == {
        "Newer": f"{LOG}req_5F2/change/",
        "Older": f"{LOG}req_5F5/change/",
    }
    assert "Newer" not in links(detail(auditor))
    listed = auditor.get(LOG, {"model": "other"}).content.decode()
    newest = re.findall(r'<th scope="row" class="field-request"><a href="([^"]+)"', listed)[0]
    page = auditor.get(newest).content.decode()
    assert links(page) == {
        "Older": f"{LOG}req_5F5/change/?_changelist_filters=model%3Dother",
        "Back to results": f"{LOG}?model=other",
    }
    assert links(auditor.get(f"{LOG}req_4/change/?_changelist_filters=junk%3D1").content.decode()).keys() == {
        "Newer",
        "Older",
    }


def test_a_search_by_words_leads_back_to_its_results_only(auditor: Client, watcher: Client):
    row(1, prompt="the sea")
    row(2, prompt="the sea")
    url = f"{LOG}req_2/change/?_changelist_filters=text%3Dsea"
    assert links(auditor.get(url).content.decode()) == {"Back to results": f"{LOG}?text=sea"}
    assert links(watcher.get(url).content.decode()) == {"Newer": f"{LOG}req_5F1/change/"}


def command(page: str) -> str:
    found = re.search(r'<pre id="log-curl" tabindex="0">(.*?)</pre>', page, re.DOTALL)
    return html.unescape(found[1]) if found else ""


def test_a_request_is_copied_as_curl(auditor: Client):
    prompt = "it's <b>\u202e\U0001f600</b>"
    row(
        1,
        prompt=json.dumps([{"role": "user", "content": prompt}]),
        profile="gloomy@3",
        stream=True,
        key_prefix="sk-millm-abc",
        parameters={"temperature": 0.5, "ignored": ["x"], "token_record": []},
    )
    shown = command(detail(auditor))
    assert shown.isascii()
    name, _, url, *options = shlex.split(shown)
    assert (name, url) == ("curl", "http://testserver/v1/chat/completions")
    assert "Authorization: Bearer $MILLM_API_KEY" in options
    assert json.loads(options[-1]) == {
        "model": "tiny",
        "messages": [{"role": "user", "content": prompt}],
        "profile": "gloomy@3",
        "temperature": 0.5,
        "stream": True,
    }


def studio_state(page: str) -> Any:
    found = re.search(r'href="/admin/studio/#([\w-]+)">Open in studio', page)
    return None if found is None else json.loads(base64.urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)))


def test_a_chat_is_opened_in_the_studio():
    client = client_of(staff("sam", *SEES_TEXT, "use_playground"))
    said = [
        {"role": "system", "content": "Rhyme."},
        {"role": "user", "content": "hi \u202e<b>"},
        {"role": "assistant", "content": "ho"},
        {"role": "user", "content": [{"type": "text", "text": "And?"}]},
    ]
    settings = {"seed": 3, "temperature": 0.5, "max_tokens": 9, "top_p": 0.9}
    row(1, prompt=json.dumps(said), completion="x", profile="gloomy@2", parameters=settings)
    assert studio_state(detail(client)) == {
        "model": "tiny",
        "profile": "gloomy@2",
        "prompts": ["hi \u202e<b>", "And?"],
        "system": "Rhyme.",
        "seed": 3,
        "max_tokens": 9,
        "temperature": 0.5,
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"endpoint": "/v1/embeddings"},
        {"prompt": json.dumps([{"role": "user", "content": "hi"}, {"role": "tool", "content": "5"}])},
        {"prompt": json.dumps([{"role": "user", "content": "x" * 20_000}])},
        {"prompt": "hi"},
        {"prompt": "", "completion": "only"},
    ],
)
def test_what_the_studio_cannot_hold_does_not_lead_there(fields: dict[str, Any]):
    client = client_of(staff("sam", *SEES_TEXT, "use_playground"))
    row(1, **{"prompt": json.dumps([{"role": "user", "content": "hi"}]), **fields})
    assert studio_state(detail(client)) is None


def test_the_studio_is_for_those_who_may_use_it(auditor: Client):
    row(1, prompt=json.dumps([{"role": "user", "content": "hi"}]), profile="studio@draft")
    assert studio_state(detail(auditor)) is None
    client = client_of(staff("sam", *SEES_TEXT, "use_playground"))
    assert studio_state(detail(client))["profile"] is None
    assert studio_state(detail(client_of(staff("tim", *SEES_ROWS, "use_playground")))) is None


@pytest.mark.parametrize(
    "fields", [{"endpoint": "/v1/embeddings"}, {"prompt": "sha256:1"}, {"profile": "a@draft"}, {"prompt": "x" * 70_000}]
)
def test_what_cannot_be_sent_again_is_no_command(auditor: Client, fields: dict[str, Any]):
    row(1, **{"prompt": "hello", **fields})
    assert command(detail(auditor)) == ""


def test_without_the_permission_there_is_no_conversation(watcher: Client):
    row(1, prompt="SECRET-1", completion="SECRET-2")
    page = detail(watcher)
    assert "SECRET" not in page
    assert "log-message" not in page
    assert command(page) == ""
    assert "Visible to users who can view request texts." in page


def turn(number: int, previous: str = "", **fields: Any) -> RequestLog:
    parameters = {"previous_response_id": previous} if previous else {}
    texts = {"prompt": f"question {number}", "completion": f"answer {number}"}
    return row(number, endpoint="/v1/responses", parameters=parameters, **{**texts, **fields})


def test_earlier_turns_of_a_chain_of_responses_are_joined(auditor: Client, watcher: Client):
    turn(3)
    turn(2, "resp_3")
    turn(1, "resp_2")
    page = detail(auditor)
    assert "2 earlier turns" in page
    assert [page.index(f"question {number}") for number in (3, 2, 1)] == sorted(
        page.index(f"question {number}") for number in (1, 2, 3)
    )
    assert f'href="{LOG}req_5F3/change/"' in page
    listed = LogAccess.objects.get(act="list")
    assert listed.detail == {"requests": ["req_3", "req_2"]}
    assert "earlier turn" not in detail(watcher)


@pytest.mark.parametrize(
    ("previous", "fields"),
    [
        ("resp_1", {}),
        ("resp_9", {}),
        ("a\ud800b", {}),
        ("resp_2", {"status": 404}),
        ("x" * 5_000, {}),
    ],
    ids=["itself", "missing", "surrogate", "refused", "long"],
)
def test_a_chain_ends_where_the_log_knows_no_more(auditor: Client, previous: str, fields: dict[str, Any]):
    turn(2)
    turn(1, clean_text(previous), **fields)
    assert "earlier turn" not in detail(auditor)
    assert not LogAccess.objects.filter(act="list").exists()


def test_a_chain_that_closes_ends(auditor: Client):
    turn(1, "resp_2")
    turn(2, "resp_1")
    assert "1 earlier turn<" in detail(auditor)
