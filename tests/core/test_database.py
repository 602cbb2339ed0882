"""Waits for the database have a bound, and what was given up is not written later."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from core.database import MAX_AT_ONCE, DatabaseThreads, DatabaseTooSlowError, in_database, in_thread
from storage.models import StoredFile, VectorStore

pytestmark = pytest.mark.django_db(transaction=True)
TIMEOUT_S = 1.0
LONG_S = 60.0  # far beyond all bounds, so that slow machines make no difference


@pytest.fixture(autouse=True)
def short_timeout(settings: Any) -> None:
    settings.MILLM_DATABASE_TIMEOUT = TIMEOUT_S


@contextmanager
def locked(table: str) -> Iterator[None]:
    """By a session that lets nobody else read it."""
    place = connection.settings_dict
    with psycopg.connect(
        dbname=place["NAME"], user=place["USER"], password=place["PASSWORD"], host=place["HOST"], port=place["PORT"]
    ) as session:
        session.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
        session.rollback()


def timeouts() -> tuple[str, str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('lock_timeout'), current_setting('statement_timeout')")
        found: tuple[str, str] = cursor.fetchone()
        return found


async def test_what_is_given_up_is_never_committed():
    goes_on = threading.Event()

    def write() -> None:
        VectorStore.objects.create(name="late")
        goes_on.wait(LONG_S)

    with pytest.raises(DatabaseTooSlowError):
        await in_database(write)
    goes_on.set()
    await asyncio.gather(*(in_database(VectorStore.objects.count) for _ in range(4 * MAX_AT_ONCE)))
    assert await VectorStore.objects.acount() == 0


async def test_a_statement_after_the_time_is_over_is_not_begun():
    goes_on, ended = threading.Event(), threading.Event()

    def write() -> None:
        try:
            goes_on.wait(LONG_S)
            VectorStore.objects.create(name="late")
        finally:
            ended.set()

    with pytest.raises(DatabaseTooSlowError):
        await in_database(write)
    goes_on.set()
    await asyncio.to_thread(ended.wait, LONG_S)
    assert await VectorStore.objects.acount() == 0


async def test_what_is_told_as_done_is_committed():
    await in_database(VectorStore.objects.create, name="in time")
    assert await VectorStore.objects.acount() == 1


@pytest.mark.parametrize("run", [in_database, in_thread])
async def test_a_locked_table_holds_nobody_for_long(run: Any):
    """Also where more wait for it than there are threads; afterwards all threads are free again."""
    with locked("storage_storedfile"):
        began = time.monotonic()
        found = await asyncio.gather(
            *(run(StoredFile.objects.count) for _ in range(2 * MAX_AT_ONCE)), return_exceptions=True
        )
        assert all(isinstance(each, OperationalError) for each in found), found
        assert time.monotonic() - began < LONG_S / 2
    assert await asyncio.gather(*(run(StoredFile.objects.count) for _ in range(MAX_AT_ONCE))) == [0] * MAX_AT_ONCE


async def test_work_without_a_free_thread_is_refused_and_never_runs():
    goes_on, ran = threading.Event(), threading.Event()
    busy = [asyncio.ensure_future(in_thread(goes_on.wait, LONG_S)) for _ in range(MAX_AT_ONCE)]
    await asyncio.sleep(0.1)
    with pytest.raises(DatabaseTooSlowError, match="busy"):
        await in_thread(ran.set)
    goes_on.set()
    assert await asyncio.gather(*busy) == [True] * MAX_AT_ONCE
    assert not ran.is_set()


async def test_work_on_the_disk_may_take_longer_than_a_query():
    assert await in_thread(lambda: time.sleep(2 * TIMEOUT_S) or "done") == "done"


async def test_limits_end_with_the_work():
    threads = DatabaseThreads("test", 1)
    assert await threads.run(timeouts) == ("1s", "1s")
    assert await asyncio.to_thread(_own, timeouts) == ("0", "0")
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    assert await asyncio.to_thread(_own, timeouts) == ("0", "0")


def _own(work: Any) -> Any:
    try:
        return work()
    finally:
        connection.close()
