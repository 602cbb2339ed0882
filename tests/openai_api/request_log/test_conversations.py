"""Turns of one conversation: chats of a client whose messages extend one another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User

from openai_api.keys.services import create_api_key
from openai_api.models import RequestLog
from openai_api.request_log.conversations import MAX_TURNS, earlier_chats, next_chat
from tests.openai_api.request_log.rows import row

pytestmark = pytest.mark.django_db


def said(*texts: str) -> list[dict[str, Any]]:
    """Texts of a user and the assistant in turns."""
    return [{"role": "assistant" if n % 2 else "user", "content": text} for n, text in enumerate(texts)]


def chat(number: int, *texts: str, answer: str, **fields: Any) -> RequestLog:
    """A chat as the log writes it; the higher the number, the older."""
    prompt = json.dumps(said(*texts), ensure_ascii=False)
    return row(number, prompt=prompt, completion=answer, **fields)


def turns(found: list[RequestLog]) -> list[str]:
    return [turn.pk for turn in found]


def test_each_turn_knows_those_before_and_the_next():
    first = chat(9, "Hi", answer="Hello Zoë!")
    second = chat(8, "Hi", "Hello Zoë!", "And you?", answer=" Fine.\n")
    third = chat(7, "Hi", "Hello Zoë!", "And you?", "Fine.", "Good.", answer="Bye.")
    assert turns(earlier_chats(third)) == [first.pk, second.pk]
    assert turns(earlier_chats(first)) == []
    assert [next_chat(one).pk if next_chat(one) else None for one in (first, second, third)] == [
        second.pk, third.pk, None
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"model": "other"},
        {"user": "ann"},
        {"client_address": "10.0.0.2"},
        {"endpoint": "/v1/completions"},
        {"answer": "Another answer"},
        {"texts": ("Hello",)},
        {"number": 9 + 60 * 24},
        {"number": 3},
    ],
)
def test_what_is_not_an_earlier_turn(other):
    fields = {"number": 9, "texts": ("Hi",), "answer": "Hello!", "client_address": "10.0.0.1", **other}
    texts = fields.pop("texts")
    before = chat(fields.pop("number"), *texts, **fields)
    after = chat(5, "Hi", "Hello!", "And you?", answer="Fine.", client_address="10.0.0.1")
    assert earlier_chats(after) == []
    assert next_chat(before) is None


def test_the_client_is_its_key_wherever_it_is():
    one, two = (create_api_key(name=name, owner=User.objects.create_user(name)).api_key for name in ("one", "two"))
    first = chat(9, "Hi", answer="Hello!", api_key=one, client_address="10.0.0.1")
    chat(8, "Hi", answer="Hello!", api_key=two, client_address="10.0.0.2")
    second = chat(7, "Hi", "Hello!", "And you?", answer="Fine.", api_key=one, client_address="10.0.0.2")
    assert turns(earlier_chats(second)) == [first.pk]


def test_the_newest_of_equal_turns():
    chat(9, "Hi", answer="Hello!")
    newest = chat(8, "Hi", answer="Hello!")
    chat(7, "Hi", answer="Good day!")
    after = chat(6, "Hi", "Hello!", "And you?", answer="Fine.")
    assert turns(earlier_chats(after)) == [newest.pk]


@pytest.mark.parametrize(
    "prompt", ["", "Hi", "[", "[1, 2]", "sha256:abc", "{}", "[" * 100_000, '[{"role": "assistant"}]', "[]"]
)
def test_prompts_that_are_no_messages(prompt):
    odd = row(1, prompt=prompt, completion="Hello!")
    assert earlier_chats(odd) == []
    assert next_chat(odd) is None


def test_answers_that_are_no_texts():
    row(9, prompt=json.dumps(said("Hi")), completion="Hello!")
    call = [*said("Hi"), {"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "7"}]
    assert earlier_chats(row(8, prompt=json.dumps(call))) == []


def test_a_long_conversation_is_cut():
    texts = [str(number) for number in range(2 * MAX_TURNS + 10)]
    for number in range(1, len(texts), 2):
        last = chat(len(texts) - number, *texts[:number], answer=texts[number])
    assert len(earlier_chats(last)) == MAX_TURNS


def test_on_the_page(auditor):
    chat(9, "Hi", answer="Hello!")
    second = chat(8, "Hi", "Hello!", "And you?", answer="Fine.")
    chat(7, "Hi", "Hello!", "And you?", "Fine.", "Good.", answer="Bye.")
    html = auditor.get(f"/admin/openai_api/requestlog/{second.pk}/change/").content.decode()
    assert "Turn 2, continued later" in html
    assert "/admin/openai_api/requestlog/req_5F9/change/" in html
    assert 'href="/admin/openai_api/requestlog/req_5F7/change/" rel="next"' in html
