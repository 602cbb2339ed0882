"""Filters against the same conditions in plain Python, evaluated by a real Postgres."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from storage.vector_search import Comparison, Compound, Filter, to_sql

KEYS = ["a", "b", "Ä", "%s", "'", "a.b", "{}"]
texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=4)
numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=32) | st.just(0.1)
values = st.booleans() | numbers | texts | st.sampled_from(["x", "", "1", "true", 1, 1.0, 0, True])
attributes = st.dictionaries(st.sampled_from(KEYS), values, max_size=4)
comparisons = st.builds(
    lambda operator, key, value: Comparison(operator, key, (value,)),
    st.sampled_from(["eq", "ne", "gt", "gte", "lt", "lte"]),
    st.sampled_from(KEYS),
    values,
)
memberships = st.builds(
    lambda operator, key, some: Comparison(operator, key, tuple(some)),
    st.sampled_from(["in", "nin"]),
    st.sampled_from(KEYS),
    st.lists(values, max_size=3),
)
conditions = st.recursive(
    comparisons | memberships,
    lambda parts: st.builds(
        lambda operator, some: Compound(operator, tuple(some)),
        st.sampled_from(["and", "or"]),
        st.lists(parts, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


def kind(value: Any) -> str:
    if isinstance(value, bool):
        return "truth"
    return "text" if isinstance(value, str) else "number"


def holds(condition: Filter, held: dict[str, Any]) -> bool:
    if isinstance(condition, Compound):
        parts = [holds(part, held) for part in condition.parts]
        return all(parts) if condition.operator == "and" else any(parts)
    key, operator = condition.key, condition.operator
    equals = [key in held and kind(held[key]) == kind(value) and held[key] == value for value in condition.values]
    if operator in {"eq", "in"}:
        return any(equals)
    if operator in {"ne", "nin"}:
        return not any(equals)
    (value,) = condition.values
    if key not in held or kind(held[key]) != kind(value) or kind(value) == "truth":
        return False
    left, right = held[key], value
    return {"gt": left > right, "gte": left >= right, "lt": left < right, "lte": left <= right}[operator]


def evaluated(condition: Filter, held: dict[str, Any]) -> bool:
    sql, parameters = to_sql(condition, "held.attributes")
    with connection.cursor() as cursor:
        query = f"SELECT ({sql}) FROM (SELECT %s::jsonb AS attributes) held"  # noqa: S608 - SQL of ours
        cursor.execute(query, [*parameters, json.dumps(held)])
        return cursor.fetchone()[0]


@pytest.mark.django_db
@given(conditions, attributes)
def test_postgres_agrees_with_python(condition: Filter, held: dict[str, Any]):
    assert evaluated(condition, held) is holds(condition, held)


@pytest.mark.django_db
def test_a_key_cannot_end_the_condition():
    injected = "a' OR TRUE --"
    assert evaluated(Comparison("eq", injected, ("x",)), {"a": "x"}) is False
    assert evaluated(Comparison("gt", injected, (1,)), {injected: 2}) is True
