"""People's scores of requests: on the page, in the list and its filter, in exports and the audit trail."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote, urlencode

import pytest
from django.contrib.auth.models import User

from audit.models import AuditEvent
from console.models import SavedItem, SavedList
from openai_api.models import RequestScore
from openai_api.request_log.export import start_export
from openai_api.request_log.scores import MAX_SCORES, save_score
from openai_api.request_log.search import LogSearch
from tests.openai_api.request_log.conftest import LOG, SEES_ROWS, SEES_TEXT, client_of, staff
from tests.openai_api.request_log.rows import row, rows
from tests.steering.pages import said

pytestmark = pytest.mark.django_db
SCORES = ("view_requestscore", "add_requestscore")


@pytest.fixture
def otto() -> User:
    return staff("otto", *SEES_TEXT, *SCORES)


def send(user: User, pk: str, **fields: str) -> Any:
    return client_of(user).post(f"{LOG}{pk}/score/", fields)


def page_of(user: User, pk: str) -> str:
    return client_of(user).get(f"{LOG}{pk}/change/").content.decode()


def test_scored_again_and_cleared(otto):
    row(1, prompt="Hello")
    assert "Saved the score." in said(send(otto, "req_1", value="0", note="It invents a house."))
    send(otto, "req_1", value="0.25", note="Half of it is true.")
    score = RequestScore.objects.get()
    assert (score.value, score.note, score.username) == (0.25, "Half of it is true.", "otto")
    assert "Half of it is true." in page_of(otto, "req_1")
    assert "Deleted the score." in said(send(otto, "req_1", value=""))
    assert not RequestScore.objects.exists()
    events = AuditEvent.objects.filter(kind="openai_api.requestscore").order_by("pk")
    assert [event.action for event in events] == ["add", "change", "delete"]
    assert events[1].changes == {"value": [0.0, 0.25]}
    assert "house" not in str(list(events.values())), "notes may quote texts"


@pytest.mark.parametrize("value", ["1.1", "-0.1", "nan", "inf", "good", "1e999", "0,5"])
def test_what_is_no_score(value, otto):
    row(1)
    assert "A score is a number from 0 to 1." in said(send(otto, "req_1", value=value))
    assert not RequestScore.objects.exists()


def test_notes_that_cannot_be_stored(otto):
    row(1)
    for note in ("x" * 1001, "a\0b"):
        assert "The score was not saved." in said(send(otto, "req_1", value="1", note=note))


def test_who_may_score():
    row(1, prompt="Hello")
    watcher = staff("watcher", *SEES_ROWS, *SCORES)
    reader = staff("reader", *SEES_TEXT, "view_requestscore")
    assert send(watcher, "req_1", value="1").status_code == 302
    assert send(watcher, "req_1", value="1", note="It says Hello").status_code == 403
    assert send(reader, "req_1", value="1").status_code == 403
    assert send(staff("scorer", *SCORES), "req_1", value="1").status_code == 403
    assert 'id="score"' not in page_of(staff("auditor", *SEES_TEXT), "req_1")
    assert "Not scored." not in page_of(reader, "req_1")
    assert client_of(watcher).get(f"{LOG}req_1/score/").status_code == 405
    assert send(watcher, "req_none", value="1").status_code == 404


def test_the_list_filters_and_shows_means(otto):
    logged = rows(4)
    other = staff("other", *SEES_ROWS)
    for request, user, value in ((logged[0], otto, 1.0), (logged[0], other, 0.2), (logged[1], otto, 0.0)):
        save_score(row=request, value=value, note="", user=user)

    def found(user: User, score: str) -> list[str]:
        answer = client_of(user).get(LOG, {"score": score} if score else {})
        return [line.pk for line in answer.context["lines"]]

    assert found(otto, "any") == ["req_0", "req_1"]
    assert found(otto, "good") == ["req_0"]
    assert found(otto, "bad") == ["req_0", "req_1"], "one of two people found the first bad"
    assert len(found(otto, "")) == 4
    html = client_of(otto).get(LOG).content.decode()
    assert "score 0.60<" in html
    assert "score 0<" in html
    assert "score 0.60<" not in client_of(other).get(LOG).content.decode()
    assert "lines" not in client_of(otto).get(LOG, {"score": "great"}).context


@pytest.mark.parametrize("with_text", [False, True])
def test_exported_with_notes_only_beside_texts(with_text, otto):
    logged = rows(2)
    save_score(row=logged[1], value=0.5, note="It says Hello.", user=otto)
    made = start_export(search=LogSearch(), conditions={}, form="jsonl", with_text=with_text, user=None)
    exported = [json.loads(line)["scores"] for line in b"".join(made.batches()).decode().splitlines()]
    note = {"note": "It says Hello."} if with_text else {}
    assert exported == [[], [{"user": "otto", "name": "", "value": 0.5, **note}]]


def test_scores_of_several_names(otto):
    rows(2)
    for name, value in (("", "1"), ("helpful", "0.25"), ("helpful", "0.75"), ("funny", "0")):
        send(otto, "req_0", value=value, name=name)
    assert dict(RequestScore.objects.values_list("name", "value")) == {"": 1, "helpful": 0.75, "funny": 0}
    page = page_of(otto, "req_0")
    assert "helpful, otto: <strong>0.75</strong>" in page
    assert 'aria-label="Delete funny"' in page
    send(otto, "req_0", value="", name="funny")
    assert set(RequestScore.objects.values_list("name", flat=True)) == {"", "helpful"}

    def lines(**conditions: str) -> list[tuple[str, float | None]]:
        answer = client_of(otto).get(LOG, conditions)
        return [(line.pk, line.score) for line in answer.context.get("lines", ())]

    assert lines(score="good", score_name="helpful") == [("req_0", 0.75)]
    assert lines(score="none", score_name="funny") == [("req_0", None), ("req_1", None)]
    assert lines(score="none") == [("req_1", None)]
    assert lines(score_name="funny") == [], "which of them is not chosen"
    assert "The score was not saved." in said(send(otto, "req_0", value="1", name="x" * 61))
    RequestScore.objects.bulk_create(
        RequestScore(request_id="req_1", user=otto, username="otto", name=str(n), value=1) for n in range(MAX_SCORES)
    )
    assert f"You have {MAX_SCORES} scores" in said(send(otto, "req_1", value="1", name="one more"))
    assert "Saved the score." in said(send(otto, "req_1", value="0", name="7"))


def test_a_user_s_scores_outlive_the_account(otto):
    logged = row(1)
    save_score(row=logged, value=1.0, note="", user=otto)
    otto.delete()
    assert RequestScore.objects.get().username == "otto"
    logged.delete()
    assert not RequestScore.objects.exists()


def location_of(response: Any) -> str:
    assert response.status_code == 302
    return unquote(response["Location"])


def test_one_after_the_other_is_scored(otto):
    rows(4)
    RequestScore.objects.create(request_id="req_1", username="ann", value=1)
    saved_list = SavedList.objects.create(name="To score")
    for number in range(3):
        SavedItem.objects.create(saved_list=saved_list, request_id=f"req_{number}")
    queue = "score=none&saved=To+score"
    page = client_of(otto).get(f"{LOG}?{queue}")
    assert [line.pk for line in page.context["lines"]] == ["req_0", "req_2"]
    following = location_of(send(otto, "req_0", value="1", conditions=queue))
    assert following == f"{LOG}req_5F2/change/?_changelist_filters={queue}"
    page = client_of(otto).get(f"{LOG}req_2/change/?{urlencode({'_changelist_filters': queue})}")
    assert '<input type="hidden" name="conditions" value="score=none&amp;saved=To+score">' in page.content.decode()
    assert location_of(send(otto, "req_2", value="0.5", conditions=queue)) == f"{LOG}?{queue}"
    assert RequestScore.objects.count() == 3


@pytest.mark.parametrize("conditions", ["", "score=good", "score=none&unknown=1", "%00", "score=none&id=\0"])
def test_the_request_stays_after_its_score(otto, conditions):
    rows(2)
    assert location_of(send(otto, "req_0", value="1", conditions=conditions)).startswith(f"{LOG}req_5F0/change/")
    assert RequestScore.objects.count() == 1


def test_a_saved_list_links_to_its_requests(otto):
    row(1)
    boss = User.objects.create_superuser("boss")
    saved_list = SavedList.objects.create(name="A & B")
    url = f"/admin/console/savedlist/{saved_list.pk}/change/"
    assert "Show requests in the log" not in client_of(boss).get(url).content.decode()
    SavedItem.objects.create(saved_list=saved_list, request_id="req_1")
    assert "?saved=A+%26+B&amp;score=none" in client_of(boss).get(url).content.decode()
    page = client_of(boss).get(LOG, {"saved": "A & B"})
    assert [line.pk for line in page.context["lines"]] == ["req_1"]
    assert not client_of(boss).get(LOG, {"saved": "other"}).context["lines"]
