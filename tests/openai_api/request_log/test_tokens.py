"""The token view of a logged request: permissions, content, and that its text is inert."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inference.models import LanguageModel
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log.entry import TOKENS
from openai_api.request_log.replay import read_row
from steering.models import SAE, Feature, WatchEvent
from tests.openai_api.request_log.conftest import LOG, SEES_TEXT, client_of, staff
from tests.openai_api.request_log.rows import row
from tests.openai_api.request_log.test_detail import PAYLOADS, detail
from tests.steering.conftest import feature, model, sae  # noqa: F401 - fixtures

pytestmark = pytest.mark.django_db


def token(place: int, text: str, **known: Any) -> dict[str, Any]:
    return {"place": place, "id": place, "text": text, **known}


def record(*tokens: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = {"index": 0, "num_tokens": len(tokens), "prompt": [], "tokens": list(tokens), **fields}
    return {"sae": "tiny-sae", "answers": [answer]}


def logged(*records: dict[str, Any], **fields: Any) -> RequestLog:
    parameters = {"seed": 7, TOKENS: list(records)}
    return row(1, **{"prompt": "hi", "completion": "ab", "parameters": parameters, **fields})


def parts(page: str) -> list[list[dict[str, Any]]]:
    """What the page's script is given."""
    return [json.loads(unescape(found)) for found in re.findall(r'data-tokens="([^"]*)"', page)]


def test_each_token_brings_what_was_kept_of_it(auditor: Client):
    logged(
        record(
            token(4, "a", logprob=-0.5, top=[["a", -0.5], ["b", -1.0]], features=[[3, 2.5], [0, 1.0]]),
            token(5, "b", logprob=-2.0, top=[]),
            prompt=[token(0, "h", features=[]), token(3, "i", features=[[3, 9.0]])],
        )
    )
    page = detail(auditor)
    prompt, answer = parts(page)
    assert [each["text"] for each in prompt] == ["h", " … ", "i"]
    assert prompt[1]["features"] is None
    assert answer[0]["logprob"] == -0.5
    assert answer[0]["top"] == [["a", -0.5], ["b", -1.0]]
    assert answer[0]["features"] == [{"index": 3, "value": 2.5}, {"index": 0, "value": 1.0}]
    assert (answer[1]["features"], answer[1]["notes"]) == (None, [["Place", "5"]])
    options = re.findall(r'<option value="([^"]+)"', page.split("tokens-colour")[-1])
    assert options[:4] == ["none", "logprob", "feature:3", "feature:0"], "the strongest first"
    assert TOKENS not in page, "it is no parameter of the request"
    assert "&quot;seed&quot;: 7" in page


def test_labels_are_for_those_who_may_see_features(auditor: Client, feature: Feature):  # noqa: F811
    Feature.objects.filter(pk=feature.pk).update(label="rain")
    logged(
        {**record(token(0, "a", features=[[feature.index, 1.0]])), "sae": feature.sae.name},
        model=feature.sae.model.name,
    )
    assert "rain" not in detail(auditor)
    page = detail(client_of(staff("aldo", *SEES_TEXT, "view_feature")))
    assert f"#{feature.index} rain (max 1)" in page


def test_features_that_say_little_do_not_colour_first(auditor: Client, feature: Feature):  # noqa: F811
    Feature.objects.filter(pk=feature.pk).update(density=0.3)
    first, rest = [[feature.index, 9.0], [40, 8.0]], [[feature.index, 7.0], [41, 2.0], [40, 1.0]]
    logged(
        {**record(token(0, "a", features=first), token(1, "b", features=rest)), "sae": feature.sae.name},
        model=feature.sae.model.name,
    )
    options = re.findall(r'<option value="feature:(\d+)"', detail(auditor))
    assert options == ["41", "40", str(feature.index)], "a first token's and a dense one come later"


def test_without_the_permission_for_texts_there_is_nothing_of_it(watcher: Client):
    logged(record(token(0, "SECRET", logprob=-1.5, top=[["SECRET", -1.5]], features=[[31337, 2.0]])))
    page = detail(watcher)
    for hidden in ("SECRET", "31337", "-1.5", "data-tokens", "Token by token"):
        assert hidden not in page
    assert not LogAccess.objects.exists()


def test_reading_tokens_is_reading_texts(auditor: Client):
    logged(record(token(0, "a")), prompt="", completion="")
    detail(auditor)
    assert LogAccess.objects.get().act == "read"


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS)
def test_tokens_are_only_text(
    auditor: Client,
    payload: str,
    feature: Feature,  # noqa: F811
):
    user = client_of(staff("aldo", *SEES_TEXT, "view_feature"))
    Feature.objects.filter(pk=feature.pk).update(label=payload)
    known = token(0, payload, logprob=-1.0, top=[[payload, -1.0]], features=[[feature.index, 1.0]])
    logged({**record(known, prompt=[known]), "sae": feature.sae.name}, model=feature.sae.model.name)
    WatchEvent.objects.create(
        at=timezone.now(), rule=payload[:100], action="log", model="tiny", sae="s", feature=1, label=payload,
        threshold=1, value=2, num_tokens=1, place=0, in_prompt=True, request_id="req_1",
    )  # fmt: skip
    page = detail(user)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069\u200f]", page)
    for acting in ("<script>alert", "<svg onload", "href='javascript:", "<h1>Logged out", 'onfocus="'):
        assert acting not in page
    assert len(parts(page)) == 2, "the attribute holds"


def test_what_watch_rules_saw_stands_at_its_token(auditor: Client):
    logged(record(token(4, "a"), token(5, "b")))
    event = WatchEvent.objects.create(
        at=timezone.now(), rule="weather", action="log", model="tiny", sae="s", feature=3, label="rain",
        threshold=1, value=2.25, num_tokens=1, place=5, in_prompt=False, request_id="req_1",
    )  # fmt: skip
    (answer,) = parts(detail(auditor))
    assert [len(each["notes"]) for each in answer] == [1, 2]
    assert answer[1]["notes"][1] == ["Watch rule", "weather: s #3 rain, 2.25"]
    WatchEvent.objects.filter(pk=event.pk).update(request_id="req_2")
    (answer,) = parts(detail(auditor))
    assert [len(each["notes"]) for each in answer] == [1, 1]


def test_several_answers_have_numbers_and_no_rule_s_token(auditor: Client):
    one = record(token(0, "a"))["answers"][0]
    logged({"sae": "", "answers": [one, {**one, "index": 1}]})
    WatchEvent.objects.create(
        at=timezone.now(), rule="weather", action="log", model="tiny", sae="s", feature=3, label="",
        threshold=1, value=2, num_tokens=1, place=0, in_prompt=False, request_id="req_1",
    )  # fmt: skip
    page = detail(auditor)
    assert "Answer tokens #0" in page
    assert "Answer tokens #1" in page
    assert all(each["notes"] == [["Place", "0"]] for part in parts(page) for each in part)


def test_rounds_of_one_response_follow_each_other(auditor: Client):
    logged(record(token(0, "a")), record(token(0, "b")))
    assert [part[0]["text"] for part in parts(detail(auditor))] == ["a", "b"]


def test_a_cut_answer_says_so(auditor: Client):
    logged(record(token(0, "a"), num_tokens=5000))
    assert "Showing the first 1 of 5000 tokens" in detail(auditor)


@pytest.mark.parametrize("parameters", [{}, {TOKENS: "left out"}, {TOKENS: []}, {"dropped": "texts and parameters"}])
def test_where_nothing_was_kept_the_page_says_what_would_be(auditor: Client, parameters: dict[str, Any]):
    row(1, prompt="hi", completion="ab", parameters=parameters)
    page = detail(auditor)
    assert "No token data" in page
    assert parts(page) == []


def test_only_so_many_features_can_be_chosen(auditor: Client):
    tokens = [token(place, "a", features=[[10 * place + number, 1.0] for number in range(8)]) for place in range(100)]
    logged(record(*tokens))
    page = detail(auditor)
    assert len(re.findall('<option value="feature:', page)) == 200
    assert "600 more appear at their tokens" in page


def test_a_page_asks_the_database_no_more_for_many_tokens(auditor: Client, django_assert_max_num_queries: Any):
    logged(record(*(token(place, "a", features=[[place, 1.0]]) for place in range(900))))
    with django_assert_max_num_queries(20):
        detail(auditor)


def test_a_replay_does_not_send_it(model: LanguageModel, sae: SAE):  # noqa: F811
    one = logged(record(token(0, "a")), model=model.name)
    assert read_row(one).body == {"seed": 7, "model": model.name, "messages": "hi"}


def test_programs_get_it_with_the_texts(auditor: Client, watcher: Client):
    logged(record(token(0, "SECRET")))
    assert auditor.get("/api/logs/req_1").json()["parameters"][TOKENS][0]["answers"][0]["tokens"][0]["id"] == 0
    assert "SECRET" not in watcher.get("/api/logs/req_1").content.decode()


def test_the_list_does_not_fetch_it(auditor: Client, django_assert_num_queries: Any):
    logged(record(token(0, "SECRET")))
    assert "SECRET" not in auditor.get(LOG).content.decode()
