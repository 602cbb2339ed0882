"""Snapshots: no database when warm, fresh after every commit of any process, alive while the database is away."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import OperationalError, connection, connections, transaction

from core import snapshots
from core.snapshots import (
    Snapshot,
    SnapshotListener,
    is_listening,
    start_listening,
    stop_listening,
    take_change,
    tell_changes,
)
from inference.models import LanguageModel
from tests import live


def names() -> list[str]:
    return list(LanguageModel.objects.values_list("name", flat=True))


def add(name: str) -> None:
    LanguageModel.objects.create(name=name, source="/x")


@pytest.fixture
def snapshot():
    return Snapshot("test_models", names)


@pytest.fixture
def listener(snapshot):
    listener = SnapshotListener()
    listener.start()
    assert listener.connected.wait(60)
    yield listener
    listener.stop()


def wait_for(condition) -> None:
    deadline = time.monotonic() + live.PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def elsewhere(sql: str) -> None:
    """Run SQL in another process, which knows nothing of this one."""
    settings = connection.settings_dict
    code = (
        "import os, psycopg\n"
        "names = ('dbname', 'user', 'host', 'port', 'password')\n"
        "params = {name: os.environ['TEST_' + name] for name in names if os.environ['TEST_' + name]}\n"
        "with psycopg.connect(**params, autocommit=True) as connection:\n"
        f"    connection.execute({sql!r})\n"
    )
    variables = {
        "TEST_dbname": settings["NAME"],
        "TEST_user": settings["USER"],
        "TEST_host": settings["HOST"],
        "TEST_port": str(settings["PORT"]),
        "TEST_password": settings["PASSWORD"],
    }
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **variables}, timeout=600)


@pytest.mark.django_db
def test_a_warm_snapshot_asks_no_database(snapshot, django_assert_num_queries):
    with django_assert_num_queries(1):
        snapshot.get()
    with django_assert_num_queries(0):
        for _ in range(10):
            snapshot.get()
        asyncio.run(snapshot.aget())


@pytest.mark.django_db(transaction=True)
def test_a_commit_in_this_process_is_seen_at_once(snapshot, django_assert_num_queries):
    snapshot.get()
    with transaction.atomic():
        add("a")
        snapshot.invalidate()

    with django_assert_num_queries(0):
        assert snapshot.get() == ["a"]


@pytest.mark.django_db(transaction=True)
def test_a_writer_sees_its_own_rows_and_nobody_else_does(snapshot):
    snapshot.get()
    with transaction.atomic():
        add("a")
        snapshot.invalidate()

        assert snapshot.get() == ["a"]
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(snapshot.get).result() == []


@pytest.mark.django_db(transaction=True)
def test_a_rollback_leaves_no_trace(snapshot):
    snapshot.get()
    with transaction.atomic():
        add("a")
        snapshot.invalidate()
        assert snapshot.get() == ["a"]
        transaction.set_rollback(True)

    assert snapshot.get() == []


@pytest.mark.django_db(transaction=True)
def test_invalidating_outside_a_transaction_acts_at_once(snapshot):
    snapshot.get()
    add("a")
    assert snapshot.get() == []
    snapshot.invalidate()

    assert snapshot.get() == ["a"]


@pytest.mark.django_db(transaction=True)
async def test_a_cold_snapshot_may_be_read_in_async_code(snapshot):
    await asyncio.to_thread(_in_own_connection, lambda: add("a"))

    assert snapshot.get() == ["a"]
    snapshot.forget()
    assert await snapshot.aget() == ["a"]


def _in_own_connection(call):
    try:
        call()
    finally:
        connections.close_all()


@pytest.mark.django_db(transaction=True)
def test_another_process_refreshes_this_one(snapshot, listener):
    wait_for(lambda: not snapshot.is_stale)
    assert snapshot.get() == []
    elsewhere(_insert("a"))
    wait_for(lambda: snapshot.get() == ["a"])


@pytest.mark.django_db(transaction=True)
def test_another_connection_of_this_process_is_not_mistaken_for_another_process(snapshot, listener):
    wait_for(lambda: not snapshot.is_stale)
    loads: list[int] = []
    counted = Snapshot("test_counted", lambda: loads.append(1))
    wait_for(lambda: loads and not counted.is_stale)
    loads.clear()
    with transaction.atomic():
        counted.invalidate()
    time.sleep(0.7)  # longer than the listener's turn

    assert len(loads) == 1


@pytest.mark.django_db(transaction=True)
def test_a_snapshot_made_while_listening_is_heard_too(listener):
    late = Snapshot("test_late", names)
    late.get()
    time.sleep(0.7)
    elsewhere(_insert("a", channel="test_late"))

    wait_for(lambda: late.get() == ["a"])


@pytest.mark.django_db(transaction=True)
def test_the_listener_survives_terminated_backends(snapshot, listener):
    wait_for(lambda: not snapshot.is_stale)
    add("a")  # without a word to anyone, like a notification that nobody was there to hear
    assert snapshot.get() == []
    with connection.cursor() as cursor:
        cursor.execute(  # the listener's alone: other tests' threads keep connections, too
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
        )
        assert cursor.rowcount >= 1
    wait_for(lambda: snapshot.get() == ["a"])
    elsewhere(_insert("b"))

    wait_for(lambda: sorted(snapshot.get()) == ["a", "b"])


@pytest.mark.django_db(transaction=True)
def test_one_broken_value_does_not_keep_the_others_old(snapshot, listener):
    wait_for(lambda: not snapshot.is_stale)
    values = iter([1])

    def broken():
        return next(values)  # StopIteration the second time

    bad = Snapshot("test_bad", broken)
    wait_for(lambda: bad._value is not None)
    elsewhere("NOTIFY test_bad")
    elsewhere(_insert("a"))

    wait_for(lambda: snapshot.get() == ["a"])
    assert bad.get() == 1


@pytest.mark.django_db
def test_a_failing_load_after_a_commit_does_not_fail_the_write(django_capture_on_commit_callbacks):
    answers = iter([["old"], OperationalError("gone"), ["new"]])

    def load():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    snapshot = Snapshot("test_failing", load)
    snapshot.get()
    with django_capture_on_commit_callbacks(execute=True):
        snapshot.invalidate()

    assert snapshot.get() == ["new"]


def test_concurrent_refreshes_share_a_load():
    gate, loads = threading.Event(), []

    def load():
        loads.append(1)
        assert gate.wait(60)
        return len(loads)

    snapshot = Snapshot("test_shared", load)
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(snapshot.refresh) for _ in range(8)]
        wait_for(lambda: snapshot._requested == 8)
        gate.set()
        results = {future.result() for future in futures}

    assert len(loads) <= 2, "one that ran, and one for all who asked after it began"
    assert max(results) == len(loads)


def test_a_slow_load_never_replaces_a_newer_value():
    rows = ["old"]
    reading, go_on = threading.Event(), threading.Event()

    def load():
        value = rows[0]
        if not go_on.is_set():
            reading.set()
            assert go_on.wait(60)
        return value

    snapshot = Snapshot("test_order", load)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(snapshot.refresh)
        assert reading.wait(60)
        rows[0] = "new"
        second = pool.submit(snapshot.refresh)
        wait_for(lambda: snapshot._requested == 2)
        go_on.set()
        first.result()
        second.result()

    assert snapshot.get() == "new"


@pytest.mark.django_db(transaction=True)
def test_listening_starts_once_and_stops():
    start_listening()
    start_listening()
    try:
        assert is_listening()
        assert sum(thread.name == "snapshot-listener" for thread in threading.enumerate()) == 1
    finally:
        stop_listening()
    stop_listening()

    assert not is_listening()
    assert not any(thread.name == "snapshot-listener" for thread in threading.enumerate())


def _insert(name: str, channel: str = "test_models") -> str:
    """SQL that another program could send: a row, and the notification."""
    values = {
        "name": name,
        "aliases": "{}",
        "source": "/x",
        "revision": "",
        "dtype": "auto",
        "device": "auto",
        "quantization": "none",
        "trust_remote_code": "false",
        "allow_pickle": "false",
        "context_length": "0",
        "chat_template": "",
        "default_sampling": "{}",
        "default_profile": "",
        "is_default": "false",
        "autoload": "false",
        "pinned": "false",
        "keep_alive_s": "0",
        "state": "unloaded",
        "error": "",
        "memory_bytes": "0",
    }
    row = f"({', '.join(values)}) VALUES ({', '.join(repr(value) for value in values.values())})"
    insert = "INSERT INTO inference_languagemodel " + row
    return f"DO $$ BEGIN {insert}; PERFORM pg_notify('{channel}', 'another'); END $$"


@pytest.fixture
def told():
    """What other processes of the server are told after commits."""
    told: list[tuple[str, object]] = []
    before = snapshots._tell_others
    tell_changes(lambda channel, ids: told.append((channel, ids)))
    yield told
    tell_changes(before)


@pytest.mark.django_db(transaction=True)
def test_other_processes_of_the_server_are_told_of_each_commit_after_it(snapshot, told):
    partial = Snapshot("test_rows", list, lambda value, ids: value)
    with transaction.atomic():
        snapshot.invalidate()
        partial.invalidate([3, 4])
        partial.invalidate([5])
        assert told == []
    assert told == [("test_models", None), ("test_rows", {3, 4, 5})]
    with transaction.atomic():
        snapshot.invalidate()
        transaction.set_rollback(True)
    assert len(told) == 2


@pytest.mark.django_db(transaction=True)
def test_a_change_by_another_process_is_read_at_once_where_the_value_is_in_use(snapshot):
    cold = Snapshot("test_models", names)
    assert snapshot.get() == []
    add("new")
    assert snapshot.get() == []
    take_change("test_models", None)
    assert snapshot.get() == ["new"]
    assert cold._value is None
    take_change("another", None)
