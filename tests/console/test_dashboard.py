"""The dashboard: content by permission, few queries, and escaping."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries
from pytest_django.fixtures import Settings

from audit.models import AuditEvent
from audit.record import record
from console.attention import notices
from console.dashboard import MAX_ROWS
from console.first_steps import first_steps
from console.load.load import NO_GAPS, NO_WAITS, Load
from console.load.sampler import record_load
from inference.models import LanguageModel
from jobs.models import Job
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey, LogAccess, RequestLog
from steering.models import Evaluation, SteeringProfile
from tests.console.test_pages import client_of, staff

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"


@pytest.fixture
def root() -> User:
    return User.objects.create_superuser("root")


def member(group: str) -> User:
    user = User.objects.create_user(f"one-of-{group}", is_staff=True)
    user.groups.add(Group.objects.get(name=group))
    return user


def page(user: User, query: str = "") -> str:
    answer = client_of(user).get(f"/admin/{query}")
    assert answer.status_code == 200
    return answer.content.decode()


def write_load(**fields: object) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    load = Load(requests=4, generation_tokens=120, **fields)  # type: ignore[arg-type]
    record_load(process=uuid.uuid4(), minutes={now: load}, hours={now.replace(minute=0): load})


@pytest.mark.parametrize("span", ["", "?span=hour", "?span=day", "?span=week", "?span=<script>", "?span=year"])
def test_every_span_shows_what_was_sampled(root: User, span: str):
    write_load(errors={"model_not_found": 3})
    text = page(root, span)
    assert "4 requests, 3 errors, 120 tokens generated" in text
    assert "model_not_found" in text
    assert "<script>" not in text


def test_charts_are_tables_with_a_row_for_each_point(root: User):
    waits = (0, 10, *NO_WAITS[2:])
    write_load(first_tokens=waits, gaps=(5, *NO_GAPS[1:]))
    text = page(root)
    assert text.count("data-chart") == 6
    assert text.count("<tr data-at=") % 60 == 0
    assert "No data for the last hour." in text  # the KV cache was not used


def test_figures_have_their_course(root: User):
    assert "sparkline" not in page(root)
    write_load(running=3, waiting=2)
    text = page(root)
    assert text.count('<svg class="sparkline"') == 3, "the KV cache was not used"
    assert 'aria-label="Last hour: at most 5 running and waiting"' in text
    assert 'aria-label="Last hour: at most 2 tokens per second"' in text
    (line, *_) = re.findall(r'<polyline points="([^"]+)"', text)
    places = [[float(number) for number in place.split(",")] for place in line.split()]
    assert len(places) == 60
    assert places[0] == [0, 24]
    assert min(height for _, height in places) == 0


def test_what_was_counted_leads_to_the_log_and_sums_up(root: User):
    errors = {f"code_{number}": 10 - number for number in range(MAX_ROWS + 2)}
    write_load(errors=errors, profiles={"cats@1": 2, "inline": 1})
    text = page(root, "?span=day")
    log = reverse("admin:openai_api_requestlog_changelist")
    assert f'<a href="{log}?code=code_0&amp;last=day&amp;source=all">code_0</a>' in text
    assert f'<a href="{log}?profile=cats%401&amp;last=day&amp;source=all">cats@1</a>' in text
    assert '<th scope="row">inline</th>' in text
    assert '<th scope="row">others</th><td class="number">9</td>' in text
    assert client_of(root).get(f"{log}?code=code_0&last=day").status_code == 200
    assert log not in page(staff("view_loadsample", "view_steeringprofile")).partition("<main")[2]


def test_profiles_and_keys_are_named_to_who_may_see_them(root: User):
    key = create_api_key(name=EVIL, owner=root).api_key
    write_load(profiles={"cats@1": 2, "": 1}, keys={str(key.pk): 3, "999999": 1, "": 1})
    text = page(root)
    assert "cats@1" in text
    assert "others" in text
    assert "&lt;script&gt;alert(1)" in text
    assert EVIL not in text
    text = page(staff("view_loadsample"))
    assert "4 requests" in text
    for hidden in ("cats@1", "Most used keys", "Models</h2>", "Jobs</h2>"):
        assert hidden not in text


def test_of_profiles_one_sees_one_s_own_and_nobody_s(root: User):
    rita = staff("view_loadsample", "view_steeringprofile")
    model = LanguageModel.objects.create(name="m", source="/m")
    for name, owner in (("secret", root), ("hers", rita), ("shipped", None)):
        SteeringProfile.objects.create(name=name, model=model, owner=owner)
    write_load(profiles={"secret@1": 7, "secret@2": 2, "hers@1": 3, "shipped@1": 2, "inline": 4, "": 1})
    text = page(rita)
    assert "hers@1" in text
    assert "shipped@1" in text
    assert '<th scope="row">inline</th>' in text
    assert "secret" not in text
    assert '<th scope="row">others</th><td class="number">10</td>' in text
    assert "secret@1" in page(root)


def test_who_may_see_nothing_sees_nothing(root: User):
    write_load()
    Job.objects.create(kind="x", title="Of root", owner=root, state="failed", finished_at=timezone.now())
    LanguageModel.objects.create(name="m", source="/m", state="failed", error="broken")
    text = page(staff())
    for hidden in ("4 requests", "Of root", "broken", "First steps"):
        assert hidden not in text


def test_what_needs_attention_is_said_gravest_first(root: User):
    LanguageModel.objects.create(name="m", source="/m", state="failed", error=f"No memory. {EVIL}")
    now = timezone.now()
    Job.objects.create(kind="x", title=EVIL, state="failed", error="Boom.", finished_at=now)
    Job.objects.create(kind="x", title="Old", state="failed", finished_at=now - timedelta(days=2))
    ApiKey.objects.filter(pk=create_api_key(name="k", owner=root).api_key.pk).update(expires_at=now + timedelta(days=1))
    found = notices(root)
    assert [each.level for each in found] == sorted(
        (each.level for each in found), key=lambda level: ("bad", "warn", "quiet").index(level)
    )
    text = page(root)
    for said in (
        "The engine is not running",
        "The model m failed to load",
        "failed. Boom.",
        "The key k expires on",
    ):
        assert said in text
    assert not any("Old" in each.text for each in found)
    assert EVIL not in text


@pytest.mark.parametrize(
    ("requests", "errors", "said"),
    [
        (100, {"model_not_found": 4, "invalid_value": 2}, "6 of 100 requests failed in the last hour, most often with"),
        (100, {"model_not_found": 4}, ""),
        (100, {"client_disconnected": 50}, ""),
        (10, {"model_not_found": 10}, ""),
    ],
)
def test_many_errors_need_attention(root: User, requests: int, errors: dict[str, int], said: str):
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    load = Load(requests=requests, errors=errors)
    record_load(process=uuid.uuid4(), minutes={now: load}, hours={now.replace(minute=0): load})
    found = [each for each in notices(root) if "requests failed" in each.text]
    assert [each.text.startswith(said) for each in found] == ([True] if said else [])
    if found:
        assert "code=model_not_found" in found[0].url
        assert client_of(root).get(found[0].url).status_code == 200
        (seen,) = [each for each in notices(staff("view_loadsample")) if "requests failed" in each.text]
        assert seen.url == ""


def test_long_waits_are_in_seconds(root: User):
    write_load(first_tokens=(*NO_WAITS[:-1], 3), gaps=(5, *NO_GAPS[1:]))
    text = page(root)
    assert '<strong>Time to first token</strong> <span class="quiet">s</span>' in text
    assert '<strong>Time between tokens</strong> <span class="quiet">ms</span>' in text


def test_of_jobs_one_hears_one_s_own():
    rita = staff("view_job")
    now = timezone.now()
    Job.objects.create(kind="x", title="Hers", owner=rita, state="failed", finished_at=now)
    Job.objects.create(kind="x", title="Another's", state="failed", finished_at=now)
    text = page(rita)
    assert "Hers" in text
    assert "Another" not in text


def test_of_keys_one_sees_one_s_own(root: User):
    rita = staff("view_loadsample", "view_apikey")
    hers, other = (create_api_key(name=name, owner=owner).api_key for name, owner in (("hers", rita), ("other", root)))
    ApiKey.objects.update(expires_at=timezone.now() + timedelta(days=1))
    write_load(keys={str(hers.pk): 3, str(other.pk): 5})
    text = page(rita)
    assert "The key hers expires on" in text
    assert "The key other" not in text
    assert ">other<" not in text


def test_the_number_of_queries_does_not_grow(root: User, django_assert_max_num_queries: DjangoAssertNumQueries):
    key = create_api_key(name="k", owner=root).api_key
    for number in range(30):
        Job.objects.create(kind="x", title=f"Job {number}", state="failed", finished_at=timezone.now())
        model = LanguageModel.objects.create(name=f"m{number}", source="/m", state="failed")
        SteeringProfile.objects.create(name=f"p{number}", model=model, owner=root)
        write_load(keys={str(key.pk): 1}, profiles={f"p{number}@1": 1})
    client = client_of(root)
    client.get("/admin/")
    with django_assert_max_num_queries(35):
        client.get("/admin/?span=week")


class TestFirstSteps:
    @pytest.fixture
    def url(self, settings: Settings) -> str:
        settings.MILLM_AUTH = "loopback"
        return "http://127.0.0.1:8000"

    def states(self, user: User, url: str) -> list[bool]:
        return [step.is_done for step in first_steps(user, url)]

    def test_each_is_done_by_its_act(self, root: User, url: str):
        assert self.states(root, url) == [False, False, False, False]
        model = LanguageModel.objects.create(name="m", source="/m")
        create_api_key(name="k", owner=root)
        assert self.states(root, url) == [True, True, False, False]
        log = {"created_at": timezone.now(), "endpoint": "/v1/chat/completions"}
        RequestLog.objects.create(id="r1", status=401, **log)
        assert self.states(root, url)[2] is False
        RequestLog.objects.create(id="r2", status=200, **log)
        assert self.states(root, url)[2] is True
        profile = model.profiles.create(name="mine", owner=root)
        profile.versions.create(number=1, edits=[], fingerprint="x", published_by=root)
        assert first_steps(root, url) == []

    def test_the_page_shows_them_until_then(self, root: User, url: str):
        text = page(root)
        assert "First steps" in text
        assert "curl http://localhost/v1/chat/completions" in text

    def test_what_is_done_can_be_done_again(self, root: User, url: str):
        LanguageModel.objects.create(name="m", source="/m")
        RequestLog.objects.create(id="r", status=200, created_at=timezone.now(), endpoint="/v1/chat/completions")
        text = page(root)
        assert text.count(">done</span>") == 2
        for still_there in ("curl http://localhost/v1", "Open playground", "Add your own model"):
            assert still_there in text
        assert "Install the demo" not in text

    def test_who_cannot_take_them_is_not_led_there(self, url: str):
        assert first_steps(staff("view_languagemodel"), url) == []

    def test_a_second_administrator_has_steps_of_their_own(self, root: User, url: str):
        LanguageModel.objects.create(name="m", source="/m")
        create_api_key(name="k", owner=root)
        other = User.objects.create_superuser("other")
        assert self.states(root, url)[:2] == [True, True]
        assert self.states(other, url)[:2] == [True, False]

    def test_researchers_steer_publish_and_measure(self, url: str):
        rita = member("Researchers")
        assert [step.title for step in first_steps(rita, url)] == [
            "Steer in the studio",
            "Publish a profile",
            "Measure it",
        ]
        model = LanguageModel.objects.create(name="m", source="/m")
        profile = SteeringProfile.objects.create(name="mine", model=model, owner=rita)
        assert self.states(rita, url) == [True, False, False]
        profile.versions.create(number=1, edits=[], fingerprint="x", published_by=rita)
        assert self.states(rita, url) == [True, True, False]
        Evaluation.objects.create(kind="sweep", model=model, profile=profile, result={}, created_by=rita)
        assert first_steps(rita, url) == []

    def test_auditors_find_and_read_a_request(self, url: str):
        anna = member("Auditors")
        assert [step.title for step in first_steps(anna, url)] == ["Find a request", "Read a request"]
        LogAccess.objects.create(act=LogAccess.Act.SEARCH, username="somebody")
        assert self.states(anna, url) == [False, False]
        for act in (LogAccess.Act.SEARCH, LogAccess.Act.READ):
            LogAccess.objects.create(act=act, username=anna.username)
        assert first_steps(anna, url) == []

    def test_a_user_can_hide_them(self, root: User, url: str):
        other = User.objects.create_superuser("other")
        client = client_of(root)
        assert client.get(reverse("admin:console_hide_first_steps")).status_code == 405
        assert client.post(reverse("admin:console_hide_first_steps")).status_code == 302
        assert client.post(reverse("admin:console_hide_first_steps")).status_code == 302
        assert first_steps(root, url) == []
        assert "First steps" not in page(root)
        assert first_steps(other, url) != []


class TestHome:
    def test_researchers_see_their_work_before_the_server(self):
        rita = member("Researchers")
        model = LanguageModel.objects.create(name="m", source="/m")
        for name, owner in (("mine", rita), (EVIL[:5], rita), ("shipped", None)):
            SteeringProfile.objects.create(name=name, model=model, owner=owner)
        SteeringProfile.objects.create(name="old", model=model, owner=rita, archived_at=timezone.now())
        text = page(rita)
        assert text.index("My profiles") < text.index("Requests per second")
        assert "/admin/studio/?model=m&amp;profile=mine" in text
        assert "Not published yet." in text
        for hidden in ("profile=shipped", "profile=old", "Recent changes", EVIL[:5] + "<"):
            assert hidden not in text

    def test_who_runs_the_server_sees_it_first(self, root: User):
        text = page(root)
        assert text.index("Requests per second") < text.index("My profiles")

    def test_auditors_see_changes_and_evaluations(self, root: User):
        model = LanguageModel.objects.create(name="m", source="/m")
        record(AuditEvent.Action.CHANGE, model, user=root, detail="x")
        Evaluation.objects.create(kind="sweep", model=model, result={}, created_by=root)
        text = page(member("Auditors"))
        assert "changed m" in text
        assert "Recent evaluations" in text
        assert "My profiles" not in text

    def test_without_work_it_says_how_to_begin(self):
        text = page(member("Researchers"))
        assert "You have no profiles yet." in text
        assert "No evaluations yet." in text


def test_a_stranger_is_sent_to_the_login():
    assert Client().get("/admin/", headers={"host": "localhost"}).status_code == 302
