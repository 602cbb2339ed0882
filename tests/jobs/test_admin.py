"""Jobs in the admin and in commands: who sees which, cancel, retry, and text of strangers."""

from __future__ import annotations

import re
import uuid

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import format_html

from audit.models import AuditEvent
from jobs.kinds import JobKind, register, unregister
from jobs.lanes import Lane
from jobs.models import Job, JobLine
from jobs.services import enqueue_job
from tests.jobs.conftest import AddKind

pytestmark = pytest.mark.django_db
LIST = "/admin/jobs/job/"
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def kind(add_kind: AddKind) -> str:
    return add_kind(lambda job: None)


def staff(name: str, *codenames: str) -> User:
    user = User.objects.create_user(name, is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames, content_type__app_label="jobs"))
    assert user.user_permissions.count() == len(codenames)
    return user


def client_of(user: User) -> Client:
    client = Client(headers={"host": "localhost"})
    client.force_login(user)
    return client


@pytest.fixture
def admin() -> Client:
    return client_of(User.objects.create_superuser("root"))


def page(job: Job, act: str = "change") -> str:
    return reverse(f"admin:jobs_job_{act}", args=[job.pk])


def test_the_page_shows_how_far_it_is_and_what_it_said(admin: Client, kind: str) -> None:
    job = enqueue_job(kind=kind, params={"strengths": [0.5]}, title="Sweep of gloomy")
    Job.objects.update(state="running", claim=uuid.uuid4(), done=3, total=12, message="at 0.5")
    JobLine.objects.create(job=job, text="The first line.")
    text = admin.get(page(job)).content.decode()
    assert '<progress class="job-bar" max="12" value="3">' in text
    assert "3 of 12" in text
    assert "at 0.5" in text
    assert "The first line." in text
    assert "&quot;strengths&quot;" in text
    assert f'data-job-live="1" data-live-topic="job:{job.pk}"' in text
    assert "/static/jobs/live.js" in text
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>", text) == [], "an inline script"


def test_an_ended_job_is_not_asked_for_again(admin: Client, kind: str) -> None:
    job = enqueue_job(kind=kind, params={})
    Job.objects.update(state="failed", error="The model is gone.")
    for text in (admin.get(page(job)).content.decode(), admin.get(LIST).content.decode()):
        assert 'data-job-live="1"' not in text
        assert "data-live-topic" not in text
    assert "The model is gone." in admin.get(page(job)).content.decode()


def test_text_of_strangers_is_escaped(admin: Client, kind: str) -> None:
    job = enqueue_job(kind=kind, params={EVIL: EVIL}, title=EVIL)
    Job.objects.update(state="failed", message=EVIL, error=EVIL, result={"x": EVIL}, worker=EVIL)
    JobLine.objects.create(job=job, text=EVIL)
    for text in (admin.get(page(job)).content.decode(), admin.get(LIST).content.decode()):
        assert EVIL not in text
        assert "&lt;script&gt;alert(1)" in text


def test_cancel_and_retry_are_posts_that_work(admin: Client, kind: str) -> None:
    job = enqueue_job(kind=kind, params={})
    assert admin.get(page(job, "cancel")).status_code == 405
    answer = admin.post(page(job, "cancel"), follow=True)
    assert "Cancelling &quot;" in answer.content.decode()
    job.refresh_from_db()
    assert job.state == "cancelled"
    admin.post(page(job, "retry"))
    job.refresh_from_db()
    assert job.state == "queued"
    refused = admin.post(page(job, "retry"), follow=True)
    assert "Only failed and cancelled jobs can be retried" in refused.content.decode()


def test_actions_take_what_they_can_and_say_what_they_cannot(admin: Client, kind: str) -> None:
    jobs = [enqueue_job(kind=kind, params={}) for _ in range(3)]
    Job.objects.filter(pk=jobs[0].pk).update(state="succeeded")
    keys = [job.pk for job in jobs]
    answer = admin.post(LIST, {"action": "cancel_selected", "_selected_action": keys}, follow=True)
    assert "has already ended (succeeded)" in answer.content.decode()
    assert Job.objects.filter(state="cancelled").count() == 2
    admin.post(LIST, {"action": "retry_selected", "_selected_action": keys})
    assert Job.objects.filter(state="queued").count() == 2


def test_everybody_sees_their_own_and_who_manages_sees_all(kind: str) -> None:
    rita = staff("rita", "view_job", "change_job")
    boss = staff("boss", "view_job", "manage_all_jobs")
    hers = enqueue_job(kind=kind, params={}, owner=rita, title="Hers")
    other = enqueue_job(kind=kind, params={}, title="Of a command")
    client = client_of(rita)
    text = client.get(LIST).content.decode()
    assert "Hers" in text
    assert "Of a command" not in text
    assert client.get(page(other)).status_code == 302  # the admin's answer to what is not there
    for act in ("cancel", "retry"):
        assert client.post(page(other, act)).status_code == 404
    assert client.post(page(hers, "cancel")).status_code == 302
    hers.refresh_from_db()
    assert hers.state == "cancelled"
    text = client_of(boss).get(LIST).content.decode()
    assert "Hers" in text
    assert "Of a command" in text
    assert client_of(boss).post(page(other, "cancel")).status_code == 302


def test_who_only_looks_cannot_act(kind: str) -> None:
    viewer = staff("viewer", "view_job")
    job = enqueue_job(kind=kind, params={}, owner=viewer)
    client = client_of(viewer)
    assert 'id="job-acts"' not in client.get(page(job)).content.decode()
    assert client.post(page(job, "cancel")).status_code == 403
    client.post(LIST, {"action": "cancel_selected", "_selected_action": [job.pk]})
    job.refresh_from_db()
    assert job.state == "queued"
    assert client_of(staff("nobody")).get(LIST).status_code == 403


def test_only_ended_jobs_are_deleted(admin: Client, kind: str) -> None:
    running, ended = enqueue_job(kind=kind, params={}), enqueue_job(kind=kind, params={})
    Job.objects.filter(pk=ended.pk).update(state="failed")
    JobLine.objects.create(job=ended, text="x")
    both = {"action": "delete_selected", "_selected_action": [running.pk, ended.pk], "post": "yes"}
    assert admin.post(LIST, both).status_code == 403
    assert admin.post(page(running, "delete"), {"post": "yes"}).status_code == 403
    assert admin.post(page(ended, "delete"), {"post": "yes"}).status_code == 302
    assert list(Job.objects.all()) == [running]


@pytest.mark.parametrize("path", ["nonsense/", "nonsense/change/", f"{uuid.UUID(int=7)}/change/"])
def test_addresses_that_name_no_job_lead_nowhere(admin: Client, path: str) -> None:
    assert admin.get(LIST + path, follow=True).status_code in (200, 404)
    assert admin.post(LIST + "nonsense/cancel/").status_code == 404


@pytest.mark.parametrize("query", ["q=%00", "q=" + "x" * 5_000, "q=%F0%9F%98%80", "state__exact=none", "p=-1"])
def test_searches_with_strange_words_are_no_errors(admin: Client, kind: str, query: str) -> None:
    enqueue_job(kind=kind, params={})
    assert admin.get(f"{LIST}?{query}").status_code in (200, 302)


def test_commands_list_cancel_and_retry(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = enqueue_job(kind=kind, params={}, title="Of a command")
    Job.objects.update(done=1, total=4, message="at one")
    call_command("jobs")
    assert f'{job.pk} queued 1/4 test.0 "Of a command": at one' in capsys.readouterr().out
    call_command("jobs", "--state", "failed")
    assert capsys.readouterr().out == ""
    call_command("jobs", "--lane", "bulk")
    assert str(job.pk) in capsys.readouterr().out
    call_command("jobs", "--lane", "media")
    assert capsys.readouterr().out == ""
    call_command("cancel_job", str(job.pk))
    assert "Cancelling " in capsys.readouterr().out
    with pytest.raises(CommandError, match="has already ended"):
        call_command("cancel_job", str(job.pk))
    call_command("retry_job", str(job.pk))
    job.refresh_from_db()
    assert job.state == "queued"
    with pytest.raises(CommandError, match="does not exist"):
        call_command("retry_job", str(uuid.uuid4()))
    with pytest.raises(CommandError, match="invalid UUID"):
        call_command("cancel_job", "nonsense")


def test_jobs_are_filtered_by_their_kind_in_words(admin: Client, kind: str, add_kind: AddKind) -> None:
    other = add_kind(lambda job: None)
    enqueue_job(kind=kind, params={}, title="the first")
    enqueue_job(kind=other, params={}, title="the second")
    text = admin.get(f"{LIST}?kind={other}").content.decode()
    assert "the second" in text
    assert "the first" not in text
    assert admin.get(f"{LIST}?kind={EVIL}").status_code == 200


def test_jobs_show_their_lane_and_are_filtered_by_it(admin: Client, kind: str) -> None:
    job = enqueue_job(kind=kind, params={}, title="the long one")
    Job.objects.create(kind=kind, lane="interactive", title="the short one")
    text = admin.get(f"{LIST}?lane__exact=bulk").content.decode()
    assert "the long one" in text
    assert "the short one" not in text
    assert 'class="field-lane">Bulk<' in text
    assert "Bulk" in admin.get(f"{LIST}{job.pk}/change/").content.decode()
    assert admin.get(f"{LIST}?lane__exact={EVIL}").status_code in (200, 302)


def test_the_list_takes_the_same_queries_for_few_jobs_and_for_many(admin: Client, kind: str) -> None:
    owner = User.objects.create_user("rita")
    counts = []
    for more in (2, 30):
        for _ in range(more):
            enqueue_job(kind=kind, params={}, owner=owner)
        with CaptureQueriesContext(connection) as queries:
            assert admin.get(LIST).status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_who_cancelled_and_who_ran_it_again_is_in_the_trail(admin: Client, kind: str) -> None:
    job = enqueue_job(kind=kind, params={}, title="Sweep")
    admin.post(page(job, "cancel"))
    admin.post(page(job, "retry"))
    events = AuditEvent.objects.filter(kind="jobs.job").order_by("pk")
    assert [(event.action, event.subject, event.user) for event in events] == [
        ("cancel", "Sweep", "root"),
        ("retry", "Sweep", "root"),
    ]


@pytest.mark.parametrize(
    ("state", "result", "is_told"),
    [("succeeded", {"text": "<b>"}, True), ("succeeded", {}, False), ("failed", {"text": "<b>"}, False)],
)
def test_a_kind_tells_its_results_to_people(admin: Client, state: str, result: dict[str, str], is_told: bool) -> None:
    register(
        JobKind(
            "test.told",
            "Told",
            lambda job: None,
            lane=Lane.BULK,
            show=lambda found: format_html("<i>{}</i>", found["text"]),
        )
    )
    try:
        text = admin.get(page(Job.objects.create(kind="test.told", title="Told", state=state, result=result)))
    finally:
        unregister("test.told")
    assert ("<i>&lt;b&gt;</i>" in text.content.decode()) == ("As JSON" in text.content.decode()) == is_told


def test_plain_results_are_names_and_values(admin: Client, kind: str) -> None:
    result = {"num_rows": 12_345, "dead_share": 0.078125, "at_once": True, "note": EVIL, "until": None}
    job = Job.objects.create(kind=kind, title="Done", state="succeeded", result=result)
    text = admin.get(page(job)).content.decode()
    for name, value in (("Num rows", "12,345"), ("Dead share", "0.07812"), ("At once", "yes"), ("Until", "–")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in text
    assert EVIL not in text
    assert "As JSON" in text
    deep = Job.objects.create(kind=kind, title="Done", state="succeeded", result={"norms": {"a": 1}})
    assert "<dl" not in admin.get(page(deep)).content.decode()
