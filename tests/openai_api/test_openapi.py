"""The OpenAPI document: a snapshot, and its agreement with what the server does."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from jsonschema import Draft202012Validator

from management_api.openapi import document
from openai_api.urls import urlpatterns
from tests.openai_api.conftest import Api, chunks_of

SNAPSHOT = Path(__file__).with_name("openapi.json")


def test_the_document_is_the_snapshot():
    """After a wanted change: manage.py openapi > tests/openai_api/openapi.json"""
    assert document() == json.loads(SNAPSHOT.read_text())


def test_the_command_prints_the_document():
    out = StringIO()
    call_command("openapi", stdout=out)
    assert json.loads(out.getvalue()) == document()


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": document()["components"]})


def test_all_schemas_are_valid():
    for schema in document()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_reference_is_defined():
    text = json.dumps(document())
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names == set(document()["components"]["schemas"])


def test_every_route_is_described():
    documented = {path for path in document()["paths"] if path.startswith("/v1/")}
    assert len(documented) == len(urlpatterns) - 1, "all but the one for unknown URLs"


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 1, "profile": "cats", "n": 2}])
async def test_chat_answers_match_the_document(api: Api, fields: dict[str, Any]):
    validator("ChatCompletionBody").validate((await api.chat(**fields)).json())
    response = await api.chat(stream=True, stream_options={"include_usage": True}, **fields)
    for chunk in (await chunks_of(response))[:-1]:
        validator("ChatChunkBody").validate(chunk)


@pytest.mark.parametrize("fields", [{}, {"logprobs": 1, "profile": "cats", "echo": False}])
async def test_completion_answers_match_the_document(api: Api, fields: dict[str, Any]):
    validator("CompletionBody").validate((await api.complete(**fields)).json())
    for chunk in (await chunks_of(await api.complete(stream=True, **fields)))[:-1]:
        validator("CompletionBody").validate(chunk)


async def test_other_answers_match_the_document(api: Api):
    validator("ModelListBody").validate((await api.client.get("/v1/models")).json())
    validator("ModelBody").validate((await api.client.get("/v1/models/tiny")).json())
    validator("ModelDeletedBody").validate((await api.client.delete("/v1/models/tiny")).json())
    validator("ErrorBody").validate((await api.client.get("/v1/nothing")).json())


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "stop": ["a"]},
        {"model": "m", "messages": [{"role": "assistant", "content": None, "refusal": "no"}], "logit_bias": {"1": 2}},
    ],
)
def test_requests_match_the_document(body: dict[str, Any]):
    validator("ChatRequest").validate(body)
