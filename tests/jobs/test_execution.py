"""One run of a job: its ends, what it writes, and who may write."""

from __future__ import annotations

import os
import re
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.db import connection

from jobs.claims import claim_job
from jobs.errors import JobLost
from jobs.execution import RunningJobs, run_job
from jobs.kinds import unregister
from jobs.models import Job, JobLine
from jobs.running_job import MAX_LINES, RunningJob
from jobs.services import cancel_job, enqueue_job, retry_job
from tests.jobs.conftest import AddKind
from tests.live import PROJECT_DIR

pytestmark = pytest.mark.django_db


def ended(job: Job) -> Job:
    run_job(job.pk)
    return Job.objects.get(pk=job.pk)


def test_a_run_gets_what_was_asked_for_and_leaves_what_it_says(add_kind: AddKind) -> None:
    seen = []

    def run(job: RunningJob) -> dict[str, object]:
        seen.append((job.id, job.params, job.owner_id, job.checkpoint))
        job.log("begins")
        job.progress(1, 4, "one of four")
        job.save_checkpoint({"next": 1})
        return {"answer": 42}

    user = User.objects.create_user("rita")
    job = ended(enqueue_job(kind=add_kind(run), params={"q": "?"}, owner=user))
    assert seen == [(job.pk, {"q": "?"}, user.pk, {})]
    assert (job.state, job.result, job.checkpoint) == ("succeeded", {"answer": 42}, {"next": 1})
    assert (job.done, job.total, job.message, job.attempts, job.claim) == (4, 4, "", 1, None)
    assert [line.text for line in job.lines.all()] == ["begins"]
    assert job.started_at is not None
    assert job.finished_at is not None
    assert str(os.getpid()) in job.worker


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("The strength must be finite."), "The strength must be finite."),
        (KeyError("layer"), "KeyError: 'layer'"),
        (RuntimeError(), "RuntimeError"),
        (ValueError("NUL \x00 here"), "ValueError: NUL \ufffd here"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_what_a_run_raises_is_the_jobs_error(add_kind: AddKind, error: BaseException, text: str) -> None:
    def run(job: RunningJob) -> None:
        job.progress(1, 2, "half")
        raise error

    job = ended(enqueue_job(kind=add_kind(run), params={}))
    assert (job.state, job.error, job.message, job.done, job.claim) == ("failed", text, "half", 1, None)


def test_a_result_that_cannot_be_stored_fails_the_job(add_kind: AddKind) -> None:
    job = ended(enqueue_job(kind=add_kind(lambda job: {"kl": float("nan")}), params={}))
    assert job.state == "failed"
    assert "result" in job.error
    assert job.result == {}


def test_a_cancel_is_seen_at_the_next_progress(add_kind: AddKind) -> None:
    steps = []

    def run(job: RunningJob) -> None:
        for step in range(5):
            steps.append(step)
            if step == 2:
                cancel_job(job=Job.objects.get(pk=job.id))
            job.progress(step, 5)

    job = ended(enqueue_job(kind=add_kind(run), params={}))
    assert (job.state, job.done, steps) == ("cancelled", 2, [0, 1, 2])


def test_a_run_that_survives_faults_does_not_survive_its_cancellation(add_kind: AddKind) -> None:
    def run(job: RunningJob) -> None:
        cancel_job(job=Job.objects.get(pk=job.id))
        for _ in range(3):
            try:
                job.check_cancelled()
            except Exception:  # noqa: BLE001, S112 - as careless runs do
                continue

    assert ended(enqueue_job(kind=add_kind(run), params={})).state == "cancelled"


def test_a_retry_goes_on_from_the_checkpoint(add_kind: AddKind) -> None:
    begun = []

    def run(job: RunningJob) -> dict[str, int]:
        begun.append(job.checkpoint.get("next", 0))
        job.save_checkpoint({"next": 3})
        if len(begun) == 1:
            raise RuntimeError
        return {"runs": len(begun)}

    job = ended(enqueue_job(kind=add_kind(run), params={}))
    retry_job(job=job)
    job = ended(job)
    assert (job.state, job.result, begun, job.attempts) == ("succeeded", {"runs": 2}, [0, 3], 2)


def test_a_job_that_is_not_queued_does_not_run(add_kind: AddKind) -> None:
    runs = []
    job = enqueue_job(kind=add_kind(lambda job: runs.append(1)), params={})
    cancel_job(job=job)
    assert ended(job).state == "cancelled"
    run_job(uuid.uuid4())  # nor one that is gone
    assert runs == []


def test_a_kind_that_is_gone_fails_its_jobs_readably(add_kind: AddKind) -> None:
    job = enqueue_job(kind=add_kind(lambda job: None), params={})
    Job.objects.update(kind="steering.removed")
    assert "steering.removed" in ended(job).error


def test_a_run_whose_row_was_taken_over_ends_and_writes_nothing(add_kind: AddKind) -> None:
    other = uuid.uuid4()
    reached = []

    def run(job: RunningJob) -> dict[str, str]:
        Job.objects.filter(pk=job.id).update(claim=other, message="mine now")
        for act in (lambda: job.progress(9, 9), lambda: job.save_checkpoint({"bad": 1}), job.check_cancelled):
            with pytest.raises(JobLost):
                act()
            reached.append(1)
        return {"result": "of the first"}

    job = ended(enqueue_job(kind=add_kind(run), params={}))
    assert len(reached) == 3
    assert (job.state, job.claim, job.message, job.result, job.checkpoint) == ("running", other, "mine now", {}, {})


def test_a_run_whose_row_was_deleted_ends(add_kind: AddKind) -> None:
    def run(job: RunningJob) -> None:
        Job.objects.filter(pk=job.id).delete()
        job.progress(1, 2)
        raise AssertionError("went on")

    job = enqueue_job(kind=add_kind(run), params={})
    run_job(job.pk)
    assert not Job.objects.exists()


def test_a_stopping_process_gives_its_job_back(add_kind: AddKind) -> None:
    running = RunningJobs()

    def run(job: RunningJob) -> None:
        job.save_checkpoint({"next": 2})
        running.stopping.set()
        job.progress(2, 5)
        raise AssertionError("went on")

    job = enqueue_job(kind=add_kind(run), params={})
    run_job(job.pk, running)
    job.refresh_from_db()
    assert (job.state, job.checkpoint, job.claim, job.crashes) == ("queued", {"next": 2}, None, 0)


def test_a_fault_of_a_stopping_process_is_no_fault_of_the_job(add_kind: AddKind) -> None:
    """The engine stops too, and what the job asked of it fails."""
    running = RunningJobs()

    def run(job: RunningJob) -> None:
        running.stopping.set()
        raise RuntimeError("the engine is down")

    job = enqueue_job(kind=add_kind(run), params={})
    run_job(job.pk, running)
    job.refresh_from_db()
    assert (job.state, job.error) == ("queued", "")


def test_the_log_has_an_end(add_kind: AddKind) -> None:
    def run(job: RunningJob) -> None:
        job.num_lines = MAX_LINES - 2
        for line in ("one", "two", "three", "x" * 5_000):
            job.log(line)

    job = ended(enqueue_job(kind=add_kind(run), params={}))
    assert [line.text for line in job.lines.all()] == ["one", "The log is full; later lines are dropped."]


def test_long_and_strange_lines_are_kept_readable(add_kind: AddKind) -> None:
    def run(job: RunningJob) -> None:
        job.log("a\x00b" + "x" * 9_000)

    ended(enqueue_job(kind=add_kind(run), params={}))
    text = JobLine.objects.get().text
    assert text.startswith("a\ufffdb")
    assert len(text) == 4_000


def test_the_example_in_the_docs_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (PROJECT_DIR / "docs" / "extending.md").read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "JobKind(" in block]
    exec(code, {"__name__": "docs.extending"})  # noqa: S102 - our own page
    try:
        job = ended(enqueue_job(kind="example.count", params={"steps": 3}))
    finally:
        unregister("example.count")
    assert (job.state, job.result, job.checkpoint) == ("succeeded", {"steps": 3}, {"next": 3})


@pytest.mark.django_db(transaction=True)
def test_one_of_many_claims_wins(add_kind: AddKind) -> None:
    job = enqueue_job(kind=add_kind(lambda job: None), params={})
    together = threading.Barrier(8, timeout=600)

    def claim(_: int) -> bool:
        together.wait()
        try:
            return claim_job(job.pk, uuid.uuid4()) is not None
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(claim, range(8))) == 1
    job.refresh_from_db()
    assert job.attempts == 1


@pytest.mark.django_db(transaction=True)
def test_a_run_waits_for_a_database_that_is_away(add_kind: AddKind) -> None:
    """Here its connections are cut under it; a restart of Postgres is test_worker_faults' matter."""
    cut = []

    def run(job: RunningJob) -> dict[str, int]:
        for step in range(4):
            job.progress(step, 4)
            with connection.cursor() as cursor:  # a connection that the run itself uses
                cursor.execute("SELECT pg_backend_pid()")
                pid = cursor.fetchone()[0]
            cut.append(cut_connection(pid))
            job.log(f"step {step}")
        return {"steps": step + 1}

    job = ended(enqueue_job(kind=add_kind(run), params={}))
    assert cut == [True] * 4
    assert (job.state, job.result, job.lines.count()) == ("succeeded", {"steps": 4}, 4)


def cut_connection(pid: int) -> bool:
    """From a thread of its own, so on another connection."""

    def cut() -> bool:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
                return bool(cursor.fetchone()[0])
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(cut).result()
