"""The table of endpoints and parameters: in step with the schemas, and complete by the official client."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from openai import OpenAI

from openai_api.openapi.parameter_table import BEGIN, END, PATH, page_with_table, parameter_rows, parameter_table

ROWS = {row.endpoint: row for row in parameter_rows()}
CLIENT = OpenAI(api_key="none", base_url="http://127.0.0.1:1")  # which only tells its parameters
OF_THE_CLIENT = {"extra_headers", "extra_query", "extra_body", "timeout"}  # what is no field of the request
TEMPLATED = {"response_id", "vector_store_id", "upload_id", "conversation_id", "completion_id", "file_id"}
CALLS: dict[str, Any] = {
    "POST /v1/chat/completions": CLIENT.chat.completions.create,
    "GET /v1/chat/completions": CLIENT.chat.completions.list,
    "POST /v1/completions": CLIENT.completions.create,
    "POST /v1/embeddings": CLIENT.embeddings.create,
    "POST /v1/moderations": CLIENT.moderations.create,
    "POST /v1/decisions": CLIENT.decisions.create,
    "POST /v1/responses": CLIENT.responses.create,
    "POST /v1/batches": CLIENT.batches.create,
    "POST /v1/files": CLIENT.files.create,
    "GET /v1/files": CLIENT.files.list,
    "POST /v1/uploads": CLIENT.uploads.create,
    "POST /v1/uploads/{upload_id}/complete": CLIENT.uploads.complete,
    "POST /v1/conversations": CLIENT.conversations.create,
    "POST /v1/vector_stores": CLIENT.vector_stores.create,
    "GET /v1/vector_stores": CLIENT.vector_stores.list,
    "POST /v1/vector_stores/{store_id}": CLIENT.vector_stores.update,
    "POST /v1/vector_stores/{store_id}/search": CLIENT.vector_stores.search,
    "POST /v1/vector_stores/{store_id}/files": CLIENT.vector_stores.files.create,
    "POST /v1/vector_stores/{store_id}/file_batches": CLIENT.vector_stores.file_batches.create,
}


def test_the_committed_table_is_up_to_date():
    """After a wanted change: manage.py compatibility_doc"""
    assert page_with_table(PATH.read_text()) == PATH.read_text()
    call_command("compatibility_doc", check=True)


@pytest.mark.parametrize("endpoint", CALLS)
def test_every_parameter_of_the_official_client_is_in_the_table(endpoint: str):
    official = set(inspect.signature(CALLS[endpoint]).parameters) - OF_THE_CLIENT - TEMPLATED
    assert official - {name.partition("[")[0] for name in ROWS[endpoint].names} == set()


def test_a_parameter_is_treated_in_one_way():
    for row in ROWS.values():
        assert len(row.names) == len([*row.honoured, *row.ignored, *row.refused]), row.endpoint


def test_examples_of_each_treatment():
    chat = ROWS["POST /v1/chat/completions"]
    assert "temperature" in chat.honoured
    assert {"verbosity", "stream_options.include_obfuscation"} <= set(chat.ignored)
    assert "web_search_options" in chat.refused
    assert set(ROWS["GET /v1/responses/{response_id}"].honoured) == {"stream", "starting_after"}
    assert "| `GET /v1/responses/{response_id}` | `starting_after`, `stream` |  |  |\n" in parameter_table()


def test_a_page_that_differs_is_noticed_and_written(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    with pytest.raises(CommandError, match="does not match"):
        call_command("compatibility_doc", page=page, check=True)
    call_command("compatibility_doc", page=page)
    call_command("compatibility_doc", page=page, check=True)
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    page.write_text("no marks")
    with pytest.raises(CommandError, match="does not contain the markers"):
        call_command("compatibility_doc", page=page)
