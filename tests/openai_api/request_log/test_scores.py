"""People's scores of requests: on the page, in the list and its filter, in exports and the audit trail."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from audit.models import AuditEvent
from openai_api.models import RequestScore
from openai_api.request_log.export import start_export
from openai_api.request_log.scores import save_score
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
    assert exported == [[], [{"user": "otto", "value": 0.5, **note}]]


def test_a_user_s_scores_outlive_the_account(otto):
    logged = row(1)
    save_score(row=logged, value=1.0, note="", user=otto)
    otto.delete()
    assert RequestScore.objects.get().username == "otto"
    logged.delete()
    assert not RequestScore.objects.exists()
