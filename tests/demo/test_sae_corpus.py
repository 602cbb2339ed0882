import random
import zlib
from pathlib import Path

import pytest

from tools.sae_corpus import CHARS_PER_TOKEN, PackagedTexts, Part, build


@pytest.fixture
def texts(tmp_path: Path) -> PackagedTexts:
    return PackagedTexts(tmp_path, random.Random(0))  # noqa: S311 - not for cryptography


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_dialogues_keep_whole_turns(tmp_path: Path, texts: PackagedTexts) -> None:
    data = tmp_path / "chatterbot-corpus/chatterbot_corpus/data/english"
    write(data / "a.yml", "conversations:\n- [Hello, Hi, And you]\n- [1 + 1, 2]\n")
    (chat,) = texts.dialogues("english")
    assert not isinstance(chat, str)
    assert [message["role"] for message in chat] == ["user", "assistant"] * 2
    assert {message["content"] for message in chat} == {"Hello", "Hi", "1 + 1", "2"}


def test_offensive_quotations_are_left_out(tmp_path: Path, texts: PackagedTexts) -> None:
    folder = tmp_path / "fortunes/usr/share/games/fortunes"
    write(folder / "wisdom", "One.\n%\nTwo.")
    write(folder / "off/rude", "Rude.")
    write(folder / "wisdom.dat", "index")
    (quotes,) = texts.fortunes("fortunes")
    assert sorted(quotes.split("\n\n")) == ["One.", "Two."]


def test_novels_are_read_from_several_compressed_records(tmp_path: Path, texts: PackagedTexts) -> None:
    lines = [f"Line {number:03} of a novel that has words in it, all of them short." for number in range(100)]
    record = b"".join(b"\x00\x04\x00\x09" + len(line).to_bytes(4, "big") + line.encode() for line in lines)
    path = tmp_path / "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    path.parent.mkdir(parents=True)
    path.write_bytes((b"\x00\x00\x00\x00" + zlib.compress(record)) * 2)
    pieces = list(texts.austen())
    whole = " ".join(lines)
    assert pieces == [whole[start : start + 1300] for start in range(3000, len(whole) - 1500, 1300)] * 2


def test_a_part_is_cut_to_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part("letters", tokens=10, read=lambda: ["x" * 20] * 5)
    monkeypatch.setattr("tools.sae_corpus.parts", lambda texts: [part])
    lines = build(tmp_path).read_text().splitlines()
    assert len(lines) == 10 * CHARS_PER_TOKEN // 20 == 2
