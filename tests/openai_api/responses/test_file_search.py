"""The built-in tool file_search: calls, results, citations. The fake engine embeds a text as (tokens, 1, 2, 3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from openai import AsyncOpenAI
from openai.types.responses import Response

from core.runtime import runtime
from inference.client import Event, GenerationRequest
from inference.text.dialects.dialect import dialect_of
from jobs.models import Job
from storage.embedder import EMBEDDER, Embedder, get_embedder
from tests.database import in_thread
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import answering
from tests.openai_api.responses.test_background import order, ordered_stream, replayed, run_all, work
from tests.openai_api.responses.test_create import create, events, strict_event
from tests.openai_api.responses.test_state import new_owner

pytestmark = pytest.mark.slow

CALL = '<tool_call>\n{"name": "file_search", "arguments": {"queries": ["cats", "sea"]}}\n</tool_call>'
FUNCTION = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
SAID = "Cats sit【1】 by the sea【2】."


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path, api: Api) -> Iterator[None]:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    api.registry.text.dialect = dialect_of("<tool_call>")
    api.registry.context = 5000
    before = get_embedder()
    runtime.install(EMBEDDER, Embedder(lambda: api.engine, lambda: api.registry))
    yield
    runtime.install(EMBEDDER, before)


def in_turn(*texts: str) -> Callable[[GenerationRequest], Iterable[Event]]:
    """One text for each generation."""
    left = list(texts)
    return lambda request: answering(left.pop(0))(request)


async def new_store(api: Api, headers: Any = None, **files: bytes) -> str:
    """A store with read files; their names are those of the arguments, as .txt."""
    ids = []
    for name, content in (files or {"cats": b"The cat sat.", "sea": b"The sea is blue."}).items():
        form = {"file": SimpleUploadedFile(f"{name}.txt", content), "purpose": "assistants"}
        ids.append((await api.client.post("/v1/files", form, headers=headers)).json()["id"])
    made = (await api.post("/v1/vector_stores", {"file_ids": ids}, **(headers or {}))).json()
    await in_thread(run_all, api.running)
    store_id: str = made["id"]
    return store_id


async def ask(api: Api, *texts: str, **fields: Any) -> Response:
    store = await new_store(api)
    api.engine.script = in_turn(*texts)
    tool = {"type": "file_search", "vector_store_ids": [store], **fields.pop("search", {})}
    response = await create(api, tools=[tool, *fields.pop("more_tools", ())], **fields)
    assert response.status_code == 200, response.content
    return Response.model_validate_json(response.content, strict=True)


async def test_a_search_is_made_and_its_results_are_read(stored: Api):
    body = await ask(stored, f"Let me look.\n{CALL}", SAID)

    assert body.status == "completed"
    assert [item.type for item in body.output] == ["message", "file_search_call", "message"]
    call, answer = body.output[1:]
    assert call.type == "file_search_call"
    assert (call.status, call.queries, call.results) == ("completed", ["cats", "sea"], None)
    assert answer.type == "message"
    assert body.output_text == "Let me look.Cats sit by the sea."
    part = answer.content[0]
    assert part.type == "output_text"
    cited = [(note.filename, note.index) for note in part.annotations if note.type == "file_citation"]
    assert [index for _, index in cited] == [8, 19]
    assert {name for name, _ in cited} == {"cats.txt", "sea.txt"}


async def test_the_second_prompt_has_the_call_and_what_was_found(stored: Api):
    await ask(stored, CALL, "Done.")

    roles = [message["role"] for message in stored.registry.text.rendered]
    assert roles == ["user", "assistant", "tool"]
    call, found = stored.registry.text.rendered[1:]
    assert call["tool_calls"][0]["function"]["arguments"] == {"queries": ["cats", "sea"]}
    assert found["content"].startswith("【1】 ")
    assert "The cat sat." in found["content"]
    assert "【2】" in found["content"]


async def test_usage_and_the_log_row_are_those_of_all_rounds(stored: Api):
    body = await ask(stored, CALL, "Done.")

    lengths = [len(request.prompt_token_ids) for request in stored.engine.requests]
    assert len(lengths) == 2
    assert body.usage is not None
    assert body.usage.input_tokens == sum(lengths)
    assert body.usage.output_tokens == len(CALL.encode()) + 5
    (entry,) = [one for one in stored.log.entries if one.endpoint == "/v1/responses"]
    assert (entry.prompt_tokens, entry.completion_tokens) == (sum(lengths), len(CALL.encode()) + 5)
    assert (entry.model, entry.completion) == ("tiny", CALL + "Done.")


async def test_all_events_come_in_order_and_fit_the_client(stored: Api):
    store = await new_store(stored)
    stored.engine.script = in_turn(CALL, SAID)
    found = await events(stored, tools=[{"type": "file_search", "vector_store_ids": [store]}])
    for event in found:
        strict_event(event)
    types = [event["type"] for event in found]
    start = types.index("response.output_item.added")
    assert types[start : start + 5] == [
        "response.output_item.added",
        "response.file_search_call.in_progress",
        "response.file_search_call.searching",
        "response.file_search_call.completed",
        "response.output_item.done",
    ]
    assert types.count("response.output_text.annotation.added") == 2
    assert types[-1] == "response.completed"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    text = "".join(event["delta"] for event in found if event["type"] == "response.output_text.delta")
    assert text == "Cats sit by the sea."


async def test_the_client_s_helper_reads_the_stream(client: AsyncOpenAI, stored: Api):
    store = await new_store(stored)
    stored.engine.script = in_turn(CALL, SAID)
    tool: Any = {"type": "file_search", "vector_store_ids": [store]}
    async with client.responses.stream(model="tiny", input="hi", tools=[tool]) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "Cats sit by the sea."
    assert [item.type for item in final.output] == ["file_search_call", "message"]


async def test_results_are_shown_when_included(stored: Api):
    body = await ask(stored, CALL, "Done.", include=["file_search_call.results"], search={"max_num_results": 1})

    call = body.output[0]
    assert call.type == "file_search_call"
    assert call.results is not None
    (result,) = call.results
    assert result.filename in {"cats.txt", "sea.txt"}
    assert result.score is not None
    assert result.score <= 1


async def test_filters_and_thresholds_hold(stored: Api):
    nothing = {"type": "eq", "key": "kind", "value": "story"}
    await ask(stored, CALL, "Done.", search={"filters": nothing})
    assert stored.registry.text.rendered[-1]["content"] == "No text was found."


async def test_a_search_beside_a_function_waits_for_the_client(stored: Api):
    body = await ask(stored, f"{CALL}\n{NOW}", more_tools=[FUNCTION])

    assert [item.type for item in body.output] == ["file_search_call", "function_call"]
    assert len(stored.engine.requests) == 1
    assert body.status == "completed"


async def test_calls_are_bounded(stored: Api):
    body = await ask(stored, CALL, CALL, "Done.", max_tool_calls=2)
    assert [item.type for item in body.output] == ["file_search_call", "file_search_call", "message"]
    assert body.output_text == "Done."
    assert len(stored.engine.requests) == 3


async def test_it_can_be_demanded_once(stored: Api):
    body = await ask(stored, CALL, "Done.", tool_choice={"type": "file_search"})
    assert body.output_text == "Done."
    first, second = stored.engine.requests
    assert first.sampling.grammar is not None
    assert second.sampling.grammar is None


async def test_a_call_that_is_cut_off_is_incomplete(stored: Api):
    body = await ask(stored, CALL, max_output_tokens=len(CALL) - 20)
    assert body.status == "incomplete"
    call = body.output[0]
    assert call.type == "file_search_call"
    assert call.status == "incomplete"


async def test_an_answer_that_is_cut_off_behind_a_search_is_not_searched_for(stored: Api):
    body = await ask(stored, f"{CALL}\n{CALL}", max_output_tokens=len(CALL) + 20)
    assert body.status == "incomplete"
    assert [item.status for item in body.output if item.type == "file_search_call"] == ["incomplete"]
    assert len(stored.engine.requests) == 1


async def test_in_the_background_the_same_happens(stored: Api):
    store = await new_store(stored)
    stored.engine.script = in_turn(CALL, SAID)
    tools = [{"type": "file_search", "vector_store_ids": [store]}]
    made = await order(stored, tools=tools, include=["file_search_call.results"])
    await work(stored)
    done = (await stored.client.get(f"/v1/responses/{made['id']}")).json()
    assert Response.model_validate(done, strict=True).output_text == "Cats sit by the sea."
    assert len(done["output"][0]["results"]) == 2
    stored.engine.script = in_turn(CALL, SAID)
    response_id = await ordered_stream(stored, tools=tools)
    await work(stored)
    assert "response.file_search_call.completed" in [event["type"] for event in await replayed(stored, response_id)]


async def test_a_later_turn_knows_of_the_search(stored: Api):
    first = await ask(stored, CALL, SAID, include=["file_search_call.results"])
    stored.engine.script = in_turn("It was【1】 so.")
    response = await create(stored, previous_response_id=first.id, input="Why?", tools=[])
    assert response.json()["output"][0]["content"][0]["text"] == "It was【1】 so.", "nothing to cite without the tool"
    assert [one["role"] for one in stored.registry.text.rendered] == ["user", "assistant", "tool", "assistant", "user"]
    assert "The cat sat." in stored.registry.text.rendered[2]["content"]


async def test_items_can_be_sent_back(stored: Api):
    first = await ask(stored, CALL, SAID)
    items = [item.model_dump(mode="json") for item in first.output]
    stored.engine.script = in_turn("Hi.")
    response = await create(stored, input=[{"role": "user", "content": "A"}, *items, {"role": "user", "content": "B"}])
    assert response.status_code == 200, response.content


async def test_foreign_stores_are_not_there(stored: Api):
    ann, bob = await new_owner(stored, "ann"), await new_owner(stored, "bob")
    store = await new_store(stored, ann)
    tool = {"type": "file_search", "vector_store_ids": [store]}
    for headers, status in ((ann, 200), (bob, 404)):
        stored.engine.script = in_turn("Hi.")
        response = await stored.post("/v1/responses", {"model": "tiny", "input": "hi", "tools": [tool]}, **headers)
        assert response.status_code == status, response.content
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("vector_store_not_found", "tools[0].vector_store_ids[0]")


async def test_a_key_needs_the_scope_for_vector_stores(stored: Api):
    await new_owner(stored, "ann")
    (record,) = stored.keys.records.values()
    ann = stored.keys.add("sk-scoped", owner_id=record.owner_id, scopes=frozenset({"generate"}))
    tool = {"type": "file_search", "vector_store_ids": ["vs_1"]}
    response = await stored.post("/v1/responses", {"model": "tiny", "input": "hi", "tools": [tool]}, **ann)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "scope_required")


async def test_a_store_that_goes_meanwhile_fails_the_response(stored: Api):
    store = await new_store(stored)
    tools = [{"type": "file_search", "vector_store_ids": [store]}]
    stored.engine.script = in_turn(CALL, SAID)
    made = await order(stored, tools=tools)
    await stored.client.delete(f"/v1/vector_stores/{store}")
    await work(stored)
    failed = (await stored.client.get(f"/v1/responses/{made['id']}")).json()
    assert (failed["status"], failed["error"]["millm_code"]) == ("failed", "vector_store_not_found")
    assert await Job.objects.filter(state="succeeded", kind__contains="responses").aexists()


async def test_a_query_that_is_no_json_is_searched_as_it_stands(stored: Api):
    body = await ask(stored, '<tool_call>\n{"name": "file_search", "arguments": "cats"}\n</tool_call>', "Done.")
    call = body.output[0]
    assert call.type == "file_search_call"
    assert call.queries == ["cats"]


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({}, "tools[0].vector_store_ids"),
        ({"vector_store_ids": []}, "tools[0].vector_store_ids"),
        ({"vector_store_ids": ["vs_nobody"]}, "tools[0].vector_store_ids[0]"),
        ({"vector_store_ids": ["x\0"]}, "tools[0].vector_store_ids[0]"),
        ({"vector_store_ids": ["a"] * 9}, "tools[0].vector_store_ids"),
        ({"vector_store_ids": ["a"], "max_num_results": 51}, "tools[0].max_num_results"),
        ({"vector_store_ids": ["a"], "ranking_options": {"ranker": "best"}}, "tools[0].ranking_options.ranker"),
        (
            {"vector_store_ids": ["a"], "ranking_options": {"hybrid_search": {"text_weight": 1}}},
            "tools[0].ranking_options.hybrid_search",
        ),
        ({"vector_store_ids": ["a"], "filters": {"type": "eq"}}, "tools[0].filters.key"),
    ],
)
async def test_bad_tools_are_named(stored: Api, tool: dict[str, Any], param: str):
    response = await create(stored, tools=[{"type": "file_search", **tool}])
    assert response.status_code in {400, 404}
    assert response.json()["error"]["param"] == param, response.content


async def test_two_of_them_are_one_too_many(stored: Api):
    tool = {"type": "file_search", "vector_store_ids": ["a"]}
    for tools in ([tool, tool], [tool, {**FUNCTION, "name": "file_search"}]):
        error = (await create(stored, tools=tools)).json()["error"]
        assert error["param"] == "tools", json.dumps(error)
