"""Features are found by the beginnings of words in their labels, or by number."""

from __future__ import annotations

import pytest
from django.db import connection

from steering.models import Feature


def found(sae, text: str) -> list[int]:
    return list(sae.features.search(text).order_by("index").values_list("index", flat=True))


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("rain", [0]),
        ("SEA", [2]),
        ("cat kit", [1]),
        ("kit cat", [1]),
        ("sad sea", []),
        ("ea", []),
        ("the", [2]),
        ("17", [17]),
        ("#17", [17]),
        ("nothing", []),
    ],
)
def test_search(text, indices, sae):
    assert found(sae, text) == indices


@pytest.mark.parametrize(
    "text",
    ["'", "a & | !", ":*", "\\", "rain:*' ", "(((", "<script>", "9" * 400, "²", "%", "_", "\N{BELL}", "é" * 5000],
)
def test_no_text_breaks_the_query(text, sae):
    list(sae.features.search(text))


def test_nothing_finds_everything(sae):
    assert len(found(sae, "  ")) == 40


def test_uses_the_index(sae):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
    plan = Feature.objects.search("rain").order_by().explain()
    assert "feature_label_words" in plan
