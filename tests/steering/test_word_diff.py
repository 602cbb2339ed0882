"""Two texts as one: every word is there, in its place, and texts that repeat themselves take no time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steering.evaluation.word_diff import MAX_PAIRS, word_diff

texts = st.lists(st.sampled_from(["a", "b", "c", "<i>"]), max_size=12).map(" ".join)


def words(html: str, *tags: str) -> list[str]:
    found = re.findall(rf"<({'|'.join(tags)})>(.*?)</\1>", html)
    return " ".join(text for _, text in found).replace("&lt;", "<").replace("&gt;", ">").split()


@pytest.mark.parametrize(
    ("one", "other", "shown"),
    [
        ("It rained.", "It snowed.", "<span>It</span> <del>rained.</del> <ins>snowed.</ins> "),
        ("a b c d e", "a c d x e", "<span>a</span> <del>b</del> <span>c d</span> <ins>x</ins> <span>e</span> "),
        ("a", "a", "<span>a</span> "),
        ("a a", "a a a", "<span>a a</span> <ins>a</ins> "),
        ("", "a", "<ins>a</ins> "),
        ("a", "", "<del>a</del> "),
        ("", " \n", ""),
    ],
)
def test_what_only_one_has_is_marked(one: str, other: str, shown: str):
    assert word_diff(one, other) == shown


@given(texts, texts)
def test_both_texts_are_in_it(one: str, other: str):
    html = word_diff(one, other)
    assert words(html, "span", "del") == one.split()
    assert words(html, "span", "ins") == other.split()
    assert "<i>" not in html


def test_what_repeats_itself_is_replaced_as_a_whole():
    """Compared word by word, an answer that is stuck would hold the server up for half a minute."""
    stuck = "sad " * (int(MAX_PAIRS**0.5) + 1)
    html = word_diff(f"It was {stuck}then. End", f"It was {stuck}so. End")
    assert html.count("<span>") == 2, "but for the beginning and the end"
    html = word_diff(f"It was x {stuck}x End", f"It was y {stuck}y End")
    assert html == f"<span>It was</span> <del>x {stuck}x</del> <ins>y {stuck}y</ins> <span>End</span> "
