"""The worker's thread: it takes jobs, several at once, one owner each, and stops in order."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from django.db import connections

from jobs.models import Job
from jobs.running_job import RunningJob
from jobs.services import cancel_job, enqueue_job
from jobs.worker import JobWorker, Slots
from tests.jobs.conftest import AddKind

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 60


@pytest.fixture
def start_worker() -> Iterator[Callable[..., JobWorker]]:
    with ExitStack() as stack:

        def start(num_workers: int = 2, stall_s: float = 30) -> JobWorker:
            worker = JobWorker(slots=Slots({"bulk": num_workers}), stall_s=stall_s, retention_days=30)
            worker.start()
            stack.callback(worker.stop, 10)
            return worker

        yield start
    connections.close_all()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, list(Job.objects.values("title", "state", "error", "message"))
        time.sleep(0.05)


def all_in(state: str) -> Callable[[], bool]:
    return lambda: not Job.objects.exclude(state=state).exists()


def test_jobs_run_without_being_waited_for(start_worker, add_kind: AddKind) -> None:
    kind = add_kind(lambda job: {"double": 2 * job.params["n"]})
    early = enqueue_job(kind=kind, params={"n": 1})
    start_worker()
    late = enqueue_job(kind=kind, params={"n": 2})
    until(all_in("succeeded"))
    assert [Job.objects.get(pk=job.pk).result for job in (early, late)] == [{"double": 2}, {"double": 4}]


def test_no_more_jobs_run_at_once_than_there_are_workers(start_worker, add_kind: AddKind) -> None:
    gate, lock, now, most = threading.Semaphore(0), threading.Lock(), [0], [0]

    def run(job: RunningJob) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.acquire(timeout=WAIT_S)
        with lock:
            now[0] -= 1

    kind = add_kind(run)
    for _ in range(5):
        enqueue_job(kind=kind, params={})
    start_worker(num_workers=2)
    until(lambda: now[0] == 2)
    gate.release(5)
    until(all_in("succeeded"))
    assert most[0] == 2


def test_higher_priorities_go_first(start_worker, add_kind: AddKind) -> None:
    order: list[int] = []
    kind = add_kind(lambda job: order.append(job.params["p"]))
    for priority in (0, 5, -5, 9):
        enqueue_job(kind=kind, params={"p": priority}, priority=priority)
    start_worker(num_workers=1)
    until(all_in("succeeded"))
    assert order == [9, 5, 0, -5]


def test_each_job_runs_once_however_many_workers_there_are(start_worker, add_kind: AddKind) -> None:
    """Workers of several processes share nothing but the database; so do these."""
    runs: Counter[str] = Counter()
    kind = add_kind(lambda job: runs.update([str(job.id)]))
    jobs = [enqueue_job(kind=kind, params={}) for _ in range(20)]
    for _ in range(3):
        start_worker()
    until(all_in("succeeded"))
    assert runs == {str(job.pk): 1 for job in jobs}


def test_a_running_job_is_cancelled_from_outside(start_worker, add_kind: AddKind) -> None:
    def run(job: RunningJob) -> None:
        while True:
            job.progress(1, 2)
            time.sleep(0.02)

    job = enqueue_job(kind=add_kind(run), params={})
    start_worker()
    until(lambda: Job.objects.filter(state="running", done=1).exists())
    cancel_job(job=job)
    until(all_in("cancelled"))


def test_a_fault_of_one_job_harms_no_other(start_worker, add_kind: AddKind) -> None:
    def run(job: RunningJob) -> None:
        if job.params["n"] % 2:
            raise RuntimeError("odd")

    kind = add_kind(run)
    for n in range(6):
        enqueue_job(kind=kind, params={"n": n})
    start_worker()
    until(lambda: Job.objects.ended().count() == 6)
    assert Counter(Job.objects.values_list("state", flat=True)) == {"succeeded": 3, "failed": 3}


def test_a_stop_gives_jobs_back_and_the_next_worker_goes_on(start_worker, add_kind: AddKind) -> None:
    begun: list[int] = []

    def run(job: RunningJob) -> None:
        begun.append(job.checkpoint.get("next", 0))
        for step in range(begun[-1], 4):
            job.save_checkpoint({"next": step})
            while step == 2 and len(begun) == 1:  # the first run never gets further
                job.progress(step, 4)
                time.sleep(0.02)

    enqueue_job(kind=add_kind(run), params={})
    worker = start_worker()
    until(lambda: Job.objects.filter(checkpoint={"next": 2}).exists())
    worker.stop(30)
    row = Job.objects.get()
    assert (row.state, row.crashes, begun) == ("queued", 0, [0])
    start_worker()
    until(all_in("succeeded"))
    assert begun == [0, 2]


def test_a_stopped_worker_leaves_no_thread_and_no_connection(start_worker, add_kind: AddKind) -> None:
    enqueue_job(kind=add_kind(lambda job: None), params={})
    worker = start_worker()
    until(all_in("succeeded"))
    worker.stop(30)
    worker.stop(30)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("job-")]


def test_a_job_that_never_ends_does_not_hold_up_a_stop(start_worker, add_kind: AddKind) -> None:
    leave = threading.Event()
    enqueue_job(kind=add_kind(lambda job: {"left": leave.wait(WAIT_S)}), params={})
    worker = start_worker()
    until(lambda: Job.objects.filter(state="running").exists())
    started = time.monotonic()
    worker.stop(0.2)
    assert time.monotonic() - started < 30
    assert Job.objects.get().state == "running"  # until its heartbeat is old
    leave.set()
    until(lambda: not any(thread.name.startswith("job-") for thread in threading.enumerate()))


def test_a_silent_worker_loses_its_job_to_another_which_ends_it(start_worker, add_kind: AddKind) -> None:
    """The first one hangs in a library that lets nobody else run; its late writes change nothing."""
    first, hang, seen = threading.Event(), threading.Event(), []

    def run(job: RunningJob) -> dict[str, int]:
        seen.append(job.claim)
        if not first.is_set():
            first.set()
            hang.wait(WAIT_S)
        return {"run": seen.index(job.claim)}

    enqueue_job(kind=add_kind(run), params={})
    start_worker(num_workers=1, stall_s=3_600)  # its first heartbeat comes in ten minutes
    until(first.is_set)
    start_worker(num_workers=1, stall_s=1)
    until(all_in("succeeded"))
    hang.set()
    until(
        lambda: (
            not any(thread.name.startswith("job-") and "worker" not in thread.name for thread in threading.enumerate())
        )
    )
    row = Job.objects.get()
    assert (row.result, row.attempts, row.crashes) == ({"run": 1}, 2, 1)
