"""Exports: whole, streamed in bounded pieces, safe to open, and in the trail."""

from __future__ import annotations

import csv
import io
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import AsyncClient, Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from inference.models import LanguageModel
from openai_api.models import LogAccess, RequestLog
from openai_api.request_log import export as exporting
from openai_api.request_log.export import BATCH, Export, safe_cell, start_export
from openai_api.request_log.search import LogSearch
from tests.openai_api.request_log.conftest import LOG, SEES_ROWS, SEES_TEXT, client_of, staff
from tests.openai_api.request_log.rows import row, rows

pytestmark = pytest.mark.slow

URL = f"{LOG}export/"


def export(form: Any = "jsonl", *, with_text: bool = False, search: LogSearch | None = None) -> Export:
    return start_export(search=search or LogSearch(), conditions={}, form=form, with_text=with_text, user=None)


def lines_of(export: Export) -> list[dict[str, Any]]:
    return [json.loads(line) for line in b"".join(export.batches()).decode().splitlines()]


def cells_of(export: Export) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(b"".join(export.batches()).decode(), newline="")))


@pytest.mark.django_db
def test_all_rows_once_newest_first_in_batches():
    rows(2 * BATCH + 5)
    made = export()
    pieces = list(made.batches())
    assert len(pieces) == 3
    ids = [json.loads(line)["id"] for line in b"".join(pieces).splitlines()]
    assert ids == [f"req_{number}" for number in range(2 * BATCH + 5)]
    access = LogAccess.objects.get()
    assert (access.act, access.num_rows, access.is_complete) == ("export", 2 * BATCH + 5, True)


@pytest.mark.django_db
def test_two_queries_a_batch_and_nothing_passed_over():
    rows(2 * BATCH + 5)
    made = export()
    with CaptureQueriesContext(connection) as queries:
        list(made.batches())
    reads = [query["sql"] for query in queries if query["sql"].startswith("SELECT")]
    assert len(reads) == 1 + 2 * 3  # of prices, and of rows and their scores
    assert not any("OFFSET" in sql or "COUNT(" in sql for sql in reads)


@pytest.mark.django_db
def test_an_export_that_is_left_says_how_far_it_came():
    rows(BATCH + 5)
    pieces = export().batches()
    next(pieces)
    next(pieces)
    pieces.close()
    access = LogAccess.objects.get()
    assert (access.num_rows, access.is_complete) == (BATCH, False)  # the second piece was made, and not taken


@pytest.mark.django_db
def test_texts_only_where_they_are_asked_for():
    row(1, prompt="SECRET", completion="SECRET", parameters={"stop": "SECRET"}, error_message="SECRET", status=400)
    assert "SECRET" not in json.dumps(lines_of(export()))
    assert "SECRET" not in json.dumps(cells_of(export("csv")))
    (found,) = lines_of(export(with_text=True))
    assert (found["prompt"], found["completion"], found["parameters"]) == ("SECRET", "SECRET", {"stop": "SECRET"})


@pytest.mark.django_db
def test_large_texts_are_not_in_memory_together(settings: Any):
    for number in range(6):
        row(number, prompt="x" * (exporting.MAX_BATCH_BYTES // 2 - 1_000))
    pieces = list(export(with_text=True).batches())
    assert len(pieces) == 3
    assert [json.loads(line)["id"] for line in b"".join(pieces).splitlines()] == [f"req_{n}" for n in range(6)]


@pytest.mark.django_db
def test_what_is_kept_of_tokens_counts_like_texts():
    for number in range(4):
        record = secrets.token_hex(exporting.MAX_BATCH_BYTES // 5)  # which does not compress
        row(number, prompt="x", parameters={"token_record": [record]})
    assert len(list(export(with_text=True).batches())) == 2


@pytest.mark.django_db
def test_conditions_hold():
    row(1, model="a")
    row(2, model="b")
    assert [line["id"] for line in lines_of(export(search=LogSearch(model="b")))] == ["req_2"]


@pytest.mark.django_db
def test_what_steering_changed_is_exported():
    effects = [{"layer": 3, "site": "resid_post", "mean_change": 0.25}]
    row(1, steering_effects=effects)
    (cells,) = cells_of(export("csv"))
    assert json.loads(cells["steering_effects"]) == effects
    assert lines_of(export())[0]["steering_effects"] == effects


FORMULAS = ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "＝1", '"=1', "x"]


@pytest.mark.django_db
@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_is_a_formula_and_json_lines_stay_as_they_are(text: str):
    row(1, user=text, prompt=text, completion='é,"\n;😀', model=text)
    (cells,) = cells_of(export("csv", with_text=True))
    for name in ("user", "prompt", "model"):
        assert not cells[name].lstrip().startswith(("=", "+", "-", "@", "＝"))
        assert cells[name].removeprefix("'") == text
    assert cells["completion"] == 'é,"\n;😀'
    (line,) = lines_of(export(with_text=True))
    assert line["user"] == line["prompt"] == text


@given(st.text())
def test_a_safe_cell_keeps_its_text_and_begins_harmlessly(text: str):
    cell = str(safe_cell(text))
    assert cell in (text, f"'{text}")
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


@pytest.mark.parametrize("number", [-5, 0, 2.5, None, True])
def test_numbers_stay_numbers(number: object):
    assert safe_cell(number) is number


# Over HTTP


@pytest.mark.django_db
def test_who_may_export_what(db: None):
    row(1, prompt="the sea")
    nobody = client_of(staff("nobody", *SEES_TEXT))
    assert nobody.post(URL, {"format": "csv"}).status_code == 403
    assert b"log-export" not in nobody.get(LOG).content
    blind = client_of(staff("blind", *SEES_ROWS, "export_requestlog"))
    assert blind.post(URL, {"format": "csv", "with_text": "on"}).status_code == 403
    assert blind.post(URL, {"format": "csv", "query": "text=sea"}).status_code == 302
    assert b"with_text" not in blind.get(LOG).content
    assert blind.get(URL).status_code == 405
    assert not LogAccess.objects.exclude(act="list").exists()


@pytest.mark.django_db
@pytest.mark.parametrize("data", [{}, {"format": "xlsx"}, {"format": "csv", "query": "junk=1"}])
def test_what_cannot_be_exported_is_said(admin_client: Client, data: dict[str, str]):
    page = admin_client.post(URL, data, follow=True)
    assert "The export failed" in page.content.decode()
    assert not LogAccess.objects.exists()


@pytest.mark.django_db
def test_an_export_needs_a_token_of_the_form(admin_user: User):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(URL, {"format": "csv"}).status_code == 403


@pytest.mark.django_db(transaction=True)
async def test_a_file_is_streamed():
    try:
        await check_a_streamed_file()
    finally:
        await sync_to_async(connections.close_all)()  # in the thread that stands for the server's


async def check_a_streamed_file() -> None:
    user = await sync_to_async(staff)("exporter", *SEES_TEXT, "export_requestlog")
    await sync_to_async(rows)(BATCH + 3, model="tiny", prompt="=1+1")
    await sync_to_async(row)(9_999, model="other")
    client = AsyncClient()
    await client.aforce_login(user)
    response: Any = await client.post(URL, {"format": "csv", "query": "model=tiny", "with_text": "on"})
    assert response.status_code == 200
    assert response["Content-Disposition"].startswith('attachment; filename="requests-')
    assert "no-store" in response["Cache-Control"]
    pieces = [piece async for piece in response.streaming_content]
    assert len(pieces) == 3
    found = list(csv.DictReader(io.StringIO(b"".join(pieces).decode(), newline="")))
    assert len(found) == BATCH + 3
    assert {line["prompt"] for line in found} == {"'=1+1"}
    access = await LogAccess.objects.aget()
    assert (access.username, access.num_rows, access.is_complete) == ("exporter", BATCH + 3, True)
    assert access.detail == {"conditions": {"model": "tiny"}, "format": "csv", "texts": True}


# The command


@pytest.mark.django_db
def test_the_command_writes_a_file_whole_or_not_at_all(tmp_path: Path):
    row(1, model="a", prompt="hello")
    row(2, model="b")
    output = tmp_path / "log.jsonl"
    call_command("export_logs", model="a", with_text=True, output=output)
    assert json.loads(output.read_text())["prompt"] == "hello"
    assert list(tmp_path.iterdir()) == [output]
    with pytest.raises(CommandError, match="already exists"):
        call_command("export_logs", output=output)
    assert LogAccess.objects.get().username == ""


@pytest.mark.django_db
def test_the_command_refuses_what_the_form_refuses():
    with pytest.raises(CommandError, match="outcome"):
        call_command("export_logs", outcome="junk")
    assert not RequestLog.objects.exists()


@pytest.mark.django_db
def test_chats_with_their_answers():
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello, \U0001f600"}]
    chat = {"prompt": json.dumps(asked, ensure_ascii=False), "completion": "Hi.", "finish_reason": "stop"}
    row(0, **chat)
    row(1, **chat | {"finish_reason": "length", "completion": "[1]"})
    row(2, **chat | {"completion": '["Hi.", "Hey."]', "parameters": {"n": 2}})  # not one answer
    row(3, **chat | {"finish_reason": "tool_calls", "completion": "{}"})
    row(4, **chat | {"error_code": "server_error"})
    row(5, **chat | {"completion": ""})
    row(6, endpoint="/v1/completions", prompt="Once", completion="upon", finish_reason="stop")
    row(7, prompt="sha256:abc", completion="sha256:def", finish_reason="stop")
    made = export("chats", with_text=True)
    assert made.file_name.startswith("chats-")
    assert made.file_name.endswith(".jsonl")
    answers = [{"role": "assistant", "content": text} for text in ("Hi.", "[1]")]
    assert lines_of(made) == [{"messages": [*asked, answer]} for answer in answers]


@pytest.mark.django_db
def test_chats_are_for_those_who_may_see_texts():
    row(0, prompt='[{"role": "user", "content": "Hello"}]', completion="Hi.", finish_reason="stop")
    allowed = client_of(staff("ann", *SEES_TEXT, "export_requestlog")).post(URL, {"format": "chats"})
    assert allowed.status_code == 200
    assert LogAccess.objects.get().detail["texts"] is True
    assert client_of(staff("bob", *SEES_ROWS, "export_requestlog")).post(URL, {"format": "chats"}).status_code == 403


@pytest.mark.django_db
@pytest.mark.parametrize(("cached_price", "cost"), [(None, 0.001), (0.125, 0.0007), (0, 0.0006)])
def test_cached_tokens_cost_what_they_cost(cached_price: float | None, cost: float):
    prices = {"input_price": 0.5, "cached_input_price": cached_price, "output_price": 2}
    LanguageModel.objects.create(name="tiny", source="org/tiny", **prices)
    row(0, prompt_tokens=1_000, cached_tokens=800, completion_tokens=250)
    assert [line["cost"] for line in lines_of(export())] == [cost]


@pytest.mark.django_db
def test_costs_of_models_with_prices():
    LanguageModel.objects.create(name="tiny", source="org/tiny", input_price=0.5, output_price=2)
    LanguageModel.objects.create(name="free", source="org/free", input_price=1)
    row(0, prompt_tokens=1_000, completion_tokens=250)
    row(1, model="free", prompt_tokens=1_000)
    row(2, model="tiny", status=400)
    row(3, prompt_tokens=20)
    assert [line["cost"] for line in lines_of(export())] == [0.001, None, 0, 0.00001]
    assert [cells["cost"] for cells in cells_of(export("csv"))] == ["0.001", "", "0.0", "1e-05"]
    pages = [client_of(staff(f"u{n}", *SEES_ROWS)).get(f"{LOG}req_{n}/change/").content.decode() for n in (0, 1, 3)]
    assert "<dt>Cost</dt><dd>0.001</dd>" in pages[0]
    assert "<dt>Cost</dt>" not in pages[1]
    assert "<dt>Cost</dt><dd>0.00001</dd>" in pages[2]
