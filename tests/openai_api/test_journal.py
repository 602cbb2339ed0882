"""Requests that run when their process is killed: each has one row, written by the process that starts next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from openai_api.models import RequestLog
from openai_api.request_log.entry import LogEntry
from openai_api.request_log.journal import KILLED, Journal, dead_journals
from openai_api.request_log.store import LogStore
from openai_api.request_log.writer import LogWriter

AT = datetime(2026, 11, 22, 20, 30, 0, 123_456, UTC)


def entry(name: str, **fields: Any) -> LogEntry:
    return LogEntry(id=name, created_at=AT, endpoint="/v1/chat/completions", client_address="127.0.0.1", **fields)


def left_by(folder: Path, act: Callable[[Journal], object]) -> list[LogEntry]:
    """What a process that did ``act`` and was killed has left."""
    journal = Journal(folder, max_bytes=10_000)
    act(journal)
    assert list(dead_journals(folder)) == []  # it lives
    kill(journal)
    (dead,) = dead_journals(folder)
    dead.forget()
    assert list(folder.iterdir()) == []
    return list(dead.entries)


def kill(journal: Journal) -> None:
    """As the kernel does: the lock goes, the file stays."""
    if journal._descriptor is not None:
        os.close(journal._descriptor)


def test_what_is_not_settled_is_left_as_it_was_noted_last(tmp_path: Path):
    def act(journal: Journal) -> None:
        running, ended, settled = entry("req_a", api_key_id=7), entry("req_b"), entry("mine")
        for each in (running, ended, settled):
            journal.note(each)
        running.model = "demo"
        ended.status, ended.total_ms, ended.completion_tokens = 200, 12.5, 3
        settled.total_ms = 1.0
        for each in (running, ended, settled):
            journal.note(each)
        journal.settle([settled])

    running, ended = left_by(tmp_path / "journal", act)
    assert (running.id, running.created_at, running.model, running.api_key_id) == ("req_a", AT, "demo", 7)
    assert (running.status, running.error_code) == (500, KILLED)
    assert (ended.id, ended.status, ended.error_code, ended.completion_tokens) == ("req_b", 200, "", 3)


def test_texts_are_not_in_it(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.note(
        entry("req_a", prompt="secret", completion="secret", error_message="secret", parameters={"stop": "secret"})
    )
    assert "secret" not in journal.path.read_text()
    assert journal.path.stat().st_mode & 0o077 == 0


def test_a_process_that_ends_well_leaves_nothing(tmp_path: Path):
    journal, one = Journal(tmp_path), entry("req_a")
    journal.note(one)
    journal.settle([one])
    journal.close()
    assert list(tmp_path.iterdir()) == []


def test_it_does_not_grow_without_end(tmp_path: Path):
    def act(journal: Journal) -> None:
        journal.note(entry("req_long"))
        for number in range(500):
            one = entry(f"req_{number}")
            journal.note(one)
            journal.settle([one])
            assert journal.path.stat().st_size < 11_000

    assert [each.id for each in left_by(tmp_path, act)] == ["req_long"]


def test_a_line_that_was_cut_off_harms_no_other(tmp_path: Path):
    journal = Journal(tmp_path)
    journal.note(entry("req_a"))
    kill(journal)
    with journal.path.open("ab") as file:
        file.write(b'{"n": 2, "id": "req_b", "a')
    (dead,) = dead_journals(tmp_path)
    assert [each.id for each in dead.entries] == ["req_a"]
    dead.forget()


def test_a_disk_that_refuses_costs_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "journal").write_text("a file")
    journal, one = Journal(tmp_path / "journal"), entry("req_a")
    for _ in range(3):
        journal.note(one)
    journal.settle([one])
    journal.close()
    assert len([each for each in caplog.records if "will not be logged" in each.message]) == 1


@pytest.mark.django_db(transaction=True)
def test_the_next_process_writes_each_missing_row_once(tmp_path: Path):
    """Of one that was killed between the row and its mark, the row stays as it is; of repeated names each has a row."""
    before = Journal(tmp_path)
    written, running = entry("req_a", status=200, total_ms=1.0, completion="text"), entry("req_b")
    first, second = entry("mine"), LogEntry("mine", AT.replace(hour=21), "/v1/models", None)
    for each in (written, running, first, second):
        before.note(each)
    LogStore().insert([written, first])
    kill(before)
    for _ in range(2):
        writer = LogWriter(LogStore(), journal=Journal(tmp_path))
        writer.start()
        writer.write(entry(f"req_{_}", status=200))
        assert writer.flush(60)
        writer.stop()
    rows = {row.pk.partition("~")[0] + row.endpoint: row for row in RequestLog.objects.all()}
    assert RequestLog.objects.count() == len(rows) == 6
    assert rows["req_a/v1/chat/completions"].completion == "text"
    assert rows["req_b/v1/chat/completions"].error_code == KILLED
    assert rows["mine/v1/models"].error_code == KILLED
    assert list(tmp_path.iterdir()) == []


PROGRAM = """
import sys, time
from datetime import datetime, UTC
from pathlib import Path
from openai_api.request_log.journal import Journal
from openai_api.request_log.entry import LogEntry
journal = Journal(Path(sys.argv[1]))
for number in range(100):
    journal.note(LogEntry(f"req_{number}", datetime.now(UTC), "/v1/models", None))
print("noted", flush=True)
time.sleep(600)
"""


def test_a_kill_loses_nothing(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "noted\n"
        assert list(dead_journals(tmp_path)) == []
        process.send_signal(signal.SIGKILL)
    (dead,) = dead_journals(tmp_path)
    assert [each.id for each in dead.entries] == [f"req_{number}" for number in range(100)]
    dead.leave()
