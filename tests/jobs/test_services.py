"""Enqueuing, cancelling and retrying, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction

from core.text import clean_text
from jobs.claims import CHANNEL
from jobs.errors import JobStateError, NotStorableError, UnknownKindError
from jobs.kinds import JobKind, find_kind, kind_title, register
from jobs.lanes import Lane
from jobs.models import MAX_BYTES, Job
from jobs.services import cancel_job, enqueue_job, retry_job
from tests.jobs.conftest import AddKind

pytestmark = pytest.mark.django_db


@pytest.fixture
def kind(add_kind: AddKind) -> str:
    return add_kind(lambda job: None)


def test_a_queued_job_has_its_row(kind: str) -> None:
    user = User.objects.create_user("rita")
    job = enqueue_job(kind=kind, params={"a": [1, None, "ü"]}, owner=user, priority=7)
    row = Job.objects.get()
    assert (row.pk, row.state, row.params, row.owner, row.priority) == (
        job.pk,
        "queued",
        {"a": [1, None, "ü"]},
        user,
        7,
    )
    assert (row.title, kind_title(row.kind), row.attempts, row.claim) == ("Test 1", "Test 1", 0, None)
    assert (row.lane, row.account) == ("bulk", f"user {user.pk}")


@pytest.mark.django_db(transaction=True)
def test_workers_are_notified_at_the_commit_and_not_of_a_rollback(kind: str) -> None:
    with listening() as listener:
        with transaction.atomic():
            enqueue_job(kind=kind, params={})
            transaction.set_rollback(True)
        assert not Job.objects.exists()
        with transaction.atomic():
            job = enqueue_job(kind=kind, params={})
            assert not list(listener.notifies(timeout=0.2, stop_after=1))
        (notification,) = listener.notifies(timeout=30, stop_after=1)
        assert notification.payload == "bulk"
        cancel_job(job=job)
        retry_job(job=Job.objects.get())
        (notification,) = listener.notifies(timeout=30, stop_after=1)
        assert notification.payload == "bulk"


@contextmanager
def listening() -> Iterator[psycopg.Connection[Any]]:
    params = connection.get_connection_params()
    with psycopg.connect(**{**params, "autocommit": True}) as listener:
        listener.execute(f"LISTEN {CHANNEL}")
        yield listener


def test_an_unknown_kind_is_refused_with_those_that_are_known(kind: str) -> None:
    with pytest.raises(UnknownKindError, match=r"`nonsense`.*test\.0"):
        enqueue_job(kind="nonsense", params={})
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"x": math.nan}, "JSON"),
        ({"x": -math.inf}, "JSON"),
        ({"x": "a\x00b"}, "NUL"),
        ({"x\x00": 1}, "NUL"),
        ({"x": "\ud800"}, "surrogate"),
        ({"x": object()}, "JSON"),
        ([1], "object, got list"),
        ({"x": "a" * MAX_BYTES}, "16 MiB"),
    ],
)
def test_parameters_that_json_in_postgres_cannot_hold_are_refused(kind: str, params: object, complaint: str) -> None:
    with pytest.raises(NotStorableError, match=complaint):
        enqueue_job(kind=kind, params=params)  # type: ignore[arg-type]
    assert not Job.objects.exists()


def test_parameters_that_contain_themselves_are_refused(kind: str) -> None:
    params: dict[str, object] = {}
    params["self"] = params
    with pytest.raises(NotStorableError):
        enqueue_job(kind=kind, params=params)


def test_titles_and_priorities_are_cut_to_what_fits(kind: str) -> None:
    job = enqueue_job(kind=kind, params={}, title="a\x00" * 400, priority=10**9)
    job.refresh_from_db()
    assert (len(job.title), job.priority) == (300, 1_000)
    assert clean_text("\udfff\x00", 9) == "\ufffd\ufffd"


def test_a_queued_job_is_cancelled_at_once_and_a_running_one_is_asked(kind: str) -> None:
    job = enqueue_job(kind=kind, params={})
    cancelled = cancel_job(job=job)
    cancelled.refresh_from_db()
    assert cancelled.state == "cancelled"
    assert cancelled.finished_at is not None
    running = enqueue_job(kind=kind, params={})
    Job.objects.filter(pk=running.pk).update(state="running", claim=running.pk)
    assert cancel_job(job=running).cancel_requested
    assert cancel_job(job=running).state == "running"  # asking twice is no error


@pytest.mark.parametrize("state", Job.ENDED)
def test_an_ended_job_cannot_be_cancelled(kind: str, state: str) -> None:
    job = enqueue_job(kind=kind, params={})
    Job.objects.update(state=state)
    with pytest.raises(JobStateError, match=state):
        cancel_job(job=job)


@pytest.mark.parametrize("state", ["failed", "cancelled"])
def test_a_retry_forgets_the_failure_and_keeps_the_checkpoint(kind: str, state: str) -> None:
    job = enqueue_job(kind=kind, params={})
    Job.objects.update(state=state, error="No.", crashes=2, cancel_requested=True, checkpoint={"next": 4})
    retry_job(job=job)
    job.refresh_from_db()
    assert (job.state, job.error, job.crashes, job.cancel_requested) == ("queued", "", 0, False)
    assert (job.checkpoint, job.finished_at) == ({"next": 4}, None)


@pytest.mark.parametrize("state", ["queued", "succeeded"])
def test_only_failed_and_cancelled_jobs_run_again(kind: str, state: str) -> None:
    job = enqueue_job(kind=kind, params={})
    Job.objects.update(state=state)
    with pytest.raises(JobStateError, match=state):
        retry_job(job=job)


def test_kinds_have_one_meaning(kind: str) -> None:
    register(find_kind(kind))  # an app may be set up twice
    with pytest.raises(ValueError, match="Another kind"):
        register(JobKind(kind, "Else", lambda job: None, lane=Lane.BULK))
