"""Jobs of dead processes run again, once per crash; postponed ones wait; old jobs are forgotten."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from jobs.claims import claim_next
from jobs.errors import JobPostponed
from jobs.execution import RunningJobs, run_job
from jobs.lanes import Lane
from jobs.models import Job
from jobs.running_job import RunningJob
from jobs.services import enqueue_job
from jobs.worker import MAX_CRASHES, delete_ended, recover_stalled, sweep
from tests.jobs.conftest import AddKind

pytestmark = [pytest.mark.django_db, pytest.mark.slow]


def orphan(add_kind: AddKind, silent_s: float, **values: object) -> Job:
    """A job whose process has said nothing for that long."""
    job = enqueue_job(kind=add_kind(lambda job: None), params={})
    heartbeat = Now() - timedelta(seconds=silent_s)
    Job.objects.filter(pk=job.pk).update(
        state="running", claim=uuid.uuid4(), worker="lost", heartbeat_at=heartbeat, **values
    )
    return job


def test_a_job_without_signs_of_life_runs_again_once_per_crash(add_kind: AddKind) -> None:
    job = orphan(add_kind, 31, checkpoint={"next": 5})
    alive = orphan(add_kind, 29)
    for _ in range(3):  # sweeping more often changes nothing
        recover_stalled(30)
    job.refresh_from_db()
    alive.refresh_from_db()
    assert (job.state, job.claim, job.crashes, job.checkpoint) == ("queued", None, 1, {"next": 5})
    assert "lost" in job.lines.get().text
    assert (alive.state, alive.crashes) == ("running", 0)


def test_a_job_that_kills_its_process_each_time_is_stopped(add_kind: AddKind) -> None:
    job = orphan(add_kind, 31, crashes=MAX_CRASHES - 1)
    recover_stalled(30)
    job.refresh_from_db()
    assert (job.state, job.claim) == ("failed", None)
    assert "3 times" in job.error
    assert job.finished_at is not None


def test_an_orphan_that_was_cancelled_does_not_run_again(add_kind: AddKind) -> None:
    job = orphan(add_kind, 31, cancel_requested=True)
    recover_stalled(30)
    job.refresh_from_db()
    assert (job.state, job.claim) == ("cancelled", None)


def test_ended_jobs_are_forgotten_after_their_time(add_kind: AddKind) -> None:
    kind = add_kind(lambda job: None)
    jobs = [enqueue_job(kind=kind, params={}) for _ in range(4)]
    for job, state, days in zip(jobs, ("succeeded", "failed", "cancelled", "succeeded"), (31, 31, 31, 29), strict=True):
        Job.objects.filter(pk=job.pk).update(state=state, finished_at=Now() - timedelta(days=days))
    waiting = enqueue_job(kind=kind, params={})
    Job.objects.filter(pk=waiting.pk).update(created_at=Now() - timedelta(days=99))
    assert delete_ended(30) == 3
    assert set(Job.objects.all()) == {jobs[3], waiting}


def test_a_sweep_does_all_of_it(add_kind: AddKind) -> None:
    stalled, old = orphan(add_kind, 31), orphan(add_kind, 0)
    Job.objects.filter(pk=old.pk).update(state="failed", claim=None, finished_at=Now() - timedelta(days=31))
    sweep(stall_s=30, retention_days=30)
    assert [job.pk for job in Job.objects.filter(state="queued")] == [stalled.pk]
    assert not Job.objects.filter(pk=old.pk).exists()


def test_heartbeats_keep_jobs_alive_and_find_out_who_lost_theirs(add_kind: AddKind) -> None:
    running = RunningJobs()
    mine, theirs = orphan(add_kind, 60), orphan(add_kind, 60)
    mine.refresh_from_db()
    assert mine.claim is not None
    held, lost = RunningJob(mine.pk, mine.claim, {}), RunningJob(theirs.pk, uuid.uuid4(), {})
    with running.entry(held), running.entry(lost):
        running.beat()
        recover_stalled(30)
    assert (held.is_stopped, lost.is_stopped) == (False, True)
    states = {job.pk: job.state for job in Job.objects.all()}
    assert states == {mine.pk: "running", theirs.pk: "queued"}
    running.beat()  # nobody runs: nothing to say


def test_a_postponed_job_starts_when_it_is_due(add_kind: AddKind) -> None:
    until = timezone.now() + timedelta(hours=3)

    def run(job: RunningJob) -> None:
        job.save_checkpoint({"next": 1})
        raise JobPostponed(until, "Waits for tomorrow.")

    job = enqueue_job(kind=add_kind(run), params={})
    run_job(job.pk)
    job.refresh_from_db()
    assert (job.state, job.not_before, job.message) == ("queued", until, "Waits for tomorrow.")
    assert (job.claim, job.checkpoint, job.crashes) == (None, {"next": 1}, 0)
    run_job(job.pk)  # not yet
    sweep(stall_s=30, retention_days=1)
    job.refresh_from_db()
    assert job.attempts == 1
    assert claim_next(Lane.BULK, uuid.uuid4(), is_async=False) is None
    Job.objects.update(not_before=timezone.now())
    assert claim_next(Lane.BULK, uuid.uuid4(), is_async=False) == job
    Job.objects.update(state="queued", claim=None, attempts=1)
    run_job(job.pk)
    job.refresh_from_db()
    assert (job.attempts, job.not_before) == (2, until)
