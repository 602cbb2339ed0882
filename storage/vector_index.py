"""The HNSW index of each length of vectors, made when the first vectors of that length come.

An index needs to know the length, and models differ: so it is over a cast, and over the rows with that length only. A
search must say both in the same words for Postgres to use it.
"""

from __future__ import annotations

from django.db import connection, transaction

MAX_VECTOR = 2_000  # what an index over float32 takes
MAX_HALF = 4_000  # and over float16; longer vectors are compared one by one


def indexed_type(dimensions: int) -> str | None:
    """The type that the index is over; None where there can be none."""
    if dimensions <= MAX_VECTOR:
        return f"vector({dimensions})"
    return f"halfvec({dimensions})" if dimensions <= MAX_HALF else None


def distance(dimensions: int) -> str:
    """SQL of the cosine distance between a chunk and a parameter."""
    kind = indexed_type(dimensions) or f"vector({dimensions})"
    return f"(chunk.embedding::{kind}) <=> %s::{kind}"


def ensure_index(dimensions: int) -> None:
    """Idempotent; writes wait while an index is made, which is short for a length that nobody has used."""
    if indexed_type(dimensions) is not None and not _exists(dimensions):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT storage_index_chunks(%s)", [dimensions])  # of the tables' owner: see its migration


def _exists(dimensions: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [_name(dimensions)])
        return bool(cursor.fetchone()[0])


def _name(dimensions: int) -> str:
    return f"storage_chunk_hnsw_{int(dimensions)}"
