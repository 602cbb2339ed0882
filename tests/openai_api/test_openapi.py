"""The OpenAPI document: a snapshot, and its agreement with what the server does."""

from __future__ import annotations

import json
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from jsonschema import Draft202012Validator

from management_api.openapi import document
from openai_api.routes import urlpatterns
from tests.openai_api.conftest import Api, chunks_of

pytestmark = pytest.mark.slow

SNAPSHOT = Path(__file__).with_name("openapi.json")


@cache
def described() -> dict[str, Any]:
    """The document, which takes more than a second to build."""
    return document()


def read_yaml(text: str) -> Any:
    return yaml.load(text, Loader=yaml.CSafeLoader)  # the same in C


def test_the_document_is_the_snapshot():
    """After a wanted change: manage.py openapi --output tests/openai_api/openapi.json"""
    assert described() == json.loads(SNAPSHOT.read_text())


def test_the_command_prints_the_document():
    out = StringIO()
    call_command("openapi", stdout=out)
    assert json.loads(out.getvalue()) == described()


@pytest.mark.parametrize(
    ("arguments", "name", "read"),
    [
        ([], "v1.json", json.loads),
        ([], "v1.yaml", read_yaml),
        ([], "v1.YML", read_yaml),
        (["--format", "yaml"], "v1.txt", read_yaml),
        (["--format", "json"], "v1.yaml", json.loads),
    ],
)
def test_the_command_writes_a_file_as_json_or_yaml(tmp_path: Path, arguments: list[str], name: str, read: Any):
    call_command("openapi", *arguments, "--output", str(tmp_path / name), stdout=StringIO())
    assert read((tmp_path / name).read_text()) == described()


def test_the_command_prints_yaml():
    out = StringIO()
    call_command("openapi", "--format", "yaml", stdout=out)
    assert out.getvalue().startswith("openapi: 3.1.0\n")
    assert read_yaml(out.getvalue()) == described()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(CommandError, match=r"absent/v1\.json"):
        call_command("openapi", "--output", str(tmp_path / "absent" / "v1.json"), stdout=StringIO())


def limits_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of the parameter `limit` of a path's operations."""
    operations = [each for each in item.values() if isinstance(each, dict)]
    parameters = [parameter for each in operations for parameter in each.get("parameters", ())]
    schemas = [parameter["schema"] for parameter in parameters if parameter["name"] == "limit"]
    return [inner for schema in schemas for inner in schema.get("anyOf", [schema]) if inner != {"type": "null"}]


def test_every_limit_of_a_list_has_its_bounds():
    limits = [limit for item in described()["paths"].values() for limit in limits_of(item)]
    assert len(limits) > 15
    assert all(limit["minimum"] == 1 and limit["maximum"] >= 100 for limit in limits)


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": described()["components"]})


def test_all_schemas_are_valid():
    for schema in described()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_reference_is_defined():
    text = json.dumps(described())
    names = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names == set(described()["components"]["schemas"])


def test_every_route_is_described():
    documented = {path for path in described()["paths"] if path.startswith("/v1/")}
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
