"""/v1/vector_stores over the fake engine, whose vectors are (tokens of the text, 1, 2, 3); jobs run in the test."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone
from openai.types import VectorStore, VectorStoreDeleted, VectorStoreSearchResponse
from openai.types.vector_stores import (
    FileContentResponse,
    VectorStoreFile,
    VectorStoreFileBatch,
    VectorStoreFileDeleted,
)

from core.runtime import runtime
from inference.client import Event
from jobs.execution import RunningJobs, run_job
from jobs.models import Job
from jobs.services import cancel_job
from storage.embedder import EMBEDDER, Embedder, get_embedder
from storage.models import Chunk, StoredFile
from storage.models import VectorStore as StoreRow
from storage.models import VectorStoreFile as StoreFileRow
from storage.sweep import sweep_storage
from tests.database import in_thread
from tests.openai_api.conftest import Api
from tests.openai_api.fakes import FakeRegistry, embedding, failing, record

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
STORES = "/v1/vector_stores"


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0
    return tmp_path


@pytest.fixture(autouse=True)
def embedder(api: Api) -> Iterator[None]:
    before = get_embedder()
    runtime.install(EMBEDDER, Embedder(lambda: api.engine, lambda: api.registry))
    yield
    runtime.install(EMBEDDER, before)


async def send(api: Api, content: bytes = b"cat", name: str = "a.txt", headers: Any = None) -> str:
    form = {"file": SimpleUploadedFile(name, content), "purpose": "assistants"}
    file_id: str = (await api.client.post("/v1/files", form, headers=headers)).json()["id"]
    return file_id


async def create(api: Api, headers: Any = None, **fields: Any) -> VectorStore:
    return store_of(await api.post(STORES, fields, **(headers or {})))


def store_of(response: Any) -> VectorStore:
    assert response.status_code == 200, response.content
    return VectorStore.model_validate(response.json(), strict=True)


def file_of(response: Any) -> VectorStoreFile:
    assert response.status_code == 200, response.content
    return VectorStoreFile.model_validate(response.json(), strict=True)


def batch_of(response: Any) -> VectorStoreFileBatch:
    assert response.status_code == 200, response.content
    return VectorStoreFileBatch.model_validate(response.json(), strict=True)


async def attach(api: Api, store: VectorStore, file_id: str, **fields: Any) -> VectorStoreFile:
    return file_of(await api.post(f"{STORES}/{store.id}/files", {"file_id": file_id, **fields}))


async def run_jobs(running: RunningJobs | None = None) -> None:
    async for job in Job.objects.filter(state=Job.State.QUEUED).order_by("created_at"):
        await in_thread(run_job, job.pk, running)


async def search(api: Api, store: VectorStore, query: Any = "xxx", **fields: Any) -> list[VectorStoreSearchResponse]:
    response = await api.post(f"{STORES}/{store.id}/search", {"query": query, **fields})
    assert response.status_code == 200, response.content
    body = response.json()
    assert (body["object"], body["has_more"], body["next_page"]) == ("vector_store.search_results.page", False, None)
    return [VectorStoreSearchResponse.model_validate(each, strict=True) for each in body["data"]]


def check_error(response: Any, status: int, code: str, param: str | None) -> None:
    assert response.status_code == status, response.content[:500]
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error


async def test_files_are_read_and_found(api: Api):
    store = await create(api, name="notes", metadata={"a": "b"}, description="mine")
    assert (store.name, store.status, store.metadata) == ("notes", "completed", {"a": "b"})
    ids = [await send(api, b"x" * size, f"{size}.txt") for size in (3, 30, 90)]
    for number, file_id in enumerate(ids):
        row = await attach(api, store, file_id, attributes={"n": number, "s": "é", "t": True})
        assert (row.status, row.vector_store_id, row.last_error) == ("in_progress", store.id, None)
    during = store_of(await api.client.get(f"{STORES}/{store.id}"))
    assert (during.status, during.file_counts.in_progress) == ("in_progress", 3)
    assert await search(api, store) == []
    await run_jobs()
    done = store_of(await api.client.get(f"{STORES}/{store.id}"))
    assert (done.status, done.file_counts.completed, done.usage_bytes) == ("completed", 3, 123)
    hits = await search(api, store, "x" * 88)
    assert [hit.file_id for hit in hits] == ids[::-1]
    assert hits[0].score > hits[1].score > hits[2].score > 0
    assert (hits[0].filename, hits[0].content[0].text, hits[0].attributes) == (
        "90.txt",
        "x" * 90,
        {"n": 2, "s": "é", "t": True},
    )
    logged = api.log.entries[-1]
    assert (logged.prompt, logged.model, logged.prompt_tokens) == ("x" * 88, "vectors", 88)
    assert "query" not in logged.parameters
    content = (await api.client.get(f"{STORES}/{store.id}/files/{ids[0]}/content")).json()
    assert [FileContentResponse.model_validate(each, strict=True).text for each in content["data"]] == ["xxx"]


async def test_long_files_are_cut_to_what_the_model_takes(api: Api):
    store = await create(api)
    text = " ".join(f"word{n}" for n in range(200))
    file_id = await send(api, text.encode())
    strategy = {"type": "static", "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 0}}
    row = await attach(api, store, file_id, chunking_strategy=strategy)
    assert row.chunking_strategy is not None
    assert row.chunking_strategy.to_dict() == strategy
    await run_jobs()
    content = (await api.client.get(f"{STORES}/{store.id}/files/{file_id}/content")).json()["data"]
    assert " ".join(each["text"] for each in content) == text
    assert max(len(each["text"]) for each in content) <= 100


async def test_filters_ranking_and_several_queries(api: Api):
    store = await create(api)
    ids = [await send(api, b"x" * size) for size in (1, 10, 100)]
    for number, file_id in enumerate(ids):
        await attach(api, store, file_id, attributes={"n": number})
    await run_jobs()

    async def found(query: Any, **fields: Any) -> list[str]:
        return [hit.file_id for hit in await search(api, store, query, **fields)]

    assert await found("x", max_num_results=1) == ids[:1]
    assert await found("x", filters={"type": "gte", "key": "n", "value": 1}) == ids[1:]
    either = [{"type": "in", "key": "n", "value": [0, 7]}, {"type": "eq", "key": "n", "value": 2.0}]
    assert sorted(await found("x", filters={"type": "or", "filters": either})) == sorted([ids[0], ids[2]])
    assert await found("x", filters={"type": "and", "filters": either}) == []
    assert await found("x" * 99, ranking_options={"score_threshold": 0.9, "ranker": "auto"}) == [ids[2], ids[1]]
    hits = await search(api, store, ["x", "x" * 100], max_num_results=2)
    assert {hit.file_id for hit in hits} == {ids[0], ids[2]}
    assert [hit.score for hit in hits] == pytest.approx([1.0, 1.0])
    await api.post(f"{STORES}/{store.id}/files/{ids[0]}", {"attributes": {"n": 9}})
    assert await found("x", filters={"type": "gt", "key": "n", "value": 2}) == [ids[0]]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": []}, "query"),
        ({"query": ["x"] * 17}, "query"),
        ({"max_num_results": 0}, "max_num_results"),
        ({"max_num_results": 51}, "max_num_results"),
        ({"ranking_options": {"ranker": "default-2024-11-15"}}, "ranking_options.ranker"),
        ({"ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold"),
        ({"filters": {"type": "like", "key": "a", "value": "b"}}, "filters.type"),
        ({"filters": {"type": "eq", "key": "a\0", "value": "b"}}, "filters.key"),
        ({"filters": {"type": "and", "filters": []}}, "filters.filters"),
        ({"filters": {"type": "gt", "key": "a", "value": 10**400}}, "filters.value"),
        ({"rewrite_query": "yes"}, "rewrite_query"),
    ],
)
async def test_searches_that_are_refused(api: Api, fields: dict[str, Any], param: str):
    store = await create(api)
    response = await api.post(f"{STORES}/{store.id}/search", {"query": "x", **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


async def test_rewriting_the_query_is_ignored_by_name(api: Api):
    store = await create(api)
    response = await api.post(f"{STORES}/{store.id}/search", {"query": "x", "rewrite_query": True})
    assert response.status_code == 200, response.content
    assert response.headers["x-millm-ignored-fields"] == "rewrite_query"


async def test_filters_are_bounded(api: Api):
    store = await create(api)
    deep: dict[str, Any] = {"type": "eq", "key": "a", "value": 1}
    for _ in range(10):
        deep = {"type": "and", "filters": [deep]}
    wide = {"type": "or", "filters": [{"type": "eq", "key": "a", "value": n} for n in range(100)]}
    for filters in (deep, wide):
        response = await api.post(f"{STORES}/{store.id}/search", {"query": "x", "filters": filters})
        check_error(response, 400, "invalid_value", "filters")


async def test_a_query_longer_than_the_model_takes(api: Api):
    store = await create(api)
    response = await api.post(f"{STORES}/{store.id}/search", {"query": "x" * 101})
    check_error(response, 400, "context_length_exceeded", "query")


async def test_files_that_cannot_be_read_fail_alone_and_say_why(api: Api):
    store = await create(api)
    good, bad = await send(api, b"cat", "a.txt"), await send(api, b"{", "a.json")
    batch = batch_of(await api.post(f"{STORES}/{store.id}/file_batches", {"file_ids": [bad, good, good]}))
    assert (batch.status, batch.file_counts.total) == ("in_progress", 2)
    await run_jobs()
    batch = batch_of(await api.client.get(f"{STORES}/{store.id}/file_batches/{batch.id}"))
    assert batch.status == "completed"
    assert (batch.file_counts.failed, batch.file_counts.completed) == (1, 1)
    row = file_of(await api.client.get(f"{STORES}/{store.id}/files/{bad}"))
    assert row.last_error is not None
    assert (row.status, row.last_error.code) == ("failed", "invalid_file")
    path = f"{STORES}/{store.id}/file_batches/{batch.id}/files"
    listed = (await api.client.get(f"{path}?filter=completed")).json()
    assert [each["id"] for each in listed["data"]] == [good]
    listed = (await api.client.get(f"{STORES}/{store.id}/files?order=asc&limit=1")).json()
    assert ([each["id"] for each in listed["data"]], listed["has_more"]) == ([bad], True)
    listed = (await api.client.get(f"{STORES}/{store.id}/files?order=asc&after={bad}")).json()
    assert [each["id"] for each in listed["data"]] == [good]
    picture = await send(api, b"\x89PNG", "a.png")
    response = await api.post(f"{STORES}/{store.id}/files", {"file_id": picture})
    check_error(response, 400, "unsupported_file_type", "file_id")


async def test_files_of_a_batch_have_attributes_of_their_own(api: Api):
    store = await create(api)
    one, two = await send(api, b"x"), await send(api, b"xx")
    files = [{"file_id": one, "attributes": {"n": 1}}, {"file_id": two}]
    batch_of(await api.post(f"{STORES}/{store.id}/file_batches", {"files": files}))
    await run_jobs()
    assert {hit.file_id: hit.attributes for hit in await search(api, store)} == {one: {"n": 1}, two: {}}
    for body in ({}, {"file_ids": [one], "files": files}, {"files": files, "attributes": {}}):
        response = await api.post(f"{STORES}/{store.id}/file_batches", body)
        assert response.status_code == 400, body


async def test_a_run_goes_on_behind_the_chunks_that_are_there(api: Api):
    store = await create(api)
    file_id = await send(api, " ".join(f"{n:09d}" for n in range(500)).encode())
    running = RunningJobs()

    def stop_at_the_second_group(request: Any) -> Iterable[Event]:
        if len(api.engine.embedded) > 16:
            running.stopping.set()
        return embedding(request)

    api.engine.embedding_script = stop_at_the_second_group
    strategy = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    await attach(api, store, file_id, chunking_strategy=strategy)
    await run_jobs(running)
    before = await Chunk.objects.acount()
    assert 16 <= before <= 32
    assert file_of(await api.client.get(f"{STORES}/{store.id}/files/{file_id}")).status == "in_progress"
    assert await search(api, store) == []
    api.engine.embedding_script, already = embedding, len(api.engine.embedded)
    await run_jobs()
    assert len(api.engine.embedded) - already == await Chunk.objects.acount() - before
    content = (await api.client.get(f"{STORES}/{store.id}/files/{file_id}/content")).json()["data"]
    assert " ".join(each["text"] for each in content) == " ".join(f"{n:09d}" for n in range(500))


async def test_an_endless_word_is_the_file_s_fault(api: Api):
    store = await create(api)
    ids = [await send(api, b"x" * 2**23, "a.md"), await send(api)]
    batch_of(await api.post(f"{STORES}/{store.id}/file_batches", {"file_ids": ids}))
    await run_jobs()
    rows = [file_of(await api.client.get(f"{STORES}/{store.id}/files/{file_id}")) for file_id in ids]
    assert [row.status for row in rows] == ["failed", "completed"]
    assert rows[0].last_error is not None
    assert rows[0].last_error.code == "invalid_file"
    assert "8388608 characters" in rows[0].last_error.message


def running_parsers() -> list[psutil.Process]:
    """Return the parsers' processes among the children of this one, which may have started the database too."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it may end meanwhile
            found += [child] if "storage.extraction" in child.cmdline() else []
    return found


async def test_a_server_that_stops_ends_the_reading_of_a_file_at_once(api: Api):
    """The job goes back to the queue, and the parser's process ends with it."""
    store = await create(api)
    await attach(api, store, await send(api, b"# a\n" * 1_500_000, "a.md"))
    running = RunningJobs()
    work = asyncio.create_task(run_jobs(running))
    while not (parsers := running_parsers()):
        assert not work.done()
        await asyncio.sleep(0.05)
    running.stopping.set()
    await work
    assert not any(parser.is_running() for parser in parsers)
    assert (await Job.objects.aget()).state == Job.State.QUEUED
    assert (await StoreFileRow.objects.aget()).status == "in_progress"


async def test_a_run_that_was_replaced_adds_nothing(api: Api):
    """It hung between two groups, another run read the file, and then it goes on."""
    store = await create(api)
    file_id = await send(api, " ".join(f"{n:09d}" for n in range(400)).encode())
    strategy = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    await attach(api, store, file_id, chunking_strategy=strategy)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang_in_the_second_group(request: Any) -> Iterable[Event]:
        if len(api.engine.embedded) > 16 and not hangs.is_set():
            hangs.set()
            goes_on.wait(60)
        return embedding(request)

    api.engine.embedding_script = hang_in_the_second_group
    hung = asyncio.create_task(run_jobs())
    assert await asyncio.to_thread(hangs.wait, 60)
    await Job.objects.aupdate(state=Job.State.QUEUED, claim=None, heartbeat_at=None)
    await run_jobs()
    chunks = [chunk async for chunk in Chunk.objects.order_by("pk").values_list("pk", "position")]
    goes_on.set()
    await hung
    assert [chunk async for chunk in Chunk.objects.order_by("pk").values_list("pk", "position")] == chunks
    assert [position for _, position in chunks] == list(range(len(chunks)))
    assert file_of(await api.client.get(f"{STORES}/{store.id}/files/{file_id}")).status == "completed"
    assert (await Job.objects.aget()).state == Job.State.SUCCEEDED


async def test_pieces_that_an_older_version_cut_otherwise_are_made_again(api: Api):
    store = await create(api)
    await attach(api, store, await send(api, b"one two"))
    row = await StoreFileRow.objects.aget()
    old = {"store_id": row.store_id, "store_file": row, "dimensions": 4, "embedding": [1, 1, 1, 1]}
    await Chunk.objects.acreate(position=0, text="one", **old)
    await run_jobs()
    assert [chunk.text async for chunk in Chunk.objects.all()] == ["one two"]


async def test_an_engine_that_fails_fails_the_file(api: Api):
    store = await create(api)
    api.engine.embedding_script = failing("server_error")  # type: ignore[assignment]
    file_id = await send(api)
    await attach(api, store, file_id)
    await run_jobs()
    row = file_of(await api.client.get(f"{STORES}/{store.id}/files/{file_id}"))
    assert row.last_error is not None
    assert (row.status, row.last_error.code) == ("failed", "server_error")
    api.engine.embedding_script = embedding
    assert (await attach(api, store, file_id)).status == "in_progress"
    await run_jobs()
    assert file_of(await api.client.get(f"{STORES}/{store.id}/files/{file_id}")).status == "completed"


async def test_cancelled_batches_and_jobs(api: Api):
    store = await create(api)
    batch = batch_of(await api.post(f"{STORES}/{store.id}/file_batches", {"file_ids": [await send(api)]}))
    cancelled = batch_of(await api.client.post(f"{STORES}/{store.id}/file_batches/{batch.id}/cancel"))
    assert (cancelled.status, cancelled.file_counts.cancelled) == ("cancelled", 1)
    file_id = await send(api)
    await attach(api, store, file_id)
    await in_thread(lambda: cancel_job(job=Job.objects.filter(state="queued").get()))
    assert file_of(await api.client.get(f"{STORES}/{store.id}/files/{file_id}")).status == "cancelled"
    await run_jobs()
    assert api.engine.embedded == []


async def test_detached_deleted_and_attached_again(api: Api):
    store = await create(api)
    one, two = await send(api, b"x"), await send(api, b"xx")
    for file_id in (one, two):
        await attach(api, store, file_id)
    await run_jobs()
    gone = (await api.client.delete(f"{STORES}/{store.id}/files/{one}")).json()
    assert VectorStoreFileDeleted.model_validate(gone, strict=True).deleted
    assert await StoredFile.objects.acount() == 2
    assert [hit.file_id for hit in await search(api, store)] == [two]
    await api.client.delete(f"/v1/files/{two}")
    assert await search(api, store) == []
    await attach(api, store, one, attributes={"n": 1})
    await run_jobs()
    await attach(api, store, one, attributes={"n": 2})
    await run_jobs()
    assert [hit.attributes for hit in await search(api, store)] == [{"n": 2}]
    deleted = (await api.client.delete(f"{STORES}/{store.id}")).json()
    assert VectorStoreDeleted.model_validate(deleted, strict=True).deleted
    assert await Chunk.objects.acount() == 0
    assert await StoredFile.objects.acount() == 1


async def test_a_store_deleted_while_it_is_read_ends_the_job_well(api: Api):
    store = await create(api)
    await attach(api, store, await send(api))
    await StoreRow.objects.all().adelete()
    await run_jobs()
    assert (await Job.objects.aget()).state == Job.State.SUCCEEDED


async def test_changes_and_expiry(api: Api):
    fields = {"file_ids": [await send(api)], "expires_after": {"anchor": "last_active_at", "days": 1}}
    store = await create(api, name="a", **fields)
    await run_jobs()
    assert store.expires_at == (store.last_active_at or 0) + 86_400
    changed = store_of(await api.post(f"{STORES}/{store.id}", {"name": "b", "metadata": {"k": "v"}}))
    assert (changed.name, changed.metadata, changed.expires_at) == ("b", {"k": "v"}, store.expires_at)
    await StoreRow.objects.aupdate(last_active_at=timezone.now() - timedelta(hours=23))
    await search(api, store)
    used = store_of(await api.client.get(f"{STORES}/{store.id}"))
    assert (used.last_active_at or 0) >= store.created_at
    await StoreRow.objects.aupdate(last_active_at=timezone.now() - timedelta(hours=25))
    assert store_of(await api.client.get(f"{STORES}/{store.id}")).status == "expired"
    response = await api.post(f"{STORES}/{store.id}/search", {"query": "x"})
    check_error(response, 400, "vector_store_expired", "vector_store_id")
    response = await api.post(f"{STORES}/{store.id}/files", {"file_id": await send(api)})
    check_error(response, 400, "vector_store_expired", "vector_store_id")
    await in_thread(sweep_storage)
    assert await Chunk.objects.acount() == 0


async def test_another_owner_s_store_is_as_absent(api: Api, django_user_model: Any):
    owner = await django_user_model.objects.acreate(username="mine")
    mine = api.keys.add("a", owner_id=owner.pk)
    file_id = await send(api, headers=mine)
    store = await create(api, mine, file_ids=[file_id])
    await run_jobs()
    paths = ["", "/files", f"/files/{file_id}", f"/files/{file_id}/content"]
    for path in paths:
        assert (await api.client.get(f"{STORES}/{store.id}{path}", headers=mine)).status_code == 200
        check_error(
            await api.client.get(f"{STORES}/{store.id}{path}"), 404, "vector_store_not_found", "vector_store_id"
        )
    for path, body in (("", {}), ("/search", {"query": "x"}), ("/files", {"file_id": file_id})):
        response = await api.post(f"{STORES}/{store.id}{path}", body)
        check_error(response, 404, "vector_store_not_found", "vector_store_id")
    ours = await create(api)
    response = await api.post(f"{STORES}/{ours.id}/files", {"file_id": file_id})
    check_error(response, 404, "file_not_found", "file_id")
    assert [each["id"] for each in (await api.client.get(STORES)).json()["data"]] == [ours.id]


async def test_keys_search_with_models_that_they_may_use(api: Api, django_user_model: Any):
    owner = await django_user_model.objects.acreate(username="mine")
    mine = api.keys.add("a", owner_id=owner.pk, allowed_models=frozenset({"tiny"}))
    store = await create(api, mine)
    response = await api.post(f"{STORES}/{store.id}/search", {"query": "x"}, **mine)
    check_error(response, 403, "model_not_allowed", "model")


async def models(api: Api, *records: Any) -> None:
    api.registry._records = FakeRegistry(record("tiny"), *records)._records


async def test_which_model_embeds(api: Api):
    """The rules: the default embedding model, else the only one; one model for all of a store's life."""
    store = await create(api)
    await models(api)
    response = await api.post(f"{STORES}/{store.id}/search", {"query": "x"})
    check_error(response, 400, "no_embedding_model_configured", "embedding_model")
    one, two = record("one", kind="embedding"), record("two", kind="embedding", aliases=("zwei",))
    await models(api, one, two)
    response = await api.post(f"{STORES}/{store.id}/files", {"file_id": await send(api)})
    check_error(response, 400, "ambiguous_embedding_model", "embedding_model")
    await models(api, one)
    await attach(api, store, await send(api))
    await run_jobs()
    assert (await api.client.get(f"{STORES}/{store.id}")).json()["embedding_model"] == "one"
    await models(api, one, record("two", kind="embedding", is_default=True))
    for path, body in (("search", {"query": "x"}), ("files", {"file_id": await send(api)})):
        response = await api.post(f"{STORES}/{store.id}/{path}", body)
        check_error(response, 400, "embedding_model_mismatch", "embedding_model")
    assert len(await search(api, store, embedding_model="one")) == 1
    await models(api, one, two)
    chosen = await create(api, embedding_model="zwei")
    await attach(api, chosen, await send(api))
    await run_jobs()
    assert len(await search(api, chosen)) == 1
    response = await api.post(f"{STORES}/{chosen.id}/search", {"query": "x", "embedding_model": "one"})
    check_error(response, 400, "embedding_model_mismatch", "embedding_model")
    check_error(await api.post(STORES, {"embedding_model": "nobody"}), 404, "model_not_found", "embedding_model")
    check_error(await api.post(STORES, {"embedding_model": "tiny"}), 400, "wrong_model_kind", "embedding_model")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "x" * 257}, "name"),
        ({"name": "\0"}, "name"),
        ({"expires_after": {"anchor": "created_at", "days": 1}}, "expires_after.anchor"),
        ({"expires_after": {"anchor": "last_active_at", "days": 366}}, "expires_after.days"),
        ({"metadata": {"": "x"}}, "metadata"),
        ({"chunking_strategy": {"type": "other"}}, "chunking_strategy.type"),
        (
            {
                "chunking_strategy": {
                    "type": "static",
                    "static": {"max_chunk_size_tokens": 99, "chunk_overlap_tokens": 0},
                }
            },
            "chunking_strategy.static.max_chunk_size_tokens",
        ),
        (
            {
                "chunking_strategy": {
                    "type": "static",
                    "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 51},
                }
            },
            "chunking_strategy.static.chunk_overlap_tokens",
        ),
        ({"file_ids": ["file-0"] * 2_001}, "file_ids"),
    ],
)
async def test_stores_that_are_refused(api: Api, body: dict[str, Any], param: str):
    response = await api.post(STORES, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param), response.json()
    assert await StoreRow.objects.acount() == 0


@pytest.mark.parametrize(
    "attributes",
    [
        {str(n): n for n in range(17)},
        {"k" * 65: 1},
        {"k": "v" * 513},
        {"k": None},
        {"k": []},
        {"k": 10**400},
        {"k": "\0"},
        {"k\0": 1},
        "x",
    ],
)
async def test_attributes_that_are_refused(api: Api, attributes: Any):
    store, file_id = await create(api), await send(api)
    response = await api.post(f"{STORES}/{store.id}/files", {"file_id": file_id, "attributes": attributes})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("attributes")


async def test_files_that_are_not_there_make_no_store(api: Api):
    check_error(await api.post(STORES, {"file_ids": ["file-0"]}), 404, "file_not_found", "file_id")
    assert await StoreRow.objects.acount() == 0
