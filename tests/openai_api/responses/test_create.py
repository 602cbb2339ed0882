"""POST /v1/responses: the object and its events, by the official client's types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses import CompactedResponse, Response, ResponseCompactionItem, ResponseStreamEvent
from pydantic import TypeAdapter

from inference.client import ThinkingBudget
from inference.text.dialects.dialect import Dialect
from inference.text.dialects.thinking import KNOWN_MARKS
from inference.text.grammar import Grammar
from openai_api.responses.models import StoredResponse
from tests.openai_api.conftest import Api, events_of
from tests.openai_api.connection import Connection
from tests.openai_api.fakes import answering, failing, record, tokens_of

RESPONSE = TypeAdapter(Response)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def strict_event(event: dict[str, Any]) -> Any:
    return EVENT.validate_json(json.dumps(event), strict=True)


async def create(api: Api, **fields: Any) -> Any:
    return await api.post("/v1/responses", {"model": "tiny", "input": "hi", **fields})


async def events(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """All events of a streamed response; each is named as it says."""
    response = await create(api, stream=True, **fields)
    assert response.status_code == 200, response.content
    found = []
    for event in await events_of(response):
        if event == ": ping":
            continue
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def test_a_response_has_all_fields_and_the_text(stored: Api):
    response = await create(stored, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5, user="me")
    body = response.json()
    parsed = RESPONSE.validate_json(response.content, strict=True)
    assert parsed.output_text == "Hello sea"
    assert parsed.status == "completed"
    assert body["usage"] == {
        "input_tokens": 13,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 22,
    }
    assert [message["role"] for message in stored.registry.text.rendered] == ["system", "user"]
    contract = """id object created_at completed_at status model output error incomplete_details instructions
        max_output_tokens max_tool_calls metadata parallel_tool_calls previous_response_id reasoning service_tier store
        background temperature text tool_choice tools top_logprobs top_p truncation presence_penalty frequency_penalty
        usage safety_identifier prompt_cache_key"""
    assert set(contract.split()) <= body.keys()
    assert (body["instructions"], body["metadata"], body["user"]) == ("Be kind.", {"a": "b"}, "me")


async def test_events_come_in_the_contract_s_order(stored: Api):
    stored.engine.script = answering("Hi!")
    found = await events(stored)
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        strict_event(event)
    assert {event["response"]["id"] for event in found if "response" in event} == {found[0]["response"]["id"]}
    assert found[0]["response"]["output"] == []
    assert found[-1]["response"]["output"] == [found[-2]["item"]]


async def test_the_stream_says_the_same_as_the_body(stored: Api):
    stored.engine.script = answering("Grüße 😀 aus dem Zug")
    streamed = (await events(stored))[-1]["response"]
    whole = (await create(stored)).json()
    for body in (streamed, whole):
        for key in ("id", "created_at", "completed_at"):
            body.pop(key)
        body["output"][0].pop("id")
    assert streamed == whole


async def test_a_cut_answer_is_incomplete(stored: Api):
    found = await events(stored, max_output_tokens=3)
    assert found[-1]["type"] == "response.incomplete"
    last = found[-1]["response"]
    assert (last["status"], last["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert last["output"][0]["status"] == "incomplete"
    assert last["completed_at"] is None
    strict_event(found[-1])


async def test_an_answer_without_text_is_an_empty_message(stored: Api):
    stored.engine.script = answering("")
    body = (await create(stored)).json()
    assert body["output"][0]["content"][0]["text"] == ""
    assert RESPONSE.validate_json(json.dumps(body), strict=True).output_text == ""


async def test_logprobs_come_where_they_are_asked_for(stored: Api):
    found = await events(stored, top_logprobs=2, include=["message.output_text.logprobs"])
    deltas = [event for event in found if event["type"] == "response.output_text.delta"]
    assert all(len(event["logprobs"][0]["top_logprobs"]) == 2 for event in deltas)
    part = found[-1]["response"]["output"][0]["content"][0]
    assert len(part["logprobs"]) == 9
    for event in found:
        strict_event(event)
    assert (await create(stored)).json()["output"][0]["content"][0]["logprobs"] == []


async def test_a_failure_on_the_way_is_the_last_event(stored: Api):
    stored.engine.script = failing("steering_unstable", after="He")
    found = await events(stored)
    assert found[-1]["type"] == "response.failed"
    failed = found[-1]["response"]
    assert failed["error"] == {
        "code": "server_error",
        "message": "It failed.",
        "param": None,
        "type": "server_error",
        "millm_code": "steering_unstable",
    }
    assert failed["output"][0]["content"][0]["text"] == "He"
    strict_event(found[-1])
    kept = (await stored.client.get(f"/v1/responses/{failed['id']}")).json()
    assert (kept["status"], kept["error"]) == ("failed", failed["error"])
    assert stored.log.entries[0].error_code == "steering_unstable"


async def test_a_failure_before_the_first_token_is_a_status(stored: Api):
    stored.engine.script = failing("out_of_memory")
    for stream in (True, False):
        response = await create(stored, stream=stream)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "out_of_memory"


async def test_the_deadline_ends_a_response(stored: Api, settings: Any):
    settings.MILLM_REQUEST_TIMEOUT = 0.2
    stored.engine.script = lambda request: tokens_of(request, "He")
    found = await events(stored)
    assert (found[-1]["type"], found[-1]["response"]["error"]["millm_code"]) == ("response.failed", "request_timeout")
    assert (await create(stored)).status_code == 504
    assert all(stream.num_closes for stream in stored.engine.streams)


async def test_a_client_that_leaves_frees_the_engine_and_nothing_is_kept(stored: Api):
    stored.engine.script = lambda request: tokens_of(request, "He")
    connection = Connection({"model": "tiny", "input": "hi", "stream": True}, "/v1/responses")
    await connection.wait_for(b'"delta":"e"')
    await connection.leave()
    assert stored.engine.streams[0].num_closes
    assert (stored.log.only.error_code, stored.log.only.completion) == ("client_disconnected", "He")
    assert not await StoredResponse.objects.aexists()


async def test_a_key_s_limits_hold(stored: Api):
    headers = stored.keys.add("sk-slow", requests_per_minute=1)
    body = {"model": "tiny", "input": "hi", "store": False}
    assert (await stored.post("/v1/responses", body, **headers)).status_code == 200
    refused = await stored.post("/v1/responses", body, **headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")


@pytest.mark.parametrize("stream", [False, True])
async def test_each_request_leaves_one_row(stored: Api, stream: bool):
    response = await create(stored, stream=stream, user="me", profile="gloomy")
    if stream:
        await events_of(response)
    entry = stored.log.only
    assert (entry.endpoint, entry.status, entry.stream, entry.user) == ("/v1/responses", 200, stream, "me")
    assert (entry.finish_reason, entry.prompt_tokens, entry.completion_tokens) == ("stop", 4, 9)
    assert (entry.completion, entry.prompt, entry.profile) == ("Hello sea", "hi", "gloomy@2")
    assert entry.parameters["response"].startswith("resp_")


async def test_steering_is_proved_as_on_chat(stored: Api):
    response = await create(stored, profile="gloomy@1", steering_intensity=0.5)
    assert response["x-millm-profile"] == "gloomy@1"
    assert response.json()["millm"] == {
        "profile": "gloomy@1",
        "fingerprint": "print-gloomy",
        "policies": [],
        "intensity": 0.5,
        "steering": {"expected": 9, "applied": 9, "sites": []},
    }
    RESPONSE.validate_json(response.content, strict=True)
    assert (await events(stored, profile="gloomy"))[-1]["response"]["millm"]["profile"] == "gloomy@2"
    unknown = await create(stored, profile="nobody")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "profile_not_found")


async def test_sampling_reaches_the_engine(stored: Api):
    await create(stored, temperature=0.25, top_p=0.5, seed=3, max_output_tokens=5, top_k=7, stop=["x"])
    sampling = stored.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.25, 0.5, 3, 5)
    assert (sampling.top_k, sampling.stop) == (7, ("x",))


@pytest.mark.parametrize("store", [True, False])
async def test_a_response_tells_what_it_was_drawn_by(stored: Api, store: bool):
    body = (await create(stored, store=store)).json()
    assert (body["temperature"], body["top_p"], body["presence_penalty"], body["frequency_penalty"]) == (1, 1, 0, 0)
    assert body["text"]["verbosity"] == "medium"
    fields = {"temperature": 0.25, "presence_penalty": 1.5, "frequency_penalty": None, "text": {"verbosity": "low"}}
    body = (await create(stored, store=store, model="org/steered", **fields)).json()
    assert (body["temperature"], body["presence_penalty"], body["frequency_penalty"]) == (0.25, 1.5, 0)
    assert body["text"]["verbosity"] == "low"
    defaults = await events(stored, store=store, model="org/steered")  # whose own temperature is 0.5
    told = [event["response"]["temperature"] for event in defaults if "response" in event]
    assert told == [0.5] * len(told)
    assert stored.engine.requests[-1].sampling.temperature == 0.5


async def test_fields_of_chats_are_honoured_where_they_mean_the_same(stored: Api):
    for fields, grammar in (
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"structured_outputs": {"choice": ["x", "y"]}}, Grammar.of_choices(["x", "y"])),
        ({"guided_json": SCHEMA}, Grammar.of_schema(SCHEMA)),
        ({"json_schema": SCHEMA, "text": {"format": {"type": "text"}}}, Grammar.of_schema(SCHEMA)),
    ):
        response = await create(stored, **fields)
        assert response.status_code == 200, response.content
        assert "x-millm-ignored-fields" not in response.headers
        assert stored.engine.requests[-1].sampling.grammar == grammar
    stored.registry.text.dialect = Dialect(KNOWN_MARKS[0])
    stored.registry.text.prompt_end = "<think>"
    await create(stored, reasoning_budget=False, chat_template_kwargs={"enable_thinking": True})
    assert stored.engine.requests[-1].sampling.thinking == ThinkingBudget(0, 1, 2, has_begun=True)
    assert stored.registry.text.kwargs == {"enable_thinking": True}


async def test_harmless_values_of_a_chat_s_fields_pass(stored: Api):
    harmless = {"n": 1, "response_format": {"type": "text"}, "logprobs": False, "max_tokens": None, "messages": None}
    assert (await create(stored, **harmless)).status_code == 200


async def test_tokens_can_be_counted_without_a_model_and_an_input(stored: Api):
    stored.registry._records = (record("only", is_default=True), record("vectors", kind="embedding"))
    empty = await stored.post("/v1/responses/input_tokens", {})
    assert empty.json() == {"object": "response.input_tokens", "input_tokens": 2}  # of an empty message
    given = await stored.post("/v1/responses/input_tokens", {"model": None, "input": "hi", "instructions": "Be."})
    assert given.json()["input_tokens"] == 2 + 2 + 4
    stored.registry._records = (record("one"), record("two"))
    error = (await stored.post("/v1/responses/input_tokens", {"input": "hi"})).json()["error"]
    assert (error["param"], error["code"]) == ("model", "missing_required_parameter")


async def test_a_conversation_is_compacted_to_the_user_s_messages_and_one_item(stored: Api):
    stored.registry.context = 2_000
    stored.engine.script = answering("They launch on Tuesday.")
    before = (await create(stored, input="We launch on Tuesday.")).json()
    fields = {"model": "tiny", "previous_response_id": before["id"], "input": [{"role": "user", "content": "Fine."}]}
    response = await stored.post("/v1/responses/compact", {**fields, "instructions": "Be brief.", "profile": "cats"})
    assert response.status_code == 200, response.content
    *messages, last = response.json()["output"]
    assert [(each["type"], each["role"]) for each in messages] == [("message", "user")] * 2
    assert [each["content"][0]["text"] for each in messages] == ["We launch on Tuesday.", "Fine."]
    compacted = TypeAdapter(CompactedResponse).validate_json(
        json.dumps({**response.json(), "output": [last]}), strict=True
    )
    assert isinstance(compacted.output[0], ResponseCompactionItem)
    assert compacted.usage.output_tokens == len("They launch on Tuesday.")
    asked = stored.registry.text.rendered[0]["content"]
    for said in ("instructions: Be brief.", "user: We launch on Tuesday.", "assistant: They launch", "user: Fine."):
        assert said in asked
    assert stored.log.entries[-1].profile.startswith("cats")

    then = [*response.json()["output"], {"role": "user", "content": "When?"}]
    following = await create(stored, input=then, instructions="Be kind.")
    assert following.status_code == 200, following.content
    system, *questions = stored.registry.text.rendered
    assert system["content"].startswith("Be kind.")
    assert system["content"].endswith("They launch on Tuesday.")
    assert system["role"] == "system"
    assert [each["content"] for each in questions] == ["We launch on Tuesday.", "Fine.", "When?"]
    listed = await stored.client.get(f"/v1/responses/{following.json()['id']}/input_items")
    assert {"message", "compaction"} == {each["type"] for each in listed.json()["data"]}
    again = await create(stored, previous_response_id=following.json()["id"])
    assert again.status_code == 200


async def test_compaction_needs_a_model_and_something_to_compact(stored: Api):
    for body, param in (
        ({"input": "hi"}, "model"),
        ({"model": "tiny"}, "input"),
        ({"model": "tiny", "input": []}, "input"),
    ):
        response = await stored.post("/v1/responses/compact", body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    long = await stored.post("/v1/responses/compact", {"model": "tiny", "input": "x" * 200})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert long.json()["error"]["param"] == "input"


SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def test_a_schema_constrains_the_output(stored: Api):
    form = {"type": "json_schema", "name": "city", "schema": SCHEMA, "strict": True}
    body = (await create(stored, text={"format": form})).json()
    assert body["text"]["format"] == form
    grammar = stored.engine.requests[-1].sampling.grammar
    assert grammar is not None
    assert grammar.kind == "json_schema"


async def test_a_bad_schema_is_named_as_the_client_wrote_it(stored: Api):
    form = {"type": "json_schema", "name": "x", "schema": {"not": {}}}
    error = (await create(stored, text={"format": form})).json()["error"]
    assert (error["code"], error["param"]) == ("invalid_schema", "text.format.schema")
    assert "response_format" not in error["message"]


async def test_a_response_that_is_not_to_be_stored_touches_no_database(api: Api):
    """Without the fixture of the database any query would fail the test."""
    body = (await create(api, store=False)).json()
    assert (body["status"], body["store"]) == ("completed", False)
    assert (await events(api, store=False))[-1]["type"] == "response.completed"


async def test_the_client_s_helpers_understand_us(client: AsyncOpenAI):
    whole = await client.responses.create(model="tiny", input="hi")
    assert whole.output_text == "Hello sea"
    async with client.responses.stream(model="tiny", input="hi") as stream:
        texts = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(texts) == final.output_text == "Hello sea"
    assert (await client.responses.retrieve(whole.id)).output_text == "Hello sea"
    counted = await client.responses.input_tokens.count(model="tiny", input="hi", instructions="Be.")
    assert whole.usage is not None
    assert counted.input_tokens == whole.usage.input_tokens + 4
