from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inference.engine.messages import TokenLogprob
from inference.engine.output.detokenizer import MAX_OPEN_TOKENS, Detokenizer, TokenDecoder
from tests.builders import build_tokenizer
from tests.inference.tokenizers import gemma_tokenizer, llama_tokenizer, metaspace_tokenizer

TOKENIZER = build_tokenizer().backend_tokenizer


def word_pieces() -> Tokenizer:
    """As BERT's, whose decoder joins pieces and takes out the spaces before marks."""
    words = ["[UNK]", "the", "cat", "sat", "s", "t", "##s", "##t", "##he", "'", ".", ",", "!"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


@cache
def tokenizer_of(kind) -> Tokenizer:
    made = kind()
    return getattr(made, "backend_tokenizer", made)


class BytesTokenizer:
    """Tokens of any bytes, where a character may begin in the middle of one."""

    def __init__(self, tokens: dict[int, bytes]) -> None:
        self._tokens = tokens

    def decode(self, ids, skip_special_tokens=True) -> str:
        return b"".join(self._tokens[i] for i in ids).decode("utf-8", "replace")


def detokenizer(*stop: str, prompt: tuple[int, ...] = ()) -> Detokenizer:
    return Detokenizer(TokenDecoder(TOKENIZER, prompt), stop)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def push_all(target: Detokenizer, ids: list[int]) -> tuple[str, list[int], bool]:
    text = ""
    sent: list[int] = []
    for token in ids:
        piece = target.push(token)
        assert "\ufffd" not in piece.text
        text += piece.text
        sent += piece.token_ids
        if piece.stop:
            return text, sent, True
    last = target.finish()
    return text + last.text, sent + list(last.token_ids), False


@given(st.text(max_size=40).filter(lambda t: "\ufffd" not in t))
def test_pieces_add_up_to_the_text(text):
    ids = encode(text)
    assert push_all(detokenizer(), ids) == (TOKENIZER.decode(ids), ids, False)


def test_an_emoji_split_over_tokens_comes_whole():
    target, ids = detokenizer(), encode("x🦊y")
    assert len(ids) > 3
    pieces = [target.push(i).text for i in ids]
    assert "🦊" in "".join(pieces)
    assert all(p in {"", "x", "🦊", "y", "🦊y"} for p in pieces)


def test_bytes_that_never_become_a_character_do_not_hold_the_rest_forever():
    lone = encode("é")[0] if len(encode("é")) > 1 else encode("🦊")[0]
    text, _, _ = push_all_lossy(detokenizer(), [lone] * 20 + encode("end"))
    assert text.endswith("end")


def push_all_lossy(target: Detokenizer, ids: list[int]) -> tuple[str, int, bool]:
    text = "".join(target.push(i).text for i in ids)
    return text + target.finish().text, len(ids), False


@given(
    st.text(alphabet="abc", max_size=30),
    st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3),
)
def test_output_ends_before_the_first_stop_string(text, stops):
    got, _, stopped = push_all(detokenizer(*stops), encode(text))
    # The stop whose end comes first wins, since text after it was never generated.
    ends = [text.find(s) + len(s) for s in stops if s in text]
    assert stopped == bool(ends)
    assert all(s not in got for s in stops)
    assert text.startswith(got)
    if not ends:
        assert got == text


def test_a_stop_string_over_token_borders_is_never_sent():
    target = detokenizer("\nuser:")
    sent = ""
    for token in encode("Hello\nus"):
        sent += target.push(token).text
    assert sent == "Hello"
    for token in encode("er: more"):
        piece = target.push(token)
        sent += piece.text
        if piece.stop:
            break
    else:
        pytest.fail("the stop string was not found")
    assert sent == "Hello"


def test_what_looked_like_a_stop_string_comes_out_when_it_is_none():
    target = detokenizer("abcd")
    assert "".join(target.push(i).text for i in encode("abcx")) == "abcx"


def test_tokens_and_logprobs_wait_with_their_text():
    target = detokenizer("END")
    pieces = [target.push(i, TokenLogprob(i, -0.5)) for i in encode("oEN")]
    sent = [t for p in pieces for t in p.token_ids]
    assert TOKENIZER.decode(sent) == "o"
    last = target.finish()
    assert last.text == "EN"
    assert len(last.logprobs) == len(last.token_ids)
    assert sent + list(last.token_ids) == encode("oEN")


def test_tokens_of_the_stop_string_are_not_reported():
    target = detokenizer("END")
    ids = encode("ok END")
    text, sent, stopped = push_all(target, ids)
    assert (text, stopped) == ("ok ", True)
    assert TOKENIZER.decode(sent).strip() in {"ok", "ok E"}


def test_special_tokens_have_no_text():
    assert push_all(detokenizer(), [*encode("a"), 1, *encode("b")])[0] == "ab"


def test_window_stays_short():
    target = detokenizer()
    for token in encode("hello " * 300):
        target.push(token)
    assert len(target.decoder._ids) < 20


@pytest.mark.parametrize("kind", [llama_tokenizer, gemma_tokenizer, lambda: metaspace_tokenizer("first"), word_pieces])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_every_kind_of_tokenizer_streams_what_it_decodes_at_once(kind, data):
    backend = tokenizer_of(kind)
    text = data.draw(st.text(alphabet="the cat's Sät 你好😀\n.,!", max_size=30))
    ids = backend.encode(text, add_special_tokens=False).ids
    target = Detokenizer(TokenDecoder(backend))
    pieces = [target.push(token).text for token in ids]
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + target.finish().text == backend.decode(ids)


def test_a_first_space_is_remembered_over_special_tokens():
    backend = metaspace_tokenizer("first").backend_tokenizer
    ids = backend.encode("ä" * 9 + " the", add_special_tokens=False).ids
    target = Detokenizer(TokenDecoder(backend))
    assert "".join(target.push(token).text for token in ids) + target.finish().text == backend.decode(ids) == " the"


@given(st.text(alphabet="ab é🦊", max_size=12), st.text(alphabet="ab é🦊", max_size=12))
def test_the_prompt_is_context_and_no_output(prompt, text):
    ids = encode(prompt)
    assert push_all(detokenizer(prompt=tuple(ids)), encode(text))[0] == text


def test_the_whole_characters_of_a_token_do_not_wait_for_the_broken_one():
    fox = encode("🦊")
    target = Detokenizer(TokenDecoder(TOKENIZER))
    assert [target.push(token).text for token in [*encode("a"), fox[0]]] == ["a", ""]
    target = Detokenizer(TokenDecoder(BytesTokenizer({1: b"x\xc3", 2: b"\xa9y"})))
    assert [target.push(token).text for token in (1, 2)] == ["x", "éy"]


@pytest.mark.parametrize("start", [[], encode("a")])
def test_tokens_without_text_do_not_lengthen_the_window(start):
    target = detokenizer()
    for token in [*start, *[1] * 100]:
        target.push(token)
    assert len(target.decoder._ids) <= MAX_OPEN_TOKENS + 1
    assert push_all(target, encode("b"))[0] == "b"


def test_special_tokens_have_text_where_they_are_not_skipped():
    target = Detokenizer(TokenDecoder(TOKENIZER, skip_special_tokens=False))
    assert push_all(target, [*encode("a"), 1, *encode("b")])[0] == f"a{TOKENIZER.id_to_token(1)}b"


def test_a_stop_string_can_be_included():
    target = Detokenizer(TokenDecoder(TOKENIZER), ("END", "ENDE"), include_stop=True)
    assert push_all(target, encode("ok ENDE"))[::2] == ("ok END", True)


def test_a_stop_token_has_its_text_only_where_it_is_included():
    (token,) = encode("b")
    silent = detokenizer()
    assert silent.push_stop(token).text + silent.finish().text == ""
    target = Detokenizer(TokenDecoder(TOKENIZER), ("bc",), include_stop=True)
    assert target.push_stop(token).text == "b"


def test_stop_strings_count_after_the_first_tokens_only():
    ids = encode("xaxbxcx")
    assert len(ids) == 7
    target = Detokenizer(TokenDecoder(TOKENIZER), ("x",), min_tokens=3)
    assert push_all(target, ids)[::2] == ("xaxb", True)
