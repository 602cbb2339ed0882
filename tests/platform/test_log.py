"""What the log says of database errors: Postgres quotes rows, and rows hold prompts."""

from __future__ import annotations

import logging
from typing import Any

import psycopg
import pytest
from django.db import DataError, OperationalError, connection, transaction
from django.utils import timezone

from jobs.execution import sentence
from millm_site.log import LineFormatter
from openai_api.models import RequestLog
from openai_api.request_log.store import LogStore
from openai_api.request_log.writer import LogWriter
from tests.openai_api.test_log_writer import entry

PROMPT = "my secret prompt"
FORMAT = "{levelname} {message}"


def line(*args: Any, message: object = "It failed: %s", exc_info: Any = None) -> str:
    record = logging.LogRecord("millm", logging.ERROR, __file__, 1, message, args, exc_info)
    return LineFormatter(FORMAT, style="{").format(record)


def caught(act: Any) -> BaseException:
    try:
        with transaction.atomic():
            act()
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error
    raise AssertionError("nothing was raised")


def duplicate() -> None:
    for _ in range(2):
        RequestLog.objects.create(id=PROMPT, created_at=timezone.now(), endpoint="/v1/x", status=200)


def not_null() -> None:
    with connection.cursor() as cursor:
        sql = (
            "INSERT INTO openai_api_requestlog (id, created_at, endpoint, status, prompt) VALUES (%s, NULL, '', 1, %s)"
        )
        cursor.execute(sql, ["x", PROMPT])


def bad_json() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb", ['{"a": ' + PROMPT])


def bad_number() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::integer", [PROMPT])


@pytest.mark.django_db
@pytest.mark.parametrize("act", [duplicate, not_null, bad_json, bad_number])
def test_no_value_of_a_row_is_in_a_line_of_the_log(act: Any):
    error = caught(act)
    assert PROMPT in str(error)  # else this test holds nothing
    trace = line("a batch", exc_info=_info(error))
    said = [trace, line(error), line({"error": error}, message="In it: %(error)s"), line(message=error)]
    assert all(PROMPT not in text for text in said)
    assert all("SQLSTATE" in text for text in said)
    assert "Traceback" in trace
    assert act.__name__ in trace  # where it happened


def _info(error: BaseException) -> Any:
    return (type(error), error, error.__traceback__)


@pytest.mark.django_db
def test_nor_in_one_that_came_of_it():
    def wrapped() -> None:
        try:
            bad_number()
        except DataError as error:
            raise RuntimeError("The row could not be written.") from error

    text = line("x", exc_info=_info(caught(wrapped)))
    assert PROMPT not in text
    assert "The row could not be written." in text
    grouped = ExceptionGroup("all of them", [caught(bad_number), ValueError("another")])
    text = line("x", exc_info=_info(grouped))
    assert PROMPT not in text
    assert "another" in text


@pytest.mark.django_db
def test_it_says_what_an_operator_needs():
    assert "UniqueViolation (SQLSTATE 23505, table openai_api_requestlog" in line(caught(duplicate))
    assert "column created_at" in line(caught(not_null))


def test_connections_are_told_of_as_libpq_says():
    with pytest.raises(psycopg.OperationalError) as refused:
        psycopg.connect("host=127.0.0.1 port=1 dbname=x connect_timeout=2")
    assert "127.0.0.1" in line(refused.value)
    assert "server closed the connection" in line(OperationalError("server closed the connection\nDETAIL: x"))
    assert "DETAIL" not in line(OperationalError("server closed the connection\nDETAIL: x"))


def test_other_errors_and_values_stay_as_they_are():
    assert line("a", message="x %s") == "ERROR x a"
    assert line(message="100 %") == "ERROR 100 %"
    assert line(ValueError("a value")) == "ERROR It failed: a value"


@pytest.mark.django_db
def test_a_poisoned_row_of_the_request_log_is_not_quoted(caplog: pytest.LogCaptureFixture, monkeypatch: Any):
    def insert(entries: Any) -> None:
        with transaction.atomic():
            not_null()

    store = LogStore()
    monkeypatch.setattr(store, "insert", insert)
    LogWriter(store)._insert([entry(1, prompt=PROMPT), entry(2)])
    formatter = LineFormatter(FORMAT, style="{")
    lines = [formatter.format(record) for record in caplog.records]
    assert any("lost entry req_1" in text for text in lines)
    assert all(PROMPT not in text for text in lines)


@pytest.mark.django_db
def test_a_job_s_error_quotes_no_row_either():
    assert PROMPT not in sentence(caught(duplicate))
    assert sentence(ValueError("It is too long.")) == "It is too long."
