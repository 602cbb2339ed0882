"""What a replay found, on its job's page: said in words, compared, and with strangers' texts as text."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from openai_api.apps import REPLAY
from openai_api.models import RequestLog
from openai_api.request_log.pages.replay import replayed_html, verdict

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>"


def result(**fields: Any) -> dict[str, Any]:
    found = {"request": "req_1", "profile": "gloomy@1", "policies": [], "same_steering": True, "seeded": True}
    return {**found, "same_text": True, "texts": ["It rained."], "original": ["It rained."], **fields}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "Same text."),
        ({"same_steering": False}, "Same text, although the steering differs."),
        ({"same_text": False, "same_steering": False}, "Different text: the steering differs."),
        ({"same_text": False, "seeded": False}, "had no seed"),
        ({"same_text": False}, "same steering and seed"),
    ],
)
def test_the_comparison_is_said_in_a_sentence(fields: dict[str, Any], said: str):
    assert said in verdict(result(**fields))


def test_both_texts_and_their_difference_are_shown():
    html = replayed_html(result(texts=["It snowed.", "Late."], original=["It rained."], same_text=False))
    assert "<del>rained.</del>" in html
    assert "<ins>snowed.</ins>" in html
    assert "<ins>Late.</ins>" in html
    assert "with profile gloomy@1" in html
    assert "no longer in the log" in html


def test_texts_of_strangers_stay_texts():
    html = replayed_html(result(texts=[EVIL], original=["\u202ereversed"], same_text=False, profile=EVIL))
    assert "<script>" not in html
    assert "⟨U+202E⟩reversed" in html


def test_the_job_s_page_tells_it_and_leads_to_the_request():
    RequestLog.objects.create(id="req_1", created_at=timezone.now(), endpoint="/v1/chat/completions", status=200)
    job = Job.objects.create(kind=REPLAY, title="Replay req_1", state="succeeded", result=result())
    client = Client(headers={"host": "localhost"})
    client.force_login(User.objects.create_superuser("root"))
    page = client.get(f"/admin/jobs/job/{job.pk}/change/").content.decode()
    assert "<strong>Same text.</strong>" in page
    assert '<a href="/admin/openai_api/requestlog/req_1/change/">req_1</a>' in page
    assert "As JSON" in page
