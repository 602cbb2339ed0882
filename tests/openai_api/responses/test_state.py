"""What is kept: responses continued, listed and deleted, conversations, and whose they are."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import openai
import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.db import connection
from django.utils import timezone
from openai import AsyncOpenAI
from openai.types.conversations import ConversationItem
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from openai_api.responses.models import Conversation, StoredItem, StoredResponse
from openai_api.responses.store import prune_responses
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import answering
from tests.openai_api.responses.test_create import create, events

RESPONSE_ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)
CONVERSATION_ITEM: TypeAdapter[Any] = TypeAdapter(ConversationItem)

TOOL_TURN: list[Any] = [
    {"role": "user", "content": "Weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Ask."}]},
    {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city":"Rome"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is sunny."}]},
    {"role": "user", "content": [{"type": "input_text", "text": "And"}, {"type": "input_text", "text": "now?"}]},
]


def said(api: Api) -> list[tuple[str, str]]:
    """What the chat template got last."""
    return [(message["role"], message["content"]) for message in api.registry.text.rendered]


async def new_owner(api: Api, name: str) -> dict[str, str]:
    user = await sync_to_async(get_user_model().objects.create_user)(name)
    return api.keys.add(f"sk-{name}", owner_id=user.pk)


async def test_a_response_is_continued_with_all_that_came_before(stored: Api):
    stored.engine.script = answering("One.")
    first = (await create(stored, input="A", instructions="Be kind.")).json()
    stored.engine.script = answering("Two.")
    second = (await create(stored, input="B", previous_response_id=first["id"])).json()
    await create(stored, input="C", previous_response_id=second["id"])
    assert said(stored) == [("user", "A"), ("assistant", "One."), ("user", "B"), ("assistant", "Two."), ("user", "C")]


async def test_items_of_all_kinds_become_messages(stored: Api):
    await create(stored, input=TOOL_TURN)
    rendered = stored.registry.text.rendered
    assert [message["role"] for message in rendered] == ["user", "assistant", "tool", "assistant", "user"]
    call = rendered[1]["tool_calls"][0]
    assert (call["id"], call["function"]) == ("call_1", {"name": "weather", "arguments": {"city": "Rome"}})
    assert (rendered[2]["tool_call_id"], rendered[2]["content"]) == ("call_1", "Sunny.")
    assert rendered[-1]["content"] == "And\nnow?"


async def test_instructions_and_first_system_messages_are_one(stored: Api):
    items = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": "hi"}]
    await create(stored, input=items, instructions="Be kind.")
    assert said(stored) == [("system", "Be kind.\n\nBe short."), ("user", "hi")]


async def test_input_items_are_whole_and_paged(client: AsyncOpenAI, stored: Api):
    made = await client.responses.create(model="tiny", input=TOOL_TURN)
    response = await stored.client.get(f"/v1/responses/{made.id}/input_items?order=asc")
    items = response.json()["data"]
    for item in items:
        RESPONSE_ITEM.validate_json(json.dumps(item), strict=True)
    assert [item["type"] for item in items] == [item.get("type", "message") for item in TOOL_TURN]
    page = await client.responses.input_items.list(made.id, limit=4)
    assert [item.id async for item in page] == [item["id"] for item in reversed(items)]
    assert page.has_more
    continued = await client.responses.create(model="tiny", input="more", previous_response_id=made.id)
    listed = await client.responses.input_items.list(continued.id, order="asc", limit=100)
    assert [item.type for item in listed.data] == [item["type"] for item in items] + ["message", "message"]
    before = (await stored.client.get(f"/v1/responses/{made.id}/input_items?before={items[0]['id']}")).json()
    assert [item["id"] for item in before["data"]] == [item["id"] for item in reversed(items[1:])]


async def test_items_can_be_referred_to(stored: Api):
    first = (await create(stored, input="A")).json()
    answer = first["output"][0]["id"]
    for reference in ({"type": "item_reference", "id": answer}, {"id": answer}):
        await create(stored, input=[{"role": "user", "content": "A"}, reference, {"role": "user", "content": "B"}])
        assert said(stored)[1] == ("assistant", "Hello sea")
    missing = await create(stored, input=[{"type": "item_reference", "id": "msg_nobody"}])
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "input[0].id")


async def test_a_deleted_response_is_gone_and_cannot_be_continued(client: AsyncOpenAI, stored: Api):
    first = await client.responses.create(model="tiny", input="A")
    second = await client.responses.create(model="tiny", input="B", previous_response_id=first.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError) as gone:
        await client.responses.retrieve(first.id)
    assert gone.value.code == "response_not_found"
    with pytest.raises(openai.NotFoundError) as broken:
        await client.responses.create(model="tiny", input="C", previous_response_id=second.id)
    assert (broken.value.code, broken.value.param) == ("previous_response_not_found", "previous_response_id")
    assert not await StoredItem.objects.filter(response=first.id).aexists()


async def test_unstored_responses_are_not_there(client: AsyncOpenAI):
    made = await client.responses.create(model="tiny", input="A", store=False)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)


async def test_nobody_sees_another_owner_s_objects(stored: Api):
    """The same body as for what never was, whatever is tried."""
    ann, bob = await new_owner(stored, "ann"), await new_owner(stored, "bob")
    made = (await stored.post("/v1/responses", {"model": "tiny", "input": "A"}, **ann)).json()
    talk = (await stored.post("/v1/conversations", {"items": [{"role": "user", "content": "A"}]}, **ann)).json()
    item = made["output"][0]["id"]
    paths = [f"responses/{made['id']}", f"responses/{made['id']}/input_items", f"conversations/{talk['id']}"]
    paths.append(f"conversations/{talk['id']}/items")
    for path in paths:
        assert (await stored.client.get(f"/v1/{path}", headers=ann)).status_code == 200
        for headers in (bob, {}):
            foreign = await stored.client.get(f"/v1/{path}", headers=headers)
            assert foreign.status_code == 404
            absent = path.replace(made["id"], "nobody").replace(talk["id"], "nobody")
            never = await stored.client.get(f"/v1/{absent}", headers=headers)
            assert (
                foreign.content.replace(made["id"].encode(), b"nobody")
                == never.content.replace(talk["id"].encode(), b"nobody")
                or foreign.content.replace(talk["id"].encode(), b"nobody") == never.content
            )
    for fields in (
        {"previous_response_id": made["id"]},
        {"conversation": talk["id"]},
        {"input": [{"type": "item_reference", "id": item}]},
    ):
        refused = await stored.post("/v1/responses", {"model": "tiny", "input": "B", **fields}, **bob)
        assert refused.status_code == 404
    assert (await stored.client.delete(f"/v1/responses/{made['id']}", headers=bob)).status_code == 404
    assert (await stored.client.delete(f"/v1/conversations/{talk['id']}", headers=bob)).status_code == 404
    assert (await stored.client.get(f"/v1/responses/{made['id']}", headers=ann)).status_code == 200


async def test_a_conversation_grows_with_its_responses(client: AsyncOpenAI, stored: Api):
    talk = await client.conversations.create(
        metadata={"topic": "sea"}, items=[{"type": "message", "role": "user", "content": "A"}]
    )
    made = await client.responses.create(model="tiny", input="B", conversation=talk.id)
    assert made.conversation is not None
    assert made.conversation.id == talk.id
    await client.responses.create(model="tiny", input="C", conversation={"id": talk.id}, store=False)
    assert [text for _, text in said(stored)] == ["A", "B", "Hello sea", "C"]
    listed = await client.conversations.items.list(talk.id, order="asc")
    assert [item.to_dict()["role"] for item in listed.data] == ["user", "user", "assistant", "user", "assistant"]
    raw = (await stored.client.get(f"/v1/conversations/{talk.id}/items")).json()
    for item in raw["data"]:
        CONVERSATION_ITEM.validate_json(json.dumps(item), strict=True)


async def test_conversations_are_changed_and_deleted(client: AsyncOpenAI, stored: Api):
    talk = await client.conversations.create()
    assert (await client.conversations.retrieve(talk.id)).metadata == {}
    assert (await client.conversations.update(talk.id, metadata={"a": "b"})).metadata == {"a": "b"}
    empty = await client.conversations.items.list(talk.id)
    assert (empty.data, empty.has_more) == ([], False)
    added = await client.conversations.items.create(talk.id, items=TOOL_TURN)
    assert len(added.data) == len(TOOL_TURN)
    one = await client.conversations.items.retrieve(str(added.data[2].id), conversation_id=talk.id)
    assert one.type == "function_call"
    assert (await client.conversations.items.delete(one.id, conversation_id=talk.id)).id == talk.id
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.retrieve(str(one.id), conversation_id=talk.id)
    with pytest.raises(openai.NotFoundError):
        await client.conversations.items.delete(one.id, conversation_id=talk.id)
    assert (await client.conversations.delete(talk.id)).deleted
    assert not await Conversation.objects.aexists()
    assert not await StoredItem.objects.aexists()


async def test_a_failed_response_joins_no_conversation(stored: Api):
    from tests.openai_api.fakes import failing

    talk = (await stored.post("/v1/conversations", {})).json()
    stored.engine.script = failing("server_error", after="x")
    assert (await events(stored, conversation=talk["id"]))[-1]["type"] == "response.failed"
    listed = (await stored.client.get(f"/v1/conversations/{talk['id']}/items")).json()
    assert listed == {"object": "list", "data": [], "first_id": "", "last_id": "", "has_more": False}


async def test_nul_and_odd_text_can_be_stored(stored: Api):
    made = (await create(stored, input="a\0b", metadata={"k": "\0"})).json()
    kept = (await stored.client.get(f"/v1/responses/{made['id']}/input_items")).json()
    assert kept["data"][0]["content"][0]["text"] == "a\N{REPLACEMENT CHARACTER}b"


async def test_truncation_leaves_the_oldest_items_out(stored: Api):
    turns = [{"role": "user", "content": f"{number} " + "x" * 17} for number in range(9)]
    too_long = await create(stored, input=turns, max_output_tokens=10)
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    cut = await create(stored, input=turns, max_output_tokens=10, truncation="auto")
    assert cut.status_code == 200
    assert [text[:1] for _, text in said(stored)] == ["5", "6", "7", "8"]
    hopeless = await create(stored, input="x" * 300, truncation="auto")
    assert (hopeless.status_code, hopeless.json()["error"]["param"]) == (400, "input")


async def test_old_responses_are_pruned_but_not_what_newer_ones_continue(stored: Api, settings: Any):
    settings.MILLM_RESPONSE_RETENTION_DAYS = 7
    old, base = (await create(stored)).json(), (await create(stored)).json()
    await StoredResponse.objects.aupdate(used_at=timezone.now() - timedelta(days=8))
    newer = (await create(stored, previous_response_id=base["id"])).json()
    assert await sync_to_async(prune_responses)() == 1
    kept = {row.pk async for row in StoredResponse.objects.all()}
    assert kept == {base["id"], newer["id"]}
    assert old["id"] not in kept
    settings.MILLM_RESPONSE_RETENTION_DAYS = 0
    await StoredResponse.objects.aupdate(used_at=timezone.now() - timedelta(days=3650))
    assert await sync_to_async(prune_responses)() == 0


async def test_a_response_outlives_a_database_that_does_not_answer(stored: Api, settings: Any):
    """It is sent, and says that it is not stored."""
    settings.MILLM_DATABASE_TIMEOUT = 0.3
    params = connection.get_connection_params()
    with psycopg.connect(**{name: params[name] for name in ("dbname", "user", "host")}) as other:
        other.execute("LOCK TABLE responses_storedresponse IN ACCESS EXCLUSIVE MODE")
        body = (await create(stored)).json()
        assert (body["status"], body["store"]) == ("completed", False)
        refused = await create(stored, previous_response_id="resp_1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_unavailable")
        other.rollback()
