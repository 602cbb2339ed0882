"""Structured output (robustness, rows 27 - 33): which field becomes which grammar, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.client import FailedEvent, GenerationRequest, Timings, Usage
from inference.text.grammar import Grammar, GrammarBusyError
from tests.openai_api.conftest import Api, events_of

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
AS_SCHEMA = Grammar.of_schema(PERSON)
NAMED = {"name": "person", "schema": PERSON}
SCHEMA_PARAM = "response_format.json_schema.schema"


def json_schema(schema: Any, **fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **fields}}}


WISHES: list[tuple[dict[str, Any], Grammar | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": None}, None),
    ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
    ({"response_format": {"type": "json_object", "schema": PERSON}}, AS_SCHEMA),
    ({"response_format": {"type": "json_schema", "json_schema": NAMED}}, AS_SCHEMA),
    (json_schema(PERSON, strict=True, description="A person."), AS_SCHEMA),
    (json_schema(PERSON, strict=False), AS_SCHEMA),
    (json_schema(PERSON, strict=None), AS_SCHEMA),
    ({"guided_json": PERSON}, AS_SCHEMA),
    ({"guided_json": json.dumps(PERSON)}, AS_SCHEMA),
    ({"guided_regex": "[a-z]+"}, Grammar("regex", "[a-z]+")),
    ({"guided_choice": ["yes", "no"]}, Grammar.of_choices(["yes", "no"])),
    ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
    ({"structured_outputs": {"json": PERSON}}, AS_SCHEMA),
    ({"structured_outputs": {"json": json.dumps(PERSON)}}, AS_SCHEMA),
    ({"structured_outputs": {"json_object": True}}, Grammar("json_object")),
    ({"structured_outputs": {"json_object": False}}, None),
    ({"structured_outputs": {"regex": "a|b"}}, Grammar("regex", "a|b")),
    ({"structured_outputs": {"choice": ["ä"]}}, Grammar.of_choices(["ä"])),
    ({"structured_outputs": {"grammar": 'root ::= "a"\n'}}, Grammar("lark", 'root ::= "a"\n')),
    ({"grammar": 'root ::= "a"\n'}, Grammar("lark", 'root ::= "a"\n')),
    ({"grammar": ""}, None),
    ({"json_schema": PERSON}, AS_SCHEMA),
    ({"response_format": {"type": "text"}, "guided_regex": "a"}, Grammar("regex", "a")),
]


@pytest.mark.parametrize(("fields", "grammar"), WISHES, ids=lambda value: repr(value)[:60])
async def test_each_field_becomes_a_grammar_in_chats_and_completions(
    api: Api, fields: dict[str, Any], grammar: Grammar | None
):
    for response in (await api.chat(n=2, **fields), await api.complete(prompt=["a", "b"], **fields)):
        assert response.status_code == 200, response.content
        assert "x-millm-ignored-fields" not in response.headers
    assert [request.sampling.grammar for request in api.engine.requests] == [grammar] * 4


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format", "invalid_value"),
    ({"response_format": {"type": 3}}, "response_format", "invalid_value"),
    ({"response_format": {}}, "response_format", "invalid_value"),
    ({"response_format": "json_object"}, "response_format", "invalid_value"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing_required_parameter"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": PERSON}}},
        "response_format.json_schema.name",
        "missing_required_parameter",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        SCHEMA_PARAM,
        "missing_required_parameter",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "no spaces", "schema": {}}}},
        "response_format.json_schema.name",
        "invalid_value",
    ),
    (json_schema(PERSON, strict="yes"), "response_format.json_schema.strict", "invalid_type"),
    (json_schema({"$ref": "#"}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"enum": [f"v{i}" for i in range(3_000)]}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"enum": ["x" * 70_000]}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"type": "string", "pattern": "(?=a)"}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"type": "string", "pattern": "(a"}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"$ref": "http://127.0.0.1:1/x"}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"$ref": "file:///etc/passwd"}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"not": {}}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"if": {}, "then": {}}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"type": "array", "uniqueItems": True}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"enum": []}), SCHEMA_PARAM, "invalid_schema"),
    (json_schema({"type": "integer", "minimum": 5, "maximum": 3}), SCHEMA_PARAM, "invalid_schema"),
    ({"response_format": {"type": "json_object", "schema": {"not": {}}}}, "response_format.schema", "invalid_schema"),
    ({"guided_json": "{"}, "guided_json", "invalid_schema"),
    ({"guided_json": "[" * 60_000}, "guided_json", "invalid_schema"),
    ({"guided_json": {"not": {}}}, "guided_json", "invalid_schema"),
    ({"guided_regex": "(a"}, "guided_regex", "invalid_grammar"),
    ({"guided_regex": "a" * 3_000}, "guided_regex", "invalid_grammar"),
    ({"guided_regex": ""}, "guided_regex", "invalid_value"),
    ({"guided_regex": 3}, "guided_regex", "invalid_type"),
    ({"guided_choice": []}, "guided_choice", "invalid_value"),
    ({"guided_choice": [""]}, "guided_choice[0]", "invalid_value"),
    ({"guided_choice": ["a"] * 1_001}, "guided_choice", "invalid_value"),
    ({"guided_choice": ["x" * 5_000]}, "guided_choice[0]", "invalid_value"),
    ({"guided_grammar": "start: absent"}, "guided_grammar", "invalid_grammar"),
    ({"grammar": "root ::= ("}, "grammar", "invalid_grammar"),
    ({"grammar": "x" * 70_000}, "grammar", "invalid_value"),
    ({"json_schema": {"not": {}}}, "json_schema", "invalid_schema"),
    ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "invalid_grammar"),
    ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "invalid_value"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs.regex", "invalid_value"),
    ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "invalid_value"),
    ({"response_format": {"type": "json_object"}, "grammar": 'root ::= "a"\n'}, "grammar", "invalid_value"),
]


@pytest.mark.parametrize(("fields", "param", "code"), BAD, ids=lambda value: repr(value)[:60])
async def test_what_cannot_be_followed_is_refused_before_it_is_queued(
    api: Api, fields: dict[str, Any], param: str, code: str
):
    for ask in (api.chat, api.complete):
        response = await ask(**fields)
        assert response.status_code == 400, response.content[:300]
        error = response.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code), error
        assert len(response.content) < 4_000
    assert api.engine.requests == []
    assert (await api.chat()).status_code == 200


@pytest.mark.parametrize("depth", [40, 180])
async def test_deep_schemas_are_refused(api: Api, depth: int):
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"items": schema}
    error = (await api.chat(**json_schema(schema))).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_schema", SCHEMA_PARAM)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a{1,1000}){1,1000}"])
async def test_patterns_that_ruin_backtracking_engines_are_fine(api: Api, pattern: str):
    response = await api.chat(**json_schema({"type": "string", "pattern": pattern}))
    assert response.status_code == 200


HUGE_SCHEMAS: list[tuple[dict[str, Any], str]] = [
    ({"type": "integer", "maximum": 10**300}, "#/maximum"),
    ({"type": "string", "minLength": 10**300}, "#/minLength"),
    ({"properties": {"age": {"const": 10**300}}}, "#/properties/age/const"),
    ({"$defs": {"a": {"items": [{"enum": ["x", -(10**300)]}]}}}, "#/$defs/a/items/0/enum/1"),
    ({"default": {"deep": [10**4_000]}}, "#/default/deep/0"),
    ({"examples": [2**63]}, "#/examples/0"),
]


@pytest.mark.parametrize(("schema", "place"), HUGE_SCHEMAS, ids=lambda value: repr(value)[:60])
async def test_huge_integers_in_schemas_are_refused_with_their_place(api: Api, schema: dict[str, Any], place: str):
    text = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    message = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    answers = [
        (await api.chat(**json_schema(schema)), SCHEMA_PARAM),
        (await api.complete(guided_json=schema), "guided_json"),
        (await api.chat(structured_outputs={"json": schema}), "structured_outputs.json"),
        (
            await api.post("/v1/responses", {"model": "tiny", "input": "hi", "text": text, "store": False}),
            "text.format.schema",
        ),
        (
            await api.post(
                "/v1/messages", {**message, "output_config": {"format": {**text["format"], "type": "json_schema"}}}
            ),
            "output_config.format.schema",
        ),
    ]
    for response, param in answers:
        assert response.status_code == 400, response.content[:300]
        error = response.json()["error"]
        assert (error["param"], error["code"]) == (param, "invalid_schema")
        assert f"`{place}`" in error["message"]
        assert len(error["message"]) < 500
    assert api.engine.requests == []


async def test_unsupported_keywords_are_named(api: Api):
    error = (await api.chat(**json_schema({"type": "object", "if": {}, "uniqueItems": True}))).json()["error"]
    assert "`if`, `uniqueItems`" in error["message"]


async def test_two_grammars_are_named(api: Api):
    error = (await api.chat(guided_regex="a", guided_json={})).json()["error"]
    assert "`guided_json`, `guided_regex`" in error["message"]


async def test_the_log_keeps_the_request_as_it_was(api: Api):
    await api.chat(response_format={"type": "json_schema", "json_schema": NAMED})
    logged = api.log.only.parameters["response_format"]
    assert logged == {"type": "json_schema", "json_schema": NAMED}


async def test_a_busy_compiler_asks_to_come_back(api: Api):
    class Busy:
        async def prepare(self, grammar: Grammar) -> None:
            raise GrammarBusyError("The server is busy compiling other grammars; try again.")

    api.registry.grammars = Busy()  # type: ignore[assignment]
    response = await api.chat(guided_regex="a")
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "server_is_overloaded"
    assert response["Retry-After"] == "1"
    assert api.engine.requests == []


def failing(request: GenerationRequest) -> list[FailedEvent]:
    return [FailedEvent(request.index, "grammar_failed", "Too complex.", Usage(), Timings())]


async def test_a_grammar_that_fails_later_is_the_request_s_fault(api: Api):
    api.engine.script = failing
    response = await api.chat(guided_regex="a")
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "grammar_failed"
    streamed = await api.chat(guided_regex="a", stream=True)
    if streamed.streaming:
        assert json.loads((await events_of(streamed))[-1].removeprefix("data: "))["error"]["code"] == "grammar_failed"
    else:
        assert streamed.json()["error"]["code"] == "grammar_failed"
