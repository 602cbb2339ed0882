"""Corpora: the shipped one, files of others, and what is wrong with them."""

from __future__ import annotations

import json

import pytest

from inference.text.model_text import ModelText
from steering.corpora.corpus import CorpusError, read_corpus, tokenise
from tests.builders import build_tokenizer


@pytest.fixture(scope="module")
def text() -> ModelText:
    return ModelText(build_tokenizer(), max_model_len=256)


def test_shipped_corpus(text):
    corpus = read_corpus()
    assert corpus.name == "default"
    assert len(corpus.documents) > 200
    assert any(document.messages for document in corpus.documents)
    pieces = tokenise(corpus, text, 5_000)
    assert 5_000 <= sum(piece.num_ordinary for piece in pieces) < 5_300
    assert all(len(piece.token_ids) <= 256 for piece in pieces)
    assert len(pieces) == len({piece.token_ids for piece in pieces})


def test_version_is_that_of_the_content(tmp_path):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("The sea.\n\nThe sun.\r\n\r\nA cat.")
    two.write_text("The sea.")
    assert [document.text for document in read_corpus(str(one)).documents] == ["The sea.", "The sun.", "A cat."]
    assert read_corpus(str(one)).version != read_corpus(str(two)).version
    assert read_corpus(str(one)).label == f"one {read_corpus(str(one)).version}"


def test_chats_are_rendered_and_their_markers_are_special(text, tmp_path):
    file = tmp_path / "chat.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "A cat <|im_end|>"}]}) + "\n")
    (piece,) = tokenise(read_corpus(str(file)), text, 100)
    assert text.decode(piece.token_ids) == "<|im_start|>user\nA cat <|im_end|><|im_end|>\n"
    specials = [i for i, ordinary in zip(piece.token_ids, piece.is_ordinary, strict=True) if not ordinary]
    assert len(specials) == 2  # what the text only looks like is ordinary


def test_long_texts_are_split_and_not_cut(text, tmp_path):
    file = tmp_path / "long.txt"
    file.write_text("The cat sat by the sea. " * 2_000)
    pieces = tokenise(read_corpus(str(file)), text, 10**6)
    assert "".join(text.decode(piece.token_ids) for piece in pieces[:1]).startswith("The cat sat by the sea.")
    assert all(len(piece.token_ids) <= 256 for piece in pieces)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}\n', "a.jsonl, line 2: expected an object"),
        ("a.jsonl", b"[" * 100_000, "line 1: not valid JSON"),
        ("a.jsonl", b'{"messages": []}', "1 to 200 messages, got 0"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}', "`role` and `content` of each message must be strings"),
        ("a.jsonl", b'{"text": "a\\u0000b"}', "must not contain NUL"),
        ("a.jsonl", b'{"text": "\\ud800"}', "unpaired surrogates"),
        ("a.txt", b"\xff\xfe\x00", "is not valid UTF-8"),
        ("a.txt", b"\n\n \n", "contains no texts"),
        ("a.txt", b"x" * 100_001, "the limit is 100000. Split it"),
        ("a.bin", b"x", "a corpus must be a .jsonl, .ndjson or .txt file"),
    ],
)
def test_refusals(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=message):
        read_corpus(str(tmp_path / name))


def test_missing_files_and_folders(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    for name in ("none.txt", "folder.txt"):
        with pytest.raises(CorpusError, match=r"The file .* does not exist"):
            read_corpus(str(tmp_path / name))
