"""What may be stored."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from core.text import clean_json, clean_text

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=10,
)


@given(st.text(st.characters()))
def test_text_becomes_storable(text: str):
    cleaned = clean_text(text)
    cleaned.encode()
    assert "\0" not in cleaned
    assert len(cleaned) == len(text)


def test_good_text_stays():
    assert clean_text("Grüße 😀\n\t") == "Grüße 😀\n\t"
    assert clean_text("abc", max_length=2) == "ab"


@given(ANYTHING)
def test_anything_becomes_json(value: object):
    text = json.dumps(clean_json(value), allow_nan=False, ensure_ascii=False)
    text.encode()
    assert "\\u0000" not in text
