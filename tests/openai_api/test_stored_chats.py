"""Stored chat completions: kept in Postgres, for the owner of the key alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from openai.types.chat import ChatCompletion
from pydantic import TypeAdapter

from openai_api.stored_chats.models import StoredChat
from tests.openai_api.conftest import Api, chunks_of
from tests.openai_api.fakes import failing

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/v1/chat/completions"


@pytest.fixture
async def owners(api: Api) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Headers: two keys of Ann's, one of Bob's."""
    ann, bob = [await sync_to_async(User.objects.create_user)(name) for name in ("ann", "bob")]
    keys = [("sk-millm-1", ann), ("sk-millm-2", ann), ("sk-millm-3", bob)]
    first, second, third = (api.keys.add(plain, owner_id=owner.pk) for plain, owner in keys)
    return first, second, third


async def stored(api: Api, headers: dict[str, str] | None = None, **fields: Any) -> str:
    response = await api.chat(headers or {}, store=True, **fields)
    assert response.status_code == 200, response.content
    chat_id: str = response.json()["id"]
    return chat_id


async def get(api: Api, path: str, headers: dict[str, str] | None = None) -> Any:
    return await api.client.get(URL + path, headers=headers or {})


async def test_a_stored_completion_reads_as_it_was_answered(api: Api):
    response = await api.chat(store=True, metadata={"topic": "sea"}, n=2)
    answered = response.json()
    read = await get(api, f"/{answered['id']}")
    TypeAdapter(ChatCompletion).validate_json(read.content, strict=True)
    assert read.json() == {**answered, "metadata": {"topic": "sea"}}


async def test_streams_are_stored_too(api: Api):
    chunks = await chunks_of(await api.chat(store=True, stream=True))
    assert chunks[-1] == "[DONE]"
    read = (await get(api, f"/{chunks[0]['id']}")).json()
    assert read["object"] == "chat.completion"
    assert read["choices"][0]["message"]["content"] == "Hello sea"
    assert read["usage"]["completion_tokens"] == 9


async def test_nothing_is_stored_unasked_or_failed(api: Api):
    await api.chat()
    await api.chat(store=False, metadata={"a": "b"})
    api.engine.script = failing("server_error", after="Hel")
    assert (await api.chat(store=True)).status_code == 500
    await chunks_of(await api.chat(store=True, stream=True))
    assert await StoredChat.objects.acount() == 0


async def test_others_completions_are_as_if_they_had_never_been(api: Api, owners: Any):
    first, second, third = owners
    strangers: list[dict[str, str]] = [third, {}]
    chat_id = await stored(api, first)
    assert (await get(api, f"/{chat_id}", second)).status_code == 200
    for headers in strangers:
        answers = [
            await get(api, f"/{chat_id}", headers),
            await get(api, f"/{chat_id}/messages", headers),
            await api.client.delete(f"{URL}/{chat_id}", headers=headers),
            await api.post(f"{URL}/{chat_id}", {"metadata": {}}, **headers),
        ]
        absent = await get(api, "/chatcmpl-absent", headers)
        for answer in answers:
            assert answer.status_code == 404
            assert answer.json() == json.loads(absent.content.replace(b"chatcmpl-absent", chat_id.encode()))
        assert (await get(api, "", headers)).json()["data"] == []
        assert (await get(api, f"?after={chat_id}", headers)).status_code == 400
    assert await StoredChat.objects.acount() == 1


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_have_everything_once(api: Api, order: str):
    ids = [await stored(api) for _ in range(5)]
    wanted = ids if order == "asc" else ids[::-1]
    found: list[str] = []
    while True:
        after = f"&after={found[-1]}" if found else ""
        page = (await get(api, f"?limit=2&order={order}{after}")).json()
        assert page["object"] == "list"
        assert [page["first_id"], page["last_id"]] == [page["data"][0]["id"], page["data"][-1]["id"]]
        found += [chat["id"] for chat in page["data"]]
        if not page["has_more"]:
            break
    assert found == wanted


async def test_empty_values_count_as_absent_as_in_other_lists(api: Api):
    chat_id = await stored(api)
    page = (await get(api, "?limit=&after=&model=")).json()
    assert [chat["id"] for chat in page["data"]] == [chat_id]


async def test_a_page_can_end_before_a_completion(api: Api):
    ids = [await stored(api) for _ in range(3)]
    page = (await get(api, f"?before={ids[2]}&limit=1")).json()
    assert [chat["id"] for chat in page["data"]] == [ids[1]]
    assert page["has_more"] is True


async def test_lists_are_filtered(api: Api):
    sea = await stored(api, metadata={"topic": "sea", "n": "1"})
    await stored(api, metadata={"topic": "sky"})
    other = await stored(api, model="org/steered")
    assert [chat["id"] for chat in (await get(api, "?metadata[topic]=sea&metadata[n]=1")).json()["data"]] == [sea]
    assert (await get(api, "?metadata[topic]=sea&metadata[n]=2")).json()["data"] == []
    assert [chat["id"] for chat in (await get(api, "?model=org/steered")).json()["data"]] == [other]


async def test_metadata_can_be_changed(api: Api):
    chat_id = await stored(api, metadata={"a": "b"})
    changed = await api.post(f"{URL}/{chat_id}", {"metadata": {"c": "d"}})
    assert changed.json()["metadata"] == {"c": "d"}
    assert (await get(api, f"/{chat_id}")).json()["metadata"] == {"c": "d"}


async def test_deleted_ones_are_gone(api: Api):
    chat_id = await stored(api)
    deleted = await api.client.delete(f"{URL}/{chat_id}")
    assert deleted.json() == {"id": chat_id, "object": "chat.completion.deleted", "deleted": True}
    assert (await get(api, f"/{chat_id}")).status_code == 404
    assert (await api.client.delete(f"{URL}/{chat_id}")).status_code == 404


async def test_messages_are_those_that_were_sent(api: Api):
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s\0\n"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
    ]
    chat_id = await stored(api, messages=messages)
    page = (await get(api, f"/{chat_id}/messages")).json()
    assert [(one["role"], one["content"]) for one in page["data"]] == [("system", "s\ufffd\n"), ("user", "a\nb")]
    assert page["data"][1]["content_parts"] == messages[1]["content"]
    assert page["data"][1]["name"] == "ann"
    rest = (await get(api, f"/{chat_id}/messages?after={page['first_id']}&limit=1")).json()
    assert [one["id"] for one in rest["data"]] == [page["last_id"]]
    assert rest["has_more"] is False


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
        ({"metadata": "x"}, "metadata"),
        ({"store": "yes"}, "store"),
    ],
)
async def test_bad_fields(api: Api, fields: dict[str, Any], param: str):
    response = await api.chat(**fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=absent", "model=%00"])
async def test_bad_queries(api: Api, query: str):
    response = await get(api, f"?{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.split("=")[0]


@pytest.mark.parametrize("chat_id", ["x" * 10_000, "%00", "..%2Fx", "'--", "é"])
async def test_bad_ids_are_not_found(api: Api, chat_id: str):
    response = await get(api, f"/{chat_id}")
    assert response.status_code == 404
    assert response.json()["error"]["type"] == "invalid_request_error"
