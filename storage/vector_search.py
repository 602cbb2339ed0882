"""Search in vector stores: attribute filters, the index, and the query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.db import connection, transaction

MAX_VECTOR = 2_000  # maximum dimensions of an index over float32
MAX_HALF = 4_000  # maximum dimensions of an index over float16; longer vectors are compared one by one


def indexed_type(dimensions: int) -> str | None:
    """Return the SQL type of the index; None if the vectors are too long for one."""
    if dimensions <= MAX_VECTOR:
        return f"vector({dimensions})"
    return f"halfvec({dimensions})" if dimensions <= MAX_HALF else None


def distance(dimensions: int) -> str:
    """Return SQL for the cosine distance between a chunk and a parameter."""
    kind = indexed_type(dimensions) or f"vector({dimensions})"
    return f"(chunk.embedding::{kind}) <=> %s::{kind}"


def ensure_index(dimensions: int) -> None:
    """Create the index for vectors of that length if it does not exist. Writes wait meanwhile."""
    if indexed_type(dimensions) is not None and not _exists(dimensions):
        with transaction.atomic(), connection.cursor() as cursor:
            # The function runs as the owner of the tables, see its migration.
            cursor.execute("SELECT storage_index_chunks(%s)", [dimensions])


def _exists(dimensions: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [_name(dimensions)])
        return bool(cursor.fetchone()[0])


def _name(dimensions: int) -> str:
    return f"storage_chunk_hnsw_{int(dimensions)}"


Value = str | float | bool
Operator = Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
_SIGNS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}
Sql = tuple[str, list[Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of one attribute. ``values`` has one value; for ``in`` and ``nin`` any number."""

    operator: Operator
    key: str
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Compound:
    operator: Literal["and", "or"]
    parts: tuple[Filter, ...]


Filter = Comparison | Compound


def to_sql(condition: Filter, column: str) -> Sql:
    """Return the filter as SQL. ``column`` is trusted SQL; clients' keys and values are parameters."""
    if isinstance(condition, Compound):
        return _joined([to_sql(part, column) for part in condition.parts], condition.operator)
    if condition.operator in _SIGNS:
        return _ordered(condition, column)
    sql, parameters = _joined([_equal(condition.key, value, column) for value in condition.values], "or")
    return (f"NOT ({sql})" if condition.operator in {"ne", "nin"} else sql), parameters


def _joined(parts: Sequence[Sql], operator: str) -> Sql:
    if not parts:
        return ("TRUE" if operator == "and" else "FALSE"), []
    sql = f" {operator.upper()} ".join(f"({part})" for part, _ in parts)
    return sql, [parameter for _, parameters in parts for parameter in parameters]


def _equal(key: str, value: Value, column: str) -> Sql:
    return f"{column} @> %s::jsonb", [json.dumps({key: value})]


def _ordered(condition: Comparison, column: str) -> Sql:
    (value,), sign = condition.values, _SIGNS[condition.operator]
    if isinstance(value, bool):
        return "FALSE", []
    if isinstance(value, str):
        ordered = f'({column} ->> %s) COLLATE "C" {sign} %s'
        guarded = f"CASE WHEN jsonb_typeof({column} -> %s) = 'string' THEN {ordered} ELSE FALSE END"
        return guarded, [condition.key, condition.key, value]
    guarded = f"CASE WHEN jsonb_typeof({column} -> %s) = 'number' THEN ({column} -> %s) {sign} %s::jsonb ELSE FALSE END"
    return guarded, [condition.key, condition.key, json.dumps(value)]


EXACT_CHUNKS = 2_000
EF_SEARCH = 200  # candidates that the index keeps; a higher number improves the recall
MAX_SCANNED = 40_000


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A query for at most ``limit`` chunks."""

    store: int
    dimensions: int
    vector: Sequence[float]
    limit: int
    condition: Filter | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk that was found. ``score`` is the cosine similarity, from 0 (unrelated or opposed) to 1."""

    chunk: int
    file_id: str
    filename: str
    attributes: dict[str, Any]
    text: str
    score: float


def nearest(query: Neighbours, *, exact_chunks: int = EXACT_CHUNKS) -> list[Hit]:
    """Return the most similar chunks, best first."""
    if indexed_type(query.dimensions) is None or _is_small(query, exact_chunks):
        return search_exactly(query)
    found = search_index(query)
    return found if len(found) == query.limit else search_exactly(query)


def search_exactly(query: Neighbours) -> list[Hit]:
    """Search without an index: Postgres cannot use one on materialised rows."""
    sql, parameters = _matching(query)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH chunk AS MATERIALIZED ({sql}) SELECT id, public_id, filename, attributes, text, distance "  # noqa: S608
            "FROM chunk ORDER BY distance, id LIMIT %s",
            [*parameters, query.limit],
        )
        return [_hit(row) for row in cursor.fetchall()]


def search_index(query: Neighbours) -> list[Hit]:
    sql, parameters = _matching(query)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL hnsw.ef_search = {EF_SEARCH}")
        cursor.execute("SET LOCAL hnsw.iterative_scan = strict_order")
        cursor.execute(f"SET LOCAL hnsw.max_scan_tuples = {MAX_SCANNED}")
        cursor.execute("SET LOCAL enable_sort = off")  # sorting would compare all chunks of the store
        cursor.execute(f"{sql} ORDER BY distance LIMIT %s", [*parameters, query.limit])
        return [_hit(row) for row in cursor.fetchall()]


def _matching(query: Neighbours) -> tuple[str, list[Any]]:
    condition, values = to_sql(query.condition, "held.attributes") if query.condition is not None else ("TRUE", [])
    sql = (
        "SELECT chunk.id, file.public_id, file.filename, held.attributes, chunk.text, "  # noqa: S608 - constants
        f"{distance(query.dimensions)} AS distance FROM storage_chunk chunk "
        "JOIN storage_vectorstorefile held ON held.id = chunk.store_file_id "
        "JOIN storage_storedfile file ON file.id = held.file_id "
        f"WHERE chunk.dimensions = {int(query.dimensions)} AND chunk.store_id = %s AND held.status = 'completed' "
        f"AND (file.expires_at IS NULL OR file.expires_at > now()) AND ({condition})"
    )
    return sql, [_literal(query.vector), query.store, *values]


def _is_small(query: Neighbours, most: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM storage_chunk WHERE store_id = %s LIMIT %s) AS counted",
            [query.store, most + 1],
        )
        return bool(cursor.fetchone()[0] <= most)


def _literal(vector: Sequence[float]) -> str:
    return "[" + ",".join(repr(float(value)) for value in vector) + "]"


def _hit(row: tuple[Any, ...]) -> Hit:
    chunk, file_id, filename, attributes, text, far = row
    score = 0.0 if far is None or far != far else min(1.0, max(0.0, 1.0 - far))  # NaN: a vector of zeros
    return Hit(chunk, file_id, filename, json.loads(attributes), text, score)  # Django leaves raw jsonb as text
