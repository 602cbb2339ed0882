"""Pieces of texts, counted by a real tokenizer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.text.model_text import ModelText
from storage.chunking import MAX_WORD, SECTION, Chunking, chunks_of, sections_of
from storage.errors import ExtractionError
from tests.builders import TRAINING_TEXT, build_tokenizer

pytestmark = pytest.mark.slow

TEXT = "\n\n".join(f"{n}. {sentence}" for n in range(40) for sentence in TRAINING_TEXT)


@pytest.fixture(scope="module")
def model() -> Any:
    return SimpleNamespace(text=ModelText(build_tokenizer(), max_model_len=64), max_model_len=64)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    backend = build_tokenizer().backend_tokenizer
    backend.encode_special_tokens = True
    return backend


class Counting:
    """A tokenizer that counts the characters it is asked about."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.num_characters = 0

    def encode(self, text: str, **options: Any) -> Any:
        self.num_characters += len(text)
        return self.tokenizer.encode(text, **options)


def word_pieces() -> Any:
    """A tokenizer to which a word of more than 100 characters is one unknown token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "x": 1, "##x": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


@pytest.mark.parametrize("has_headings", [False, True])
@pytest.mark.parametrize(("most", "overlap"), [(32, 0), (32, 16), (800, 400)])
def test_pieces_fit_the_model_and_hold_all_words(
    model: Any, tokenizer: Any, has_headings: bool, most: int, overlap: int
):
    size = Chunking(most, overlap).fitting(model)
    pieces = list(chunks_of(TEXT, tokenizer, size, has_headings=has_headings))
    assert max(len(model.text.encode(piece)) for piece in pieces) <= min(most, 64)
    assert set(TEXT.split()) == {word for piece in pieces for word in piece.split()}
    assert all(piece in TEXT for piece in pieces)
    assert pieces == list(chunks_of(TEXT, tokenizer, size, has_headings=has_headings))
    shared = sum(len(piece) for piece in pieces) - len(TEXT)
    assert shared > 0 if overlap else shared <= 0


@pytest.mark.parametrize("text", ["", " \n\n\t ", "\n" * 1_000])
def test_blanks_have_no_pieces(tokenizer: Any, text: str):
    assert list(chunks_of(text, tokenizer, Chunking(), has_headings=False)) == []


def test_one_long_word_is_cut(tokenizer: Any):
    pieces = list(chunks_of("x" * 5_000, tokenizer, Chunking(50, 0), has_headings=False))
    assert "".join(pieces) == "x" * 5_000


def test_an_endless_word_is_refused(tokenizer: Any):
    assert list(chunks_of(f"a {'x' * MAX_WORD} b", word_pieces(), Chunking(), has_headings=False))
    with pytest.raises(ExtractionError, match="a word of 8388608 characters") as caught:
        list(chunks_of(f"a {'x' * 2**23} b", tokenizer, Chunking(), has_headings=False))
    assert caught.value.code == "invalid_file"


def test_words_that_the_tokenizer_does_not_know_are_cut_by_characters():
    """One token may stand for any number of characters, but no model takes a text of that length."""
    pieces = list(chunks_of("x" * 100_000, word_pieces(), Chunking(64, 0, max_chars=2_048), has_headings=False))
    assert "".join(pieces) == "x" * 100_000
    assert max(len(piece) for piece in pieces) <= 2_048


HOSTILE = {
    "prose": TEXT,
    "number signs": "#" * 60_000,
    "headings": "# a\n" * 15_000,
    "empty headings": "# " * 30_000,
    "line breaks": "\n" * 60_000 + "x",
    "blanks": " " * 60_000 + "x",
    "one word": "x" * 60_000,
    "ends of sentences": ".)))" * 15_000,
    "marks over one letter": "a" + "\u0301" * 60_000,
    "one emoji of several characters": "👩‍👩‍👧" * 12_000,
    "no blanks": "雨下得很大" * 12_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("has_headings", [False, True])
@pytest.mark.parametrize(("most", "overlap"), [(100, 50), (800, 0)])
def test_the_effort_is_linear_whatever_the_text(tokenizer: Any, text: str, has_headings: bool, most: int, overlap: int):
    counting = Counting(tokenizer)
    pieces = list(chunks_of(text, counting, Chunking(most, overlap, 4_096), has_headings=has_headings))
    assert counting.num_characters < 8 * len(text)
    assert sum(len(piece) for piece in pieces) < 4 * len(text)


def test_pieces_begin_at_headings(tokenizer: Any):
    section = "Some words of a text.\n" * 12
    text = "".join(f"## Part {number}\n\n{section}\n" for number in range(4))
    most = len(tokenizer.encode(text[: len(text) // 4]).ids) * 3 // 2
    pieces = list(chunks_of(text, tokenizer, Chunking(most, 0), has_headings=True))
    assert [piece.splitlines()[0] for piece in pieces] == [f"## Part {number}" for number in range(4)]


@given(st.text(st.sampled_from("aa .\n#"), max_size=200), st.integers(1, 30), st.data())
def test_nothing_is_lost(tokenizer: Any, text: str, most: int, data: Any):
    letters = map(chr, range(0x4E00, 0x9FFF))
    text = "".join(next(letters) if character == "a" else character for character in text)
    size = Chunking(most, data.draw(st.integers(0, most // 2)), data.draw(st.integers(2, 100)))
    pieces = list(chunks_of(text, tokenizer, size, has_headings=True))
    assert all(piece in text for piece in pieces)
    found = [character for piece in pieces for character in piece if character not in " .\n#"]
    assert list(dict.fromkeys(found)) == [character for character in text if character not in " .\n#"]
    if not size.overlap:
        assert "".join("".join(pieces).split()) == "".join(text.split())


def test_an_overlap_shrinks_with_the_model():
    text = SimpleNamespace(
        encode=lambda text: [0] * (len(text) + 2), encode_plain=lambda text: [0] * len(text), max_chars=4_096
    )
    model: Any = SimpleNamespace(text=text, max_model_len=128)
    assert Chunking(800, 400).fitting(model) == Chunking(126, 63, 4_096)
    assert Chunking(100, 10).fitting(model) == Chunking(100, 10, 4_096)


@given(st.text(st.sampled_from("ab \n"), max_size=200), st.integers(2, 50))
def test_sections_are_the_text(text: str, size: int):
    sections = list(sections_of(text, size))
    assert "".join(sections) == text
    assert all(0 < len(section) <= size for section in sections)


def test_sections_end_at_seams():
    paragraph = "word " * 30_000
    assert list(sections_of(f"{paragraph}\n\n{paragraph}")) == [f"{paragraph}\n", f"\n{paragraph}"]
    assert len(list(sections_of("x" * (SECTION + 1)))) == 2
