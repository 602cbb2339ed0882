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
        ("kitten", [1]),
        ("weathers", [0]),
        ('"sad rainy"', [0]),
        ('"rainy sad"', []),
        ("sad or sea", [0, 2]),
        ("or", []),
        ("-sea", [0, 1]),
        ("the -cat", [2]),
        ("sad weather or cats -kittens", [0]),
    ],
)
def test_search(text, indices, sae):
    assert found(sae, text) == indices


def test_the_best_come_first(sae):
    sae.features.filter(index=5).update(label="a long label that has the word rain somewhere in it, and more")
    sae.features.filter(index=6).update(label="rain")
    sae.features.filter(index=7).update(label="clouds", description="rain")
    found = [feature.index for feature in sae.features.search("rain")]
    assert found[0] == 6
    assert sorted(found) == [0, 5, 6, 7]


def test_a_word_of_the_label_counts_more_than_several_of_the_description(sae):
    sae.features.filter(index=5).update(label="snow", description="storm, storms and stormy storms")
    sae.features.filter(index=6).update(label="storm", description="what comes down from mountains in autumn")
    assert [feature.index for feature in sae.features.search("storm")] == [6, 5]


def test_a_number_comes_before_labels_that_have_it(sae):
    sae.features.filter(index=5).update(label="17")
    assert [feature.index for feature in sae.features.search("17")] == [17, 5]


@pytest.mark.parametrize(
    "text",
    [
        "'",
        '"',
        "-",
        '-"',
        "or or or",
        "-or",
        "a" * 5000,
        "- - a",
        "a & | !",
        ":*",
        "\\",
        "rain:*' ",
        "(((",
        "<script>",
        "9" * 400,
        "²",
        "%",
        "_",
        "\N{BELL}",
        "é" * 5000,
    ],
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


def test_more_matches_than_are_ranked_come_by_number(sae):
    sae.features.filter(index__gte=5).update(label="something else", description="words")
    indices = [feature.index for feature in sae.features.search("wo", max_ranked=34)]
    assert indices == list(range(5, 40))


def test_a_number_comes_before_many_matches(sae):
    sae.features.update(label="30 words")
    assert [feature.index for feature in sae.features.search("30", max_ranked=5)][:3] == [30, 0, 1]
