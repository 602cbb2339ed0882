"""Serving processes that are killed or stopped with jobs, two of them side by side, and a Postgres that restarts."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from millm_site.embedded_postgres.cluster import EmbeddedPostgres
from tests import live
from tests.jobs.webhook_receiver import receiving
from tests.platform.conftest import home  # noqa: F401 - a fixture

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "tests.jobs.job_server"]
WAIT_S = 120


class Site:
    """A database with migrations, and the processes that serve on it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.environment = {
            "MILLM_HOME": str(folder),
            "MILLM_DATABASE_URL": url,
            "MILLM_PORT": "0",
            "MILLM_AUTH": "loopback",
            "MILLM_JOB_STALL_SECONDS": "2",
            "MILLM_JOB_WORKERS_BULK": "2",
            "MILLM_DRAIN_SECONDS": "5",
            "MILLM_WEBHOOK_PRIVATE_NETWORKS": "true",
        }

    def serve(self, **environment: str) -> live.LiveServer:
        server = live.start([*COMMAND, "serve"], {**self.environment, **environment})
        server.url = server.wait_for(live.SERVES_ON).group(1)
        return server

    def enqueue(self, file: Path, steps: int, hold_at: int) -> str:
        with live.running([*COMMAND, "enqueue", str(file), str(steps), str(hold_at)], self.environment) as process:
            return process.wait_for("^[0-9a-f-]{36}$").group()

    def job(self, job_id: str) -> tuple[str, int, int, int]:
        """State, steps done, attempts, crashes."""
        with psycopg.connect(self.url) as connection:
            query = "SELECT state, done, attempts, crashes FROM jobs_job WHERE id = %s"
            row = connection.execute(query, [job_id]).fetchone()
        assert row is not None
        return row

    def until(self, condition: Callable[[], bool], *servers: live.LiveServer) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, "".join(server.output for server in servers)
            time.sleep(0.1)


@pytest.fixture
def site(migrated_database_url: str, tmp_path: Path) -> Site:
    return Site(migrated_database_url, tmp_path / "home")


@pytest.fixture
def servers() -> Iterator[list[live.LiveServer]]:
    started: list[live.LiveServer] = []
    yield started
    for server in started:
        server.kill()


def steps(file: Path) -> list[tuple[int, int]]:
    """(process, step) in the order in which they were taken."""
    return [(int(pid), int(step)) for pid, step in (line.split() for line in file.read_text().splitlines())]


def hold(file: Path) -> Path:
    held = file.with_suffix(".hold")
    held.touch()
    return held


@pytest.mark.live
def test_a_killed_process_loses_no_job(site: Site, servers: list[live.LiveServer], tmp_path: Path) -> None:
    """Two run, one waits. After the kill each runs again once, from its checkpoint, and a kill later is no matter."""
    files = [tmp_path / name for name in ("first", "second", "third")]
    holds = [hold(file) for file in files]
    jobs = [site.enqueue(file, 6, 3) for file in files]
    servers.append(site.serve())
    site.until(lambda: [site.job(job)[:2] for job in jobs] == [("running", 3), ("running", 3), ("queued", 0)], *servers)
    servers[0].kill()
    for held in holds:
        held.unlink()
    servers.append(site.serve())
    site.until(lambda: all(site.job(job)[0] == "succeeded" for job in jobs), *servers)

    pids = [server.pid for server in servers]
    assert [site.job(job) for job in jobs] == [("succeeded", 6, 2, 1)] * 2 + [("succeeded", 6, 1, 0)]
    for file in files[:2]:
        assert steps(file) == [(pids[0], n) for n in range(3)] + [(pids[1], n) for n in range(3, 6)]
    assert steps(files[2]) == [(pids[1], n) for n in range(6)]
    assert servers[1].stop() == 0, servers[1].output
    assert "Traceback" not in servers[1].output


@pytest.mark.live
def test_a_stopped_process_hands_its_jobs_to_another(
    site: Site, servers: list[live.LiveServer], tmp_path: Path
) -> None:
    """SIGTERM in the middle of a job, while a second process serves: no crash is counted, no step taken twice."""
    file = tmp_path / "handed"
    held = hold(file)
    servers.append(site.serve())
    job = site.enqueue(file, 8, 4)
    site.until(lambda: site.job(job)[:2] == ("running", 4), *servers)
    servers.append(site.serve())
    assert servers[0].stop() == 0, servers[0].output
    held.unlink()
    site.until(lambda: site.job(job)[0] == "succeeded", *servers)
    assert site.job(job) == ("succeeded", 8, 2, 0)
    assert steps(file) == [(servers[0].pid, n) for n in range(4)] + [(servers[1].pid, n) for n in range(4, 8)]
    assert "Traceback" not in servers[0].output


@pytest.mark.live
def test_two_processes_share_the_jobs_and_run_each_once(
    site: Site, servers: list[live.LiveServer], tmp_path: Path
) -> None:
    files = [tmp_path / f"shared-{n}" for n in range(6)]
    holds = [hold(file) for file in files]
    jobs = [site.enqueue(file, 3, 2) for file in files]
    servers += [site.serve(), site.serve()]
    site.until(lambda: sum(site.job(job)[0] == "running" for job in jobs) == 4, *servers)
    for held in holds:
        held.unlink()
    site.until(lambda: all(site.job(job)[0] == "succeeded" for job in jobs), *servers)
    assert [site.job(job) for job in jobs] == [("succeeded", 3, 1, 0)] * 6
    taken = Counter(pid for file in files for pid, _ in steps(file))
    assert set(taken) == {server.pid for server in servers}
    assert all([step for _, step in steps(file)] == [0, 1, 2] for file in files)


ENDPOINT = """
from django.contrib.auth.models import User
from jobs.webhooks.models import WebhookEndpoint
from jobs.webhooks.services import create_endpoint
endpoint = WebhookEndpoint(
    name="ci", url="{url}", event_types=["job.succeeded"], receives_all=True,
    owner=User.objects.create_superuser("hook"),
)
print(create_endpoint(endpoint=endpoint).secret)
"""


@pytest.mark.live
def test_a_process_killed_between_a_jobs_end_and_its_webhook(
    site: Site, servers: list[live.LiveServer], tmp_path: Path
) -> None:
    """The event was queued with the job's end: the next process sends it."""
    with receiving() as receiver:
        environment = {**site.environment, "MILLM_LOG_LEVEL": "WARNING"}
        shell = live.manage("shell", "-c", ENDPOINT.format(url=receiver.url), environment=environment)
        secret = shell.strip().splitlines()[-1]
        servers.append(site.serve(MILLM_JOB_WORKERS_WEBHOOKS="0"))
        job = site.enqueue(tmp_path / "reported", 2, 9)
        site.until(lambda: site.job(job)[0] == "succeeded", *servers)
        servers[0].kill()
        assert receiver.received == []
        servers.append(site.serve())
        site.until(lambda: bool(receiver.received), *servers)
        event = receiver.received[0].unwrap(secret)
        assert (event.type, event.data.id) == ("job.succeeded", job)


@pytest.mark.live
def test_jobs_outlive_a_restart_of_postgres(home: Path, servers: list[live.LiveServer]) -> None:  # noqa: F811
    """A server of the test's own, named by URL: nothing of ours may start it again."""
    postgres = EmbeddedPostgres(home / "postgres")
    postgres.ensure_running()
    site = Site(f"postgresql://postgres@/postgres?host={postgres.socket_dir}", home)
    live.manage("migrate", environment=site.environment)
    file = home / "counted"
    held = hold(file)
    servers.append(site.serve())
    running = site.enqueue(file, 40, 5)
    site.until(lambda: site.job(running)[:2] == ("running", 5), *servers)
    assert postgres.stop_if_unused()
    held.unlink()  # what the job does next is to write its progress, into a database that is away
    servers[0].wait_for("A job is waiting for the database")
    postgres.ensure_running()
    site.until(lambda: site.job(running)[0] == "succeeded", *servers)
    late = site.enqueue(home / "late", 3, 9)
    site.until(lambda: site.job(late)[0] == "succeeded", *servers)

    assert site.job(running) == ("succeeded", 40, 1, 0)
    assert steps(file) == [(servers[0].pid, n) for n in range(40)]
    assert servers[0].stop() == 0, servers[0].output
    assert postgres.stop_if_unused()


@pytest.mark.live
def test_commands_start_no_worker(site: Site, tmp_path: Path) -> None:
    job = site.enqueue(tmp_path / "waits", 1, 9)
    said = live.manage("jobs", environment=site.environment)
    assert f'{job} queued test.count "Count"' in said
    assert site.job(job)[0] == "queued"
    assert not (tmp_path / "waits").exists()
