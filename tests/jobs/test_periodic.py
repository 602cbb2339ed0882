"""Jobs that come back: when there is something to do, once in their time, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.utils import timezone

from jobs.kinds import JobKind, register, unregister
from jobs.lanes import Lane
from jobs.models import Job, JobLine
from jobs.periodic import _LOCK, Periodic, enqueue_due, register_periodic, unregister_periodic

pytestmark = pytest.mark.django_db(transaction=True)


class Question:
    def __init__(self) -> None:
        self.answer: Any = True
        self.asked = 0

    def __call__(self) -> bool:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return bool(self.answer)


@pytest.fixture
def question() -> Iterator[Question]:
    made = Question()
    register(JobKind("test.often", "Often", lambda job: None, lane=Lane.SYSTEM))
    register_periodic(Periodic("test.often", timedelta(hours=1), made))
    yield made
    unregister_periodic("test.often")
    unregister("test.often")


def queued() -> int:
    return len([job for job in enqueue_due() if job.kind == "test.often"])


def end(ago: timedelta) -> None:
    Job.objects.update(state=Job.State.SUCCEEDED, created_at=timezone.now() - ago)


def test_it_is_queued_when_it_is_due(question: Question):
    question.answer = False
    assert queued() == 0
    question.answer = True
    assert queued() == 1
    assert Job.objects.get().title == "Often"


def test_it_is_not_asked_again_within_its_time(question: Question):
    assert queued() == 1
    end(timedelta(minutes=59))
    assert queued() == 0
    end(timedelta(minutes=61))
    assert queued() == 1
    assert question.asked == 2


def test_one_that_has_not_ended_is_enough(question: Question):
    assert queued() == 1
    Job.objects.update(created_at=timezone.now() - timedelta(days=1))
    assert queued() == 0


def test_a_question_that_fails_keeps_back_no_other(question: Question):
    other = Question()
    question.answer = ValueError("no")
    register(JobKind("test.other", "Other", lambda job: None, lane=Lane.SYSTEM))
    register_periodic(Periodic("test.other", timedelta(hours=1), other))
    try:
        assert [job.kind for job in enqueue_due()] == ["test.other"]
    finally:
        unregister_periodic("test.other")
        unregister("test.other")


def test_one_process_at_a_time_asks(question: Question):
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [_LOCK])
        assert queued() == 0
        assert question.asked == 0
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [_LOCK])
        assert queued() == 1
    finally:
        other.close()


def test_results_are_shown_to_those_who_may_see_what_they_are_made_of(question: Question):
    register(JobKind("test.secret", "Secret", lambda job: None, "openai_api.view_prompt_text", lane=Lane.BULK))
    try:
        owner = User.objects.create_user("owner", is_staff=True)
        owner.user_permissions.set(Permission.objects.filter(codename="view_job"))
        job = Job.objects.create(kind="test.secret", title="Secret", owner=owner, result={"text": "HIDDEN"})
        JobLine.objects.create(job=job, text="HIDDEN")
        url = f"/admin/jobs/job/{job.pk}/change/"
        for permission, is_seen in ((None, False), ("view_prompt_text", True)):
            if permission:
                owner.user_permissions.add(Permission.objects.get(codename=permission))
            client = Client()
            client.force_login(owner)
            page = client.get(url)
            assert page.status_code == 200
            assert ("HIDDEN" in page.content.decode()) == is_seen
    finally:
        unregister("test.secret")
