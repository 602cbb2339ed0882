"""Logged requests run again: the same text from the same seed and version, another from another profile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import AsyncClient, Client
from django.urls import reverse
from django.utils import timezone

from core.runtime import runtime
from jobs.models import Job
from openai_api.models import RequestLog
from openai_api.request_log import writer as log_writer
from openai_api.request_log.replay import ReplayError, read_row, start_replay
from openai_api.request_log.store import LogStore
from openai_api.request_log.writer import LogWriter
from tests.database import in_thread
from tests.steering.evaluating import run, serving_demo

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def demo(transactional_db: None, settings: Any) -> Iterator[None]:
    settings.MILLM_AUTH = "loopback"
    with serving_demo():
        yield


@pytest.fixture
def writer() -> Iterator[LogWriter]:
    made = LogWriter(LogStore())
    made.start()
    runtime.install(log_writer.LOG_WRITER, made)
    yield made
    made.stop(10)
    runtime.remove(log_writer.LOG_WRITER)


async def ask(path: str, **body: Any) -> dict[str, Any]:
    answer = await AsyncClient(headers={"host": "localhost"}).post(
        path, {"model": "demo", "max_tokens": 20, **body}, content_type="application/json", REMOTE_ADDR="127.0.0.1"
    )
    assert answer.status_code == 200, answer.content
    value: dict[str, Any] = json.loads(answer.content)
    return value


def logged(writer: LogWriter) -> RequestLog:
    assert writer.flush(30)
    return RequestLog.objects.get()


def replayed(row: RequestLog, profile: str = "") -> dict[str, Any]:
    job = run(start_replay(row=row, profile=profile))
    assert job.state == "succeeded", job.error
    return job.result


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("profile", ["gloomy", None])
async def test_a_seeded_chat_gives_the_same_text_again(demo: None, writer: LogWriter, profile: str | None) -> None:
    answer = await ask("/v1/chat/completions", messages=MESSAGES, seed=7, temperature=0.9, profile=profile)
    row = await in_thread(logged, writer)
    result = await in_thread(replayed, row)
    assert result["texts"] == [answer["choices"][0]["message"]["content"]] == result["original"]
    assert (result["same_text"], result["same_steering"], result["seeded"]) == (True, True, True)
    assert result["profile"] == ("gloomy@1" if profile else "")


@pytest.mark.django_db(transaction=True)
async def test_with_another_profile_it_differs(demo: None, writer: LogWriter) -> None:
    await ask("/v1/chat/completions", messages=MESSAGES, seed=7, profile="gloomy")
    row = await in_thread(logged, writer)
    for profile, label in (("joyful", "joyful@1"), ("none", "")):
        result = await in_thread(replayed, row, profile)
        assert (result["profile"], result["same_text"], result["same_steering"]) == (label, False, False)


@pytest.mark.django_db(transaction=True)
async def test_completions_with_several_choices_and_an_intensity(demo: None, writer: LogWriter) -> None:
    answer = await ask(
        "/v1/completions", prompt="Once upon a time", n=3, seed=5, profile="gloomy@1", steering_intensity=0.5
    )
    row = await in_thread(logged, writer)
    result = await in_thread(replayed, row)
    assert result["texts"] == [choice["text"] for choice in answer["choices"]]
    assert result["same_text"]
    assert result["same_steering"]


@pytest.mark.django_db(transaction=True)
async def test_a_profile_that_is_gone_fails_with_its_sentence(demo: None, writer: LogWriter) -> None:
    await ask("/v1/chat/completions", messages=MESSAGES, seed=7)
    row = await in_thread(logged, writer)
    job = await in_thread(lambda: run(start_replay(row=row, profile="nonsense@3")))
    assert job.state == "failed"
    assert "nonsense" in job.error


# Without an engine


def row(**values: Any) -> RequestLog:
    common: dict[str, Any] = {
        "id": "req_1",
        "created_at": timezone.now(),
        "endpoint": "/v1/chat/completions",
        "model": "demo",
        "status": 200,
        "prompt": json.dumps(MESSAGES),
        "parameters": {"seed": 1},
    }
    return RequestLog.objects.create(**common | values)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"endpoint": "/v1/embeddings"}, "cannot be replayed"),
        ({"prompt": ""}, "MILLM_LOG_CONTENT"),
        ({"prompt": "sha256:" + "0" * 64}, "MILLM_LOG_CONTENT"),
        ({"parameters": {"dropped": "texts and parameters"}}, "MILLM_LOG_CONTENT"),
        ({"profile": "gloomy@draft"}, "a preview of a draft"),
    ],
)
def test_what_the_log_did_not_keep_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ReplayError, match=said):
        start_replay(row=row(**values))
    assert not Job.objects.exists()


@pytest.mark.django_db
def test_what_the_row_says_becomes_the_request() -> None:
    parameters = {"seed": 3, "ignored": ["x"], "draft": ["x"], "steering_intensity": 2.0, "steering": {"features": []}}
    replay = read_row(row(parameters=parameters, profile="inline"))
    assert replay.body == {"seed": 3, "model": "demo", "messages": MESSAGES}
    assert (replay.selection.reference, replay.selection.intensity, replay.selection.inline) == (
        None,
        2.0,
        {"features": []},
    )
    named = read_row(RequestLog.objects.get(), "gloomy@2")
    assert (named.selection.reference, named.selection.inline) == ("gloomy@2", None)
    assert read_row(RequestLog.objects.get(), "none").selection.reference is None


@pytest.mark.django_db
def test_vectors_that_were_too_large_for_the_log_are_not_replayed() -> None:
    vectors = [{"layer": 1, "values": "sha256:" + "0" * 64}]
    logged = row(parameters={"steering": {"vectors": vectors}}, profile="inline")
    with pytest.raises(ReplayError, match="too large for the log"):
        read_row(logged)
    assert read_row(logged, "gloomy@2").selection.reference == "gloomy@2"


@pytest.mark.django_db
def test_the_page_enqueues_for_those_who_may() -> None:
    found = row()
    page = reverse("admin:openai_api_requestlog_replay", args=[found.pk])
    researcher = User.objects.create_user("rita", is_staff=True)
    names = ("view_requestlog", "view_prompt_text", "change_steeringprofile", "view_job")
    researcher.user_permissions.set(Permission.objects.filter(codename__in=names))
    client = Client(headers={"host": "localhost"})
    client.force_login(researcher)
    assert page in client.get(reverse("admin:openai_api_requestlog_change", args=[found.pk])).content.decode()
    assert client.get(page).status_code == 200
    answer = client.post(page, {"profile": " gloomy "})
    job = Job.objects.get()
    assert answer.headers["Location"] == reverse("admin:jobs_job_change", args=[job.pk])
    assert (job.kind, job.owner, job.params) == (
        "steering.replay",
        researcher,
        {"request": "req_1", "profile": "gloomy"},
    )
    researcher.user_permissions.set(Permission.objects.filter(codename="view_requestlog"))
    assert client.post(page, {"profile": ""}).status_code == 403
    assert page not in client.get(reverse("admin:openai_api_requestlog_change", args=[found.pk])).content.decode()


@pytest.mark.django_db
def test_a_refusal_is_said_on_the_page() -> None:
    found = row(prompt="")
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("root"))
    page = reverse("admin:openai_api_requestlog_replay", args=[found.pk])
    answer = client.post(page, {"profile": ""})
    assert "was not stored" in answer.content.decode()
    shown = client.get(reverse("admin:openai_api_requestlog_change", args=[found.pk])).content.decode()
    assert page not in shown, "what cannot run again is not offered"


@pytest.mark.django_db
def test_the_command_enqueues_or_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("replay_request", row().pk, no_wait=True)
    assert "Queued the job" in capsys.readouterr().out
    with pytest.raises(CommandError, match="no request nonsense"):
        call_command("replay_request", "nonsense")


@pytest.mark.django_db
def test_a_row_that_was_deleted_fails_the_job() -> None:
    found = row()
    job = start_replay(row=found)
    found.delete()
    assert "no longer in the log" in run(job).error
