"""Traps 5 and 15: connections that died, and a pool without a free one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

from millm_site.embedded_postgres.cluster import EmbeddedPostgres
from tests import live
from tests.platform.conftest import StartEcho
from tests.platform.wire import Answer, get


def test_no_request_fails_after_all_backends_were_terminated(start_echo: StartEcho, database_url: str) -> None:
    echo = start_echo(DATABASE_URL=database_url)
    with ThreadPoolExecutor(10) as pool:
        assert statuses(pool.map(lambda _: get(echo.url, "/database?hold=0.2"), range(10))) == [200] * 10
        assert terminate_backends(database_url) > 3
        assert statuses(pool.map(lambda _: get(echo.url, "/database"), range(20))) == [200] * 20


def test_exhausted_pool_is_503_with_retry_after_not_500(start_echo: StartEcho, database_url: str) -> None:
    echo = start_echo(DATABASE_URL=database_url, DATABASE_POOL_SIZE=2, DATABASE_TIMEOUT=0.5)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: get(echo.url, "/v1/database?hold=2"), range(6)))
    assert sorted(statuses(answers)) == [200, 200, 503, 503, 503, 503]
    refused = next(answer for answer in answers if answer.status == 503)
    assert refused.error["code"] == "database_unavailable"
    assert refused.error["type"] == "server_error"
    assert 1 <= int(refused.headers["retry-after"]) <= 120
    assert get(echo.url, "/v1/database").status == 200


def test_many_parallel_requests_share_the_pool(start_echo: StartEcho, database_url: str) -> None:
    echo = start_echo(DATABASE_URL=database_url, DATABASE_POOL_SIZE=5)
    with ThreadPoolExecutor(60) as pool:
        assert statuses(pool.map(lambda _: get(echo.url, "/database?hold=0.05"), range(160))) == [200] * 160
    assert connections_to(database_url) <= 5


def test_database_that_is_away_is_503_and_the_process_lives(start_echo: StartEcho) -> None:
    echo = start_echo(DATABASE_URL="postgresql://nobody@127.0.0.1:9/nothing", DATABASE_TIMEOUT=0.5)
    started = time.monotonic()
    page, api = get(echo.url, "/database"), get(echo.url, "/v1/database")
    assert (page.status, api.status) == (503, 503)
    assert b"<h1>503</h1>" in page.body
    assert api.error["code"] == "database_unavailable"
    assert time.monotonic() - started < 5
    assert get(echo.url, "/health/live").status == 200


def test_our_fault_is_500_without_its_cause(start_echo: StartEcho) -> None:
    echo = start_echo()
    page, api = get(echo.url, "/broken"), get(echo.url, "/v1/broken")
    assert (page.status, api.status) == (500, 500)
    assert b"secret cause" not in page.body + api.body
    assert api.error["type"] == "server_error"
    request_id = api.headers["x-request-id"]
    assert request_id in api.error["message"]
    echo.wait_for(rf"\[{request_id}\] Internal Server Error")


def statuses(answers: Iterator[Answer] | list[Answer]) -> list[int]:
    return [answer.status for answer in answers]


def terminate_backends(url: str) -> int:
    name = url.rsplit("/", 1)[1].partition("?")[0]
    with psycopg.connect(live.maintenance_url("postgres"), autocommit=True) as connection:
        query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        return len(connection.execute(query, [name]).fetchall())


def connections_to(url: str) -> int:
    name = url.rsplit("/", 1)[1].partition("?")[0]
    with psycopg.connect(live.maintenance_url("postgres"), autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]).fetchone()
    assert row is not None
    return int(row[0])


def test_database_that_comes_back_is_used_again_within_seconds(start_echo: StartEcho, home: Path) -> None:
    """A server of the test's own, named by URL: nothing of ours may start it again."""
    server = EmbeddedPostgres(home / "postgres")
    server.ensure_running()
    echo = start_echo(DATABASE_URL=f"postgresql://postgres@/postgres?host={server.socket_dir}", DATABASE_TIMEOUT=0.5)
    assert get(echo.url, "/database").status == 200
    assert server.stop_if_unused()
    until = time.monotonic() + 6  # long enough for the pool to wait longer and longer between its attempts
    while time.monotonic() < until:
        assert get(echo.url, "/database").status == 503
    server.ensure_running()
    back = time.monotonic()
    while get(echo.url, "/database").status != 200:
        assert time.monotonic() - back < 10
    assert server.stop_if_unused()
