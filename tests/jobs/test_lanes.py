"""Lanes and turns: nobody's long jobs hold up the short ones, or those of others."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from django.db import connection, connections

from jobs.claims import claim_next, must_share
from jobs.errors import JobYielded
from jobs.execution import run_job
from jobs.kinds import JobKind, known_kinds, register, unregister
from jobs.lanes import Lane
from jobs.metrics import RUNNING
from jobs.models import Job
from jobs.running_job import RunningJob
from jobs.services import account_of, cancel_job, enqueue_job
from jobs.worker import JobWorker, Pool, Slots
from tests.jobs.test_worker import until

pytestmark = pytest.mark.django_db(transaction=True)
WAIT_S = 60
EVE, BOB, ZOE = account_of(None, 1), account_of(None, 2), account_of(None, 3)


@pytest.fixture
def held() -> Iterator[threading.Event]:
    """Runs of the kinds below wait for it; it is set when the test ends."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture(autouse=True)
def kinds(held: threading.Event) -> Iterator[None]:
    def hold(job: RunningJob) -> None:
        step = job.checkpoint.get("step", 0)
        while not held.wait(0.01):
            step += 1
            job.save_checkpoint({"step": step})

    async def hold_async(job: RunningJob) -> None:
        while not held.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.01)

    async def answer(job: RunningJob) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"loop": id(asyncio.get_running_loop())}

    added = [
        JobKind("test.batch", "Batch", hold, lane=Lane.BULK),
        JobKind("test.short", "Short", lambda job: None, lane=Lane.BULK),
        JobKind("test.replay", "Replay", lambda job: None, lane=Lane.INTERACTIVE),
        JobKind("test.prune", "Prune", lambda job: None, lane=Lane.SYSTEM),
        JobKind("test.image", "Image", lambda job: None, lane=Lane.MEDIA),
        JobKind("test.response", "Response", answer, lane=Lane.INTERACTIVE, is_async=True),
        JobKind("test.endless", "Endless", hold_async, lane=Lane.INTERACTIVE, is_async=True),
    ]
    for kind in added:
        register(kind)
    yield
    for kind in added:
        unregister(kind.name)


@pytest.fixture
def start_worker(held: threading.Event) -> Iterator[Callable[..., JobWorker]]:
    with ExitStack() as stack:

        def start(coroutines: int = 4, max_share: float = 0.5, **threads: int) -> JobWorker:
            slots = Slots({"interactive": 2, "bulk": 2, "system": 1, "media": 1, **threads}, coroutines, max_share)
            worker = JobWorker(slots=slots, stall_s=30, retention_days=30)
            worker.start()
            stack.callback(worker.stop, 10)
            return worker

        yield start
        held.set()
    connections.close_all()


def enqueue(kind: str, account: str, **values: Any) -> Job:
    return enqueue_job(kind=f"test.{kind}", params={}, account=account, **values)


def claim() -> str | None:
    """Claim the next job of the lane `bulk` and return its account."""
    row = claim_next(Lane.BULK, uuid.uuid4(), is_async=False)
    return None if row is None else row.account


def states(*jobs: Job) -> list[str]:
    found = {job.pk: job.state for job in Job.objects.all()}
    return [found[job.pk] for job in jobs]


@pytest.mark.parametrize("kind", known_kinds(), ids=lambda kind: kind.name)
def test_every_kind_has_a_lane(kind: JobKind) -> None:
    assert kind.lane in Lane


def test_accounts_take_turns_whatever_they_queued() -> None:
    for _ in range(3):
        enqueue("short", EVE)
    enqueue("short", BOB)
    enqueue("short", ZOE)
    assert [claim() for _ in range(6)] == [EVE, BOB, ZOE, EVE, EVE, None]


def test_whose_last_start_is_longest_ago_is_next() -> None:
    """All jobs end at once, so nobody has more running jobs than others."""
    for account in (EVE, EVE, EVE, BOB, BOB):
        enqueue("short", account)
    order = []
    for _ in range(5):
        order.append(claim())
        Job.objects.filter(state="running").update(state="succeeded", claim=None)
    assert order == [EVE, BOB, EVE, BOB, EVE]


def test_priorities_order_the_jobs_of_one_account_only() -> None:
    enqueue("short", BOB)
    low, high = enqueue("short", EVE, priority=1), enqueue("short", EVE, priority=1_000)
    assert (claim(), claim()) == (BOB, EVE)
    assert states(low, high) == ["queued", "running"]


def test_lanes_and_coroutines_are_claimed_apart() -> None:
    jobs = [enqueue(kind, EVE) for kind in ("short", "replay", "prune", "image", "response")]
    for lane, is_async, kind in (
        (Lane.INTERACTIVE, True, "test.response"),
        (Lane.INTERACTIVE, False, "test.replay"),
        (Lane.SYSTEM, False, "test.prune"),
        (Lane.MEDIA, False, "test.image"),
        (Lane.BULK, False, "test.short"),
    ):
        row = claim_next(lane, uuid.uuid4(), is_async=is_async)
        assert row is not None
        assert row.kind == kind
        assert claim_next(lane, uuid.uuid4(), is_async=is_async) is None
    assert set(states(*jobs)) == {"running"}


def test_processes_that_claim_at_once_get_different_jobs() -> None:
    for number in range(40):
        enqueue("short", (EVE, BOB)[number % 2])
    together = threading.Barrier(4, timeout=600)

    def claim_all(_: int) -> list[uuid.UUID]:
        together.wait()
        try:
            claims = (claim_next(Lane.BULK, uuid.uuid4(), is_async=False) for _ in range(40))
            return [row.pk for row in claims if row is not None]
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        claimed = [pk for pks in pool.map(claim_all, range(4)) for pk in pks]
    assert len(claimed) == len(set(claimed)) == 40


@pytest.mark.parametrize(("size", "share", "most"), [(2, 0.5, 1), (1, 0.5, 1), (3, 0.5, 2), (32, 0.5, 16), (4, 1.0, 4)])
def test_an_account_gets_its_share_of_the_slots_but_at_least_one(size: int, share: float, most: int) -> None:
    pool = Pool(Lane.BULK, size, share, is_async=False)
    for number in range(most):
        assert pool.full_accounts() == set(), number
        assert pool.reserve()
        pool.enter(EVE)
    assert pool.full_accounts() == {EVE}
    for _ in range(size - most):
        assert pool.reserve()
        pool.enter("")  # the server's own jobs have no limit
    assert pool.full_accounts() == {EVE}
    assert not pool.reserve()
    pool.leave(EVE)
    assert pool.full_accounts() == set()


def test_two_batches_of_a_key_delay_no_job_of_others(start_worker, held: threading.Event) -> None:
    """Its own second batch waits; a batch, a response and a short job of another key end while the first one runs."""
    big = [enqueue("batch", EVE) for _ in range(2)]
    worker = start_worker()
    until(lambda: states(*big) == ["running", "queued"])
    others = [enqueue(kind, BOB) for kind in ("short", "replay", "prune", "image", "response")]
    mine = [enqueue(kind, EVE) for kind in ("replay", "response")]
    until(lambda: set(states(*others, *mine)) == {"succeeded"})
    assert states(*big) == ["running", "queued"]
    held.set()
    until(lambda: states(*big) == ["succeeded", "succeeded"])
    assert worker is not None


def test_long_jobs_of_others_take_turns_with_one_that_waits(start_worker, settings: Any) -> None:
    """Two keys occupy all workers of the lane; a third one's job starts at the end of a turn."""
    settings.MILLM_JOB_TURN_SECONDS = 0.05
    big = [enqueue("batch", EVE), enqueue("batch", BOB)]
    start_worker()
    until(lambda: states(*big) == ["running", "running"])
    late = enqueue("short", ZOE)
    until(lambda: states(late) == ["succeeded"])
    until(lambda: states(*big) == ["running", "running"])
    rows = Job.objects.filter(pk__in=[job.pk for job in big])
    assert 2 in [row.attempts for row in rows]  # one of them made room, or both at once
    assert {row.crashes for row in rows} == {0}


def test_a_turn_ends_at_a_checkpoint_only_if_others_have_less(settings: Any) -> None:
    settings.MILLM_JOB_TURN_SECONDS = 0.0
    ends: list[str] = []

    def run(job: RunningJob) -> None:
        try:
            job.save_checkpoint({"step": 1})
        except JobYielded:
            ends.append("yielded")
            raise
        ends.append("went on")

    register(JobKind("test.turns", "Turns", run, lane=Lane.BULK))
    try:
        run_job(enqueue("turns", EVE).pk)
        enqueue("short", EVE)  # its own job does not count
        run_job(enqueue("turns", EVE).pk)
        enqueue("replay", BOB)  # nor does one of another lane
        run_job(enqueue("turns", EVE).pk)
        enqueue("short", BOB)
        job = enqueue("turns", EVE)
        run_job(job.pk)
    finally:
        unregister("test.turns")
    assert ends == ["went on"] * 3 + ["yielded"]
    job.refresh_from_db()
    assert (job.state, job.checkpoint, job.crashes) == ("queued", {"step": 1}, 0)


def test_an_account_that_has_as_many_running_jobs_must_wait() -> None:
    enqueue("short", BOB)
    assert claim() == BOB
    enqueue("short", BOB)
    assert not must_share("bulk", EVE)  # it has none itself
    enqueue("short", EVE)
    assert claim() == EVE
    assert not must_share("bulk", EVE)  # both have one
    enqueue("short", ZOE)
    assert must_share("bulk", EVE)


def test_coroutines_share_one_loop_and_need_no_thread_each(start_worker) -> None:
    jobs = [enqueue("endless", EVE) for _ in range(20)]
    start_worker(coroutines=20, max_share=1.0)
    until(lambda: set(states(*jobs)) == {"running"})
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("job-") and name != "job-worker"]


def test_a_coroutine_is_cancelled_from_outside_and_the_others_go_on(start_worker, held: threading.Event) -> None:
    jobs = [enqueue("endless", EVE) for _ in range(3)]
    start_worker()
    until(lambda: states(*jobs) == ["running", "running", "queued"])  # half of four
    cancel_job(job=jobs[0])
    until(lambda: states(*jobs) == ["cancelled", "running", "running"])
    held.set()
    until(lambda: states(*jobs) == ["cancelled", "succeeded", "succeeded"])


def test_a_stop_gives_coroutines_back(start_worker) -> None:
    jobs = [enqueue("endless", EVE) for _ in range(2)]
    worker = start_worker()
    until(lambda: states(*jobs) == ["running", "running"])
    worker.stop(30)
    assert states(*jobs) == ["queued", "queued"]
    assert {job.crashes for job in Job.objects.all()} == {0}


def test_a_coroutine_that_lost_its_row_ends(start_worker) -> None:
    before = RUNNING.labels("interactive")._value.get()
    job = enqueue("endless", EVE)
    start_worker()
    until(lambda: states(job) == ["running"])
    assert RUNNING.labels("interactive")._value.get() == before + 1
    Job.objects.update(claim=uuid.uuid4(), message="mine now")
    until(lambda: RUNNING.labels("interactive")._value.get() == before)
    assert Job.objects.get().message == "mine now"


def test_a_fault_of_a_coroutine_is_its_job_s_error(start_worker) -> None:
    async def fail(job: RunningJob) -> None:
        raise ValueError("The model is gone.")

    register(JobKind("test.failing", "Failing", fail, lane=Lane.INTERACTIVE, is_async=True))
    try:
        job = enqueue("failing", EVE)
        start_worker()
        until(lambda: states(job) == ["failed"])
        assert Job.objects.get().error == "The model is gone."
    finally:
        unregister("test.failing")


def test_a_process_without_workers_of_a_lane_leaves_its_jobs(start_worker) -> None:
    media, short = enqueue("image", EVE), enqueue("short", EVE)
    start_worker(media=0)
    until(lambda: states(short) == ["succeeded"])
    assert states(media) == ["queued"]
