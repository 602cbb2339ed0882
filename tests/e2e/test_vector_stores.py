"""Vector stores through the official client, with a real embedding model: found are the nearest, also over a kill."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import VectorStore, VectorStoreSearchResponse
from openai.types.vector_stores import VectorStoreFile

from tests import database, live
from tests.conftest import site_environment
from tests.embedding_builders import build_embedder

TEXTS = ["the cat sat", "a sep sat a cls", "cls cls the cat", "9 8 7 6 5", "a, b, c. d!", "sat sat sat the"]
WAIT_S = 240


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = build_embedder(tmp_path_factory.mktemp("embedder"))
    with database.own_database() as place:
        environment = site_environment(place, tmp_path_factory.mktemp("site"))
        live.manage("add_model", "vectors", str(path), "--dtype", "float32", environment=environment)
        with live.serving(environment=environment) as running:
            yield f"{running.url}/v1"
            assert running.stop() == 0, running.output


@pytest.fixture
def embedding_client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key="none", max_retries=0)


def test_the_nearest_texts_are_found(embedding_client: OpenAI):
    client = embedding_client
    store = client.vector_stores.create(name="texts")
    VectorStore.model_validate(store.to_dict(), strict=True)
    files = [
        client.vector_stores.files.upload_and_poll(
            vector_store_id=store.id, file=(f"{number}.txt", text.encode()), poll_interval_ms=100
        )
        for number, text in enumerate(TEXTS)
    ]
    for file in files:
        VectorStoreFile.model_validate(file.to_dict(), strict=True)
        assert file.status == "completed", file
    query = "the cat sat on a cls"
    vectors = np.array([item.embedding for item in client.embeddings.create(model="vectors", input=TEXTS).data])
    asked = np.array(client.embeddings.create(model="vectors", input=query).data[0].embedding)
    scores = vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)
    order = np.argsort(-scores)
    hits = list(client.vector_stores.search(store.id, query=query, max_num_results=4))
    for hit in hits:
        VectorStoreSearchResponse.model_validate(hit.to_dict(), strict=True)
    assert [hit.content[0].text for hit in hits] == [TEXTS[place] for place in order[:4]]
    np.testing.assert_allclose([hit.score for hit in hits], np.clip(scores[order[:4]], 0, 1), atol=1e-4)
    assert client.vector_stores.retrieve(store.id).file_counts.completed == len(TEXTS)
    assert client.vector_stores.delete(store.id).deleted


async def test_the_asynchronous_client_and_a_batch(url: str):
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        store = await client.vector_stores.create(expires_after={"anchor": "last_active_at", "days": 7})
        batch = await client.vector_stores.file_batches.upload_and_poll(
            vector_store_id=store.id,
            files=[(f"{number}.md", text.encode()) for number, text in enumerate(TEXTS)],
            poll_interval_ms=100,
        )
        assert (batch.status, batch.file_counts.completed) == ("completed", len(TEXTS))
        listed = [file.id async for file in client.vector_stores.files.list(store.id, limit=2)]
        assert len(set(listed)) == len(TEXTS)
        await client.vector_stores.files.update(listed[0], vector_store_id=store.id, attributes={"kept": True})
        found = client.vector_stores.search(
            store.id, query="cat", filters={"type": "eq", "key": "kept", "value": True}, rewrite_query=False
        )
        assert [hit.file_id async for hit in found] == [listed[0]]
        pages = [page.text async for page in client.vector_stores.files.content(listed[0], vector_store_id=store.id)]
        filename = (await client.files.retrieve(listed[0])).filename  # they were sent at once, in no order
        assert pages == [TEXTS[int(filename.removesuffix(".md"))]]


def test_the_examples_of_the_page_run(embedding_client: OpenAI, capsys: pytest.CaptureFixture[str]):
    page = (live.PROJECT_DIR / "docs" / "openai-compatibility.md").read_text()
    section = page.split("\n## Vector stores\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    exec(compile(example, "docs/openai-compatibility.md", "exec"), {"client": embedding_client})  # noqa: S102
    assert "The cat sat by the sea." in capsys.readouterr().out


def test_a_response_searches_files(embedding_client: OpenAI):
    """The demo is made to search; what it says then is its own."""
    client = embedding_client
    store = client.vector_stores.create()
    client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("a.txt", b"The cat sat by the sea."))
    stream = client.responses.create(
        stream=True,
        model="demo",
        input="Where is the cat?",
        tools=[{"type": "file_search", "vector_store_ids": [store.id], "max_num_results": 1}],
        tool_choice={"type": "file_search"},
        include=["file_search_call.results"],
        max_tool_calls=1,
        max_output_tokens=600,
        temperature=0,
    )
    events = list(stream)
    assert "response.file_search_call.completed" in [event.type for event in events], events
    last = events[-1]
    assert last.type in {"response.completed", "response.incomplete"}
    final = last.response
    call = final.output[0]
    assert call.type == "file_search_call"
    assert call.queries
    assert call.results is not None
    assert [result.text for result in call.results] == ["The cat sat by the sea."]
    assert final.usage is not None
    assert final.usage.input_tokens > 100, "two prompts"


def test_a_server_without_an_embedding_model_says_so(client: OpenAI):
    store = client.vector_stores.create()
    with pytest.raises(openai.BadRequestError) as caught:
        client.vector_stores.search(store.id, query="x")
    assert caught.value.code == "no_embedding_model_configured"


def test_reading_goes_on_after_the_death_of_its_process(migrated_database_url: str, tmp_path: Path):
    path = build_embedder(tmp_path / "embedder")
    environment = {**site_environment(migrated_database_url, tmp_path / "home"), "MILLM_JOB_STALL_SECONDS": "2"}
    live.manage("add_model", "vectors", str(path), "--dtype", "float32", environment=environment)
    words = [f"{n:06d}" for n in range(20_000)]
    with live.serving(environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        file = client.files.create(file=("long.txt", " ".join(words).encode()), purpose="assistants")
        store = client.vector_stores.create(file_ids=[file.id])
        until(lambda: num_chunks(client, store.id, file.id) >= 16)
        server.stop(signal.SIGKILL)
    with live.serving(environment=environment) as server:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        before = client.vector_stores.files.retrieve(file.id, vector_store_id=store.id)
        assert before.status == "in_progress", "the process was killed too late to test anything"
        until(lambda: client.vector_stores.retrieve(store.id).file_counts.completed == 1)
        pieces = [page.text or "" for page in client.vector_stores.files.content(file.id, vector_store_id=store.id)]
        assert {word for piece in pieces for word in piece.split()} == set(words)
        starts = [words.index(piece.split()[0]) for piece in pieces]
        assert starts == sorted(set(starts)), "no piece is there twice, and all are in their order"
        assert server.stop() == 0, server.output


def num_chunks(client: OpenAI, store_id: str, file_id: str) -> int:
    return len(list(client.vector_stores.files.content(file_id, vector_store_id=store_id)))


def until(condition) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
