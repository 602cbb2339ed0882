"""The log's thread and table: batches, faults of the database, poisoned rows, a full queue, what is kept of texts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.contrib.auth import get_user_model
from django.db import DataError, OperationalError, connection
from django.utils import timezone

from core.runtime import runtime
from openai_api import apps
from openai_api.keys.services import create_api_key
from openai_api.models import ApiKey, RequestLog
from openai_api.request_log import store as request_log_store
from openai_api.request_log import writer as log_writer
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.store import LogStore, row_of, stored_text
from openai_api.request_log.writer import LOG_WRITER, LogWriter, get_log_writer


def entry(number: int = 0, **fields: Any) -> LogEntry:
    values: dict[str, Any] = {
        "id": f"req_{number}",
        "created_at": timezone.now(),
        "endpoint": "/v1/chat/completions",
        "client_address": "127.0.0.1",
        "status": 200,
    }
    return LogEntry(**{**values, **fields})


class FakeStore:
    """Keeps entries; fails as told."""

    def __init__(self) -> None:
        self.written: list[LogEntry] = []
        self.batches: list[int] = []
        self.is_away = False
        self.refuses: Callable[[LogEntry], bool] = lambda one: False
        self.gate = threading.Event()
        self.gate.set()

    def insert(self, entries: Sequence[LogEntry]) -> None:
        self.gate.wait(60)
        if self.is_away:
            raise OperationalError("server closed the connection")
        if any(self.refuses(one) for one in entries):
            raise DataError("poison")
        self.batches.append(len(entries))
        known = {one.id for one in self.written}
        self.written.extend(one for one in entries if one.id not in known)

    def missing(self, entries: Sequence[LogEntry]) -> list[LogEntry]:
        known = {one.id for one in self.written}
        return [one for one in entries if one.id not in known]

    def mark_keys_used(self, entries: Sequence[LogEntry]) -> None:
        if self.is_away:
            raise OperationalError("away")

    def refresh_connection(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def start(store: FakeStore) -> Iterator[Callable[..., LogWriter]]:
    writers: list[LogWriter] = []

    def start_writer(**options: Any) -> LogWriter:
        writer = LogWriter(store, retry_s=0.01, **options)
        writer.start()
        writers.append(writer)
        return writer

    yield start_writer
    store.gate.set()
    store.is_away = False
    for writer in writers:
        writer.stop(1)


def test_entries_are_written_in_batches(store: FakeStore, start: Callable[..., LogWriter]):
    writer = start()
    store.gate.clear()
    for number in range(100):
        writer.write(entry(number))
    store.gate.set()
    assert writer.flush(5)
    assert [one.id for one in store.written] == [f"req_{number}" for number in range(100)]
    assert len(store.batches) <= 10


def test_a_poisoned_entry_harms_no_other(store: FakeStore, start: Callable[..., LogWriter]):
    store.refuses = lambda one: one.id == "req_3"
    writer = start()
    for number in range(10):
        writer.write(entry(number))
    assert writer.flush(5)
    assert sorted(one.id for one in store.written) == [f"req_{number}" for number in range(10) if number != 3]
    assert writer.dropped == 1


def test_a_poisoned_text_costs_the_text_only(store: FakeStore, start: Callable[..., LogWriter]):
    store.refuses = lambda one: one.prompt == "poison" or one.api_key_id == 404
    writer = start()
    writer.write(entry(1, prompt="poison", prompt_tokens=7))
    writer.write(entry(2, api_key_id=404))
    assert writer.flush(5)
    assert [(one.prompt, one.prompt_tokens, one.api_key_id) for one in store.written] == [("", 7, None), ("", 0, None)]
    assert writer.dropped == 0


def test_entries_wait_for_a_database_that_is_away(store: FakeStore, start: Callable[..., LogWriter]):
    writer = start()
    store.is_away = True
    for number in range(50):
        writer.write(entry(number))
    assert not writer.flush(0.1)
    assert writer.waiting == 50
    store.is_away = False
    assert writer.flush(5)
    assert len(store.written) == 50
    assert writer.dropped == 0


def test_a_full_queue_drops_and_counts_and_never_waits(
    store: FakeStore, start: Callable[..., LogWriter], caplog: pytest.LogCaptureFixture
):
    writer = start(max_entries=5)
    store.gate.clear()
    before = time.monotonic()
    for number in range(500):
        writer.write(entry(number))
    assert time.monotonic() - before < 1
    store.gate.set()
    assert writer.flush(5)
    assert len(store.written) + writer.dropped == 500
    assert writer.dropped > 0
    assert "lost entry" in caplog.text


def test_texts_in_the_queue_are_bounded(store: FakeStore, start: Callable[..., LogWriter]):
    writer = start(max_characters=100)
    store.gate.clear()
    writer.write(entry(0, completion="x" * 60))
    writer.write(entry(1, completion="y" * 60, prompt_tokens=3))
    store.gate.set()
    assert writer.flush(5)
    assert sorted(len(one.completion) for one in store.written) in ([0, 60], [60, 60])
    writer.write(entry(2, completion="z" * 60))
    assert writer.flush(5)
    assert len(store.written[-1].completion) == 60, "room is given back"


def test_stopping_writes_what_is_queued(store: FakeStore):
    writer = LogWriter(store, retry_s=0.01)
    for number in range(500):
        writer.write(entry(number))
    writer.start()
    writer.stop(5)
    assert len(store.written) == 500


def test_stopping_without_a_database_ends_in_time(store: FakeStore, caplog: pytest.LogCaptureFixture):
    store.is_away = True
    writer = LogWriter(store, retry_s=0.01)
    writer.start()
    writer.write(entry())
    before = time.monotonic()
    writer.stop(0.2)
    assert time.monotonic() - before < 2
    assert "1 entries unwritten" in caplog.text


@pytest.mark.django_db
def test_rows_hold_what_was_noted():
    noted = entry(
        1,
        model="tiny",
        prompt=[{"role": "user", "content": "hé"}],
        completion="ok",
        parameters={"temperature": 0.5},
        queue_ms=1.5,
    )
    LogStore().insert([noted])
    row = RequestLog.objects.get()
    assert row.pk == "req_1"
    assert row.prompt == '[{"role": "user", "content": "hé"}]'
    assert (row.completion, row.parameters, row.queue_ms) == ("ok", {"temperature": 0.5}, 1.5)
    assert row.created_at == noted.created_at


@pytest.mark.django_db
def test_values_beyond_the_limits_of_postgres_are_refused_and_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    def too_long(found: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT to_tsvector('simple', string_agg(md5(n::text), ' ')) FROM generate_series(1, 99999) n"
            )

    monkeypatch.setattr(request_log_store, "record_matches", too_long)
    with pytest.raises(DataError, match="too long for tsvector"):
        LogStore().insert([entry(1)])
    assert not RequestLog.objects.exists()


@pytest.mark.django_db
def test_values_that_postgres_refuses_are_cleaned():
    poison = "a\0b\ud800c"
    parameters = {"stop": [poison], "x\0": float("nan"), "y": float("inf"), "big": 10**400, "deep": [[{"a": (1,)}]]}
    values = {"user": poison, "model": poison * 100, "prompt": poison, "completion": poison, "error_message": poison}
    LogStore().insert([entry(1, parameters=parameters, **values), entry(2, prompt=["\ud800"])])
    row = RequestLog.objects.get(pk="req_1")
    assert row.user == row.prompt == row.completion == "a\ufffdb\ufffdc"
    assert len(row.model) == 200
    assert row.parameters == {
        "stop": ["a\ufffdb\ufffdc"],
        "x\ufffd": "nan",
        "y": "inf",
        "big": 10**400,
        "deep": [[{"a": [1]}]],
    }


@pytest.mark.django_db
def test_writing_again_changes_nothing():
    store, noted = LogStore(), entry(1)
    store.insert([noted, entry(2)])
    store.insert([noted])
    assert RequestLog.objects.count() == 2


@pytest.mark.django_db
def test_ids_that_clients_repeat_do_not_lose_requests():
    store = LogStore()
    first, second, third = (entry(id="mine", created_at=timezone.now()) for _ in range(3))
    store.insert([first])
    store.insert([second, third])
    store.insert([first, second, third])
    ids = list(RequestLog.objects.order_by("created_at").values_list("pk", flat=True))
    assert ids[0] == "mine"
    assert len(ids) == 3
    assert all(one.startswith("mine~") for one in ids[1:])


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("full", "text"),
        ("none", ""),
        ("hash", "sha256:982d9e3eb996f559e633f4d194def3761d909f5a3b647d1a851fead67c32c9d1"),
    ],
)
def test_how_much_of_texts_is_kept(content: str, kept: str):
    assert stored_text("text", content) == kept
    assert stored_text("", content) == ""
    row = row_of(entry(prompt="text", completion="text", prompt_tokens=2), content)
    assert (row.prompt, row.completion, row.prompt_tokens) == (kept, kept, 2)


@pytest.mark.django_db
def test_the_setting_decides(settings: Any):
    settings.MILLM_LOG_CONTENT = "hash"
    LogStore().insert([entry(prompt=["secret"], completion="secret")])
    row = RequestLog.objects.get()
    assert row.prompt.startswith("sha256:")
    assert "secret" not in row.prompt + row.completion


@pytest.mark.django_db
def test_the_last_use_of_a_key_is_noted_once_a_minute():
    owner = get_user_model().objects.create_user("owner")
    key = create_api_key(name="a", owner=owner).api_key
    store, now = LogStore(), timezone.now()
    for seconds, expected in ((0, 0), (30, 0), (61, 61)):
        moment = now + timedelta(seconds=seconds)
        store.mark_keys_used([entry(api_key_id=key.pk, created_at=moment), entry()])
        assert ApiKey.objects.get().last_used_at == now + timedelta(seconds=expected)


@pytest.mark.django_db(transaction=True)
def test_the_thread_writes_to_the_database_and_stops():
    runtime.remove(LOG_WRITER)
    get_log_writer().write(entry(7, prompt="a\0b"))
    get_log_writer().write(entry(8, api_key_id=10**9))
    apps.stop_log_writer()
    assert set(RequestLog.objects.values_list("pk", flat=True)) == {"req_7", "req_8"}
    assert RequestLog.objects.get(pk="req_8").api_key is None
    assert not any(thread.name == "request-log" for thread in threading.enumerate())


@pytest.mark.django_db(transaction=True)
def test_a_locked_table_is_reported_and_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    monkeypatch.setattr(request_log_store, "LOCK_TIMEOUT", "50ms")
    runtime.remove(LOG_WRITER)
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("LOCK TABLE openai_api_requestlog IN ACCESS EXCLUSIVE MODE")
        get_log_writer().write(entry(7))
        deadline = time.monotonic() + 30
        while "LockNotAvailable" not in caplog.text:
            assert time.monotonic() < deadline, "nobody said why the row is missing"
            time.sleep(0.02)
    apps.stop_log_writer()
    assert RequestLog.objects.get().pk == "req_7"


@pytest.mark.django_db(transaction=True)
def test_connections_return_to_the_pool_without_the_time_limit_for_locks():
    def limits() -> list[str]:
        store = LogStore()
        store.refresh_connection()
        used = connection.connection
        found = []
        for step in (lambda: None, store.close):
            step()
            found.append(used.execute("SELECT current_setting('lock_timeout')").fetchone()[0])
        return found

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(limits).result() == ["10s", "0"]


def test_stopping_what_never_started_is_nothing():
    runtime.remove(LOG_WRITER)
    log_writer.stop()
