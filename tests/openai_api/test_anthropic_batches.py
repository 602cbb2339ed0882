"""/v1/messages/batches by the types of Anthropic's client; the jobs run in the test, as a worker would run them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types.messages import DeletedMessageBatch, MessageBatch, MessageBatchIndividualResponse
from pydantic import TypeAdapter

from storage.models import Batch, StoredFile
from tests.openai_api.conftest import Api
from tests.openai_api.test_batches import home, run  # noqa: F401 - a fixture

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/v1/messages/batches"
RESULT = TypeAdapter(MessageBatchIndividualResponse)


def request(custom_id: str, **fields: Any) -> dict[str, Any]:
    params = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": custom_id}], **fields}
    return {"custom_id": custom_id, "params": params}


async def create(api: Api, *requests: dict[str, Any], headers: Any = None) -> MessageBatch:
    return strict(await api.post(PATH, {"requests": list(requests)}, **(headers or {})))


async def get(api: Api, batch: MessageBatch) -> MessageBatch:
    return strict(await api.client.get(f"{PATH}/{batch.id}"))


def strict(response: Any) -> MessageBatch:
    assert response.status_code == 200, response.content
    return TypeAdapter(MessageBatch).validate_json(response.content, strict=True)


async def results(api: Api, batch: MessageBatch) -> dict[str, Any]:
    assert batch.results_url is not None
    response = await api.client.get(batch.results_url.removeprefix("http://testserver"))
    assert response.status_code == 200, response.content
    lines = [RESULT.validate_json(line, strict=True) for line in response.content.splitlines()]
    return {line.custom_id: line.result for line in lines}


async def test_a_batch_is_answered(api: Api):
    made = await create(api, request("a"), request("b", temperature=9), request("c", model="nobody"))
    assert (made.processing_status, made.request_counts.processing, made.results_url) == ("in_progress", 3, None)
    early = await api.client.get(f"{PATH}/{made.id}/results")
    assert (early.status_code, early.json()["type"]) == (400, "error")
    assert (await api.client.delete(f"{PATH}/{made.id}")).status_code == 400

    await run(made)  # type: ignore[arg-type]
    done = await get(api, made)
    assert (done.processing_status, done.request_counts.succeeded, done.request_counts.errored) == ("ended", 1, 2)
    found = await results(api, done)
    assert found["a"].message.content[0].text
    assert found["a"].message.stop_reason == "max_tokens"
    assert (found["b"].type, found["b"].error.error.type) == ("errored", "invalid_request_error")
    assert found["c"].error.error.type == "not_found_error"
    assert strict(await api.post(f"{PATH}/{made.id}/cancel", {})).processing_status == "ended"

    deleted = await api.client.delete(f"{PATH}/{made.id}")
    assert TypeAdapter(DeletedMessageBatch).validate_json(deleted.content, strict=True).id == made.id
    gone = await api.client.get(f"{PATH}/{made.id}")
    assert (gone.status_code, gone.json()["error"]["type"]) == (404, "not_found_error")
    assert await StoredFile.objects.acount() == await Batch.objects.acount() == 0


async def test_a_cancelled_batch_says_what_was_not_answered(api: Api):
    made = await create(api, request("a"), request("b"))
    await api.post(f"{PATH}/{made.id}/cancel", {})
    done = await get(api, made)
    assert (done.processing_status, done.request_counts.canceled) == ("ended", 2)
    assert done.cancel_initiated_at is not None
    assert {result.type for result in (await results(api, done)).values()} == {"canceled"}


async def test_batches_are_listed_page_by_page_and_apart_from_others(api: Api):
    made = [await create(api, request("a")) for _ in range(3)]
    first = (await api.client.get(f"{PATH}?limit=2")).json()
    assert ([batch["id"] for batch in first["data"]], first["has_more"]) == ([made[2].id, made[1].id], True)
    rest = (await api.client.get(f"{PATH}?limit=2&after_id={first['last_id']}")).json()
    assert ([batch["id"] for batch in rest["data"]], rest["has_more"]) == ([made[0].id], False)
    await Batch.objects.filter(public_id=made[0].id).aupdate(endpoint="/v1/embeddings")
    assert (await api.client.get(f"{PATH}/{made[0].id}")).status_code == 404


async def test_nobody_sees_another_owner_s_batch(api: Api, django_user_model: Any):
    from asgiref.sync import sync_to_async

    owners = [await sync_to_async(django_user_model.objects.create_user)(name) for name in ("ann", "ben")]
    ann, ben = (api.keys.add(f"key {owner.pk}", owner_id=owner.pk) for owner in owners)
    made = await create(api, request("a"), headers=ann)
    for path in (made.id, f"{made.id}/results"):
        assert (await api.client.get(f"{PATH}/{path}", headers=ben)).status_code == 404
    assert (await api.client.get(PATH, headers=ben)).json()["data"] == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "requests"),
        ({"requests": []}, "requests"),
        ({"requests": [request("a"), request("a")]}, "requests[1].custom_id"),
        ({"requests": [request("no spaces")]}, "requests[0].custom_id"),
        ({"requests": [{"custom_id": "a"}]}, "requests[0].params"),
        ({"requests": [{"custom_id": "a", "params": 3}]}, "requests[0].params"),
    ],
)
async def test_bad_batches_are_named(api: Api, body: dict[str, Any], param: str):
    response = await api.post(PATH, body)
    assert (response.status_code, response.json()["type"]) == (400, "error")
    assert json.loads(response.content)["error"]["param"] == param
    assert await Batch.objects.acount() == 0
