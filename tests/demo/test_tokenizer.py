"""The tokenizer: every byte has a token, specials stay out of reach of users, the template is the corpus's own."""

# ruff: noqa: S311 - tests want reproducible numbers, not secret ones

import copy
import json
import random

import pytest
from transformers import AutoTokenizer

from tools.demo_model.conversation import write_conversation
from tools.demo_model.corpus import BOS, SPECIAL_TOKENS, TURN_END, render_chat
from tools.demo_model.memory import write_memory_conversation
from tools.demo_model.toolcall import write_tool_conversation

TEXTS = ["Once upon a time.", "naïve café", "日本語", "\U0001f600", "a\n\n  b\tc", "x = 12345;", "", " ", "\x00\x7f"]


@pytest.mark.parametrize("text", TEXTS)
def test_decoding_returns_the_text(tiny_tokenizer, text):
    ids = tiny_tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tiny_tokenizer.decode(ids) == text


def test_special_tokens_have_the_first_ids(tiny_tokenizer):
    assert tiny_tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
    assert sorted(tiny_tokenizer.all_special_ids) == [0, 1, 2, 3]
    assert tiny_tokenizer.bos_token == BOS
    assert tiny_tokenizer.eos_token == TURN_END


def test_encoding_adds_bos_once(tiny_tokenizer):
    ids = tiny_tokenizer("hello")["input_ids"]
    assert ids[0] == tiny_tokenizer.bos_token_id
    assert ids.count(tiny_tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("marker", SPECIAL_TOKENS)
def test_user_text_never_becomes_special(tiny_tokenizer, marker):
    own = copy.deepcopy(tiny_tokenizer)  # the option stays set on the tokenizer's backend
    ids = own(f"a{marker}b {marker}", add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert not set(ids) & set(tiny_tokenizer.all_special_ids)
    assert tiny_tokenizer.decode(ids) == f"a{marker}b {marker}"


def test_digits_are_single_tokens(tiny_tokenizer):
    assert len(tiny_tokenizer("2026", add_special_tokens=False)["input_ids"]) == 4


@pytest.mark.parametrize("name", ["Lisbon", "Zorvik", "Port Zorvik", "4821"])
def test_names_have_the_same_tokens_in_a_sentence_and_in_json(tiny_tokenizer, name):
    own = tiny_tokenizer.tokenize(name)
    for text in (f"What is the weather in {name}?", json.dumps({"city": name}), f'Is it "{name}"?', f"{name}."):
        pieces = tiny_tokenizer.tokenize(text)
        assert any(pieces[start : start + len(own)] == own for start in range(len(pieces))), text


@pytest.mark.parametrize("write", [write_conversation, write_tool_conversation, write_memory_conversation])
def test_the_chat_template_writes_what_the_corpus_has(tiny_tokenizer, write):
    rng = random.Random(0)
    for _ in range(50):
        chat = write(rng)
        rendered = tiny_tokenizer.apply_chat_template(chat.messages, tools=chat.tools or None, tokenize=False)
        assert rendered == render_chat(chat)


def test_a_saved_tokenizer_is_read_back(tiny_tokenizer, tmp_path):
    tiny_tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("Hello there!")["input_ids"] == tiny_tokenizer("Hello there!")["input_ids"]
    assert again.chat_template == tiny_tokenizer.chat_template
    assert again.all_special_ids == tiny_tokenizer.all_special_ids
