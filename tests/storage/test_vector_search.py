"""The HNSW index against exact search, and that against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.db import connection

from storage.blobs import BlobStore
from storage.files import keep_file
from storage.models import Chunk, VectorStore, VectorStoreFile
from storage.vector_search import (
    Comparison,
    Neighbours,
    ensure_index,
    indexed_type,
    nearest,
    search_exactly,
    search_index,
)

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
DIMENSIONS, CHUNKS, FILES = 24, 3_000, 10


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> None:
    settings.MILLM_HOME = tmp_path
    settings.MILLM_MIN_FREE_BYTES = 0


def fill(store: VectorStore, vectors: Any, *, num_files: int = FILES) -> None:
    """Vectors, spread over files whose attribute ``n`` is their number."""
    rows = []
    for number in range(num_files):
        with BlobStore.from_settings().writing() as writer:
            file = keep_file(writer=writer, filename=f"{number}.txt", purpose="assistants", owner_id=None)
        fields = {"max_chunk_tokens": 800, "overlap_tokens": 0, "status": "completed", "attributes": {"n": number}}
        rows.append(VectorStoreFile.objects.create(store=store, file=file, **fields))
    Chunk.objects.bulk_create(
        Chunk(
            store=store,
            store_file=rows[place % num_files],
            position=place,
            text=str(place),
            dimensions=vectors.shape[1],
            embedding=vector.tolist(),
        )
        for place, vector in enumerate(vectors)
    )


def draw(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(count, DIMENSIONS)).astype(np.float32)


def by_cosine(vectors: Any, query: Any, limit: int) -> list[str]:
    scores = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    return [str(place) for place in np.argsort(-scores)[:limit]]


@pytest.fixture
def filled() -> tuple[VectorStore, Any]:
    """A large store beside another one that is in the same index."""
    ensure_index(DIMENSIONS)
    stores = [VectorStore.objects.create(name=name) for name in ("mine", "other")]
    vectors = draw(CHUNKS, 0)
    fill(stores[0], vectors)
    fill(stores[1], draw(CHUNKS, 1))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE storage_chunk, storage_vectorstorefile, storage_storedfile")
    return stores[0], vectors


def test_the_index_finds_what_exact_search_finds(filled: tuple[VectorStore, Any]):
    store, vectors = filled
    found = total = 0
    for query in draw(20, 2):
        wanted = Neighbours(store.pk, DIMENSIONS, query.tolist(), 10)
        exact = [hit.text for hit in search_exactly(wanted)]
        assert exact == by_cosine(vectors, query, 10)
        indexed = [hit.text for hit in search_index(wanted)]
        assert len(indexed) == 10
        found += len(set(indexed) & set(exact))
        total += 10
    assert found / total >= 0.95


def test_large_stores_really_use_the_index(filled: tuple[VectorStore, Any], django_assert_num_queries: Any):
    store, _ = filled
    wanted = Neighbours(store.pk, DIMENSIONS, draw(1, 2)[0].tolist(), 10)
    statements: list[str] = []

    def record(execute: Any, sql: str, parameters: Any, many: bool, context: Any) -> Any:
        statements.append(sql)
        if "distance LIMIT" in sql:
            plan = execute(f"EXPLAIN {sql}", parameters, many, context)
            statements.extend(row[0] for row in context["cursor"].fetchall())
            del plan
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(record):
        nearest(wanted, exact_chunks=100)
    assert any(f"storage_chunk_hnsw_{DIMENSIONS}" in line for line in statements), "\n".join(statements)


@pytest.mark.parametrize("exact_chunks", [0, 10**6])
def test_filters_hold_on_both_ways(filled: tuple[VectorStore, Any], exact_chunks: int):
    store, vectors = filled
    query = draw(1, 3)[0]
    condition = Comparison("eq", "n", (7,))
    hits = nearest(Neighbours(store.pk, DIMENSIONS, query.tolist(), 20, condition), exact_chunks=exact_chunks)
    assert len(hits) == 20
    assert {hit.attributes["n"] for hit in hits} == {7}
    places = np.arange(7, CHUNKS, FILES)
    expected = {str(places[int(place)]) for place in by_cosine(vectors[places], query, 20)}
    assert len({hit.text for hit in hits} & expected) >= 18
    nothing = Comparison("eq", "n", (77,))
    assert nearest(Neighbours(store.pk, DIMENSIONS, query.tolist(), 5, nothing), exact_chunks=exact_chunks) == []


def test_scores_are_cosines_from_0_to_1():
    store = VectorStore.objects.create()
    fill(store, np.array([[1, 0], [1, 1], [0, 1], [-1, 0], [0, 0]], np.float32), num_files=1)
    hits = nearest(Neighbours(store.pk, 2, [2.0, 0.0], 5))
    assert [hit.text for hit in hits][:2] == ["0", "1"]
    scores = {hit.text: hit.score for hit in hits}
    assert scores == pytest.approx({"0": 1.0, "1": 2**-0.5, "2": 0.0, "3": 0.0, "4": 0.0}, abs=1e-6)


def test_lengths_and_files_that_are_not_searched():
    store = VectorStore.objects.create()
    fill(store, np.ones((2, 3), np.float32), num_files=2)
    assert nearest(Neighbours(store.pk, 4, [1.0] * 4, 5)) == []
    VectorStoreFile.objects.filter(attributes={"n": 0}).update(status="failed")
    assert [hit.text for hit in nearest(Neighbours(store.pk, 3, [1.0] * 3, 5))] == ["1"]


@pytest.mark.parametrize(
    ("dimensions", "kind"), [(3, "vector(3)"), (2_000, "vector(2000)"), (2_001, "halfvec(2001)"), (4_001, None)]
)
def test_every_length_has_its_index_or_none(dimensions: int, kind: str | None):
    assert indexed_type(dimensions) == kind
    for _ in range(2):
        ensure_index(dimensions)
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_indexes WHERE indexname = %s", [f"storage_chunk_hnsw_{dimensions}"])
        assert cursor.fetchone()[0] == (kind is not None)
    store = VectorStore.objects.create()
    fill(store, np.ones((2, dimensions), np.float32), num_files=1)
    for exact_chunks in (0, 10):
        hits = nearest(Neighbours(store.pk, dimensions, [1.0] * dimensions, 5), exact_chunks=exact_chunks)
        assert [hit.score for hit in hits] == pytest.approx([1.0, 1.0], abs=1e-3)
