"""The demo copies: JSON with the fields of a sentence, what was said turns ago, through the official client.

The values are held out of the demo's training corpus (`tools.demo_model.coinage.HELD_OUT`), so none can be remembered.
"""

from __future__ import annotations

import json

import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tools.demo_model.coinage import HELD_OUT

BASE = {"model": "demo", "temperature": 0, "max_tokens": 60}


class Person(BaseModel):
    name: str
    age: int
    city: str


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def answer(client, messages: list[dict[str, str]], **fields: object) -> str:
    done = client.chat.completions.create(**{**BASE, **fields}, messages=messages)
    strict = ChatCompletion.model_validate(done.to_dict(), strict=True)
    assert strict.choices[0].finish_reason == "stop"
    return strict.choices[0].message.content or ""


PEOPLE = [("Ingrid", 34, "Quito"), ("Dmitri", 71, "Lisbon"), ("Zorvik", 28, "Nairobi"), ("Leopold", 45, "Tralmok")]


@pytest.mark.parametrize(("name", "age", "city"), PEOPLE)
def test_a_schema_is_filled_with_what_was_said(client, name, age, city):
    assert {name, city} <= HELD_OUT
    messages = [user(f"{name} is {age} years old and lives in {city}. Give me name, age and city as JSON.")]
    done = client.chat.completions.parse(**BASE, messages=messages, response_format=Person)
    assert done.choices[0].message.parsed == Person(name=name, age=age, city=city)


@pytest.mark.parametrize(("name", "age", "city"), PEOPLE)
def test_json_without_a_schema_has_what_was_asked_for(client, name, age, city):
    messages = [user(f"{name} is {age} years old and lives in {city}. Give me city and name as JSON.")]
    told = json.loads(answer(client, messages))
    assert {"city": city, "name": name}.items() <= told.items()


@pytest.mark.parametrize("name", ["Zorvik", "Jorunda", "Quendar", "Ottoline"])
def test_a_name_is_remembered_two_turns_later(client, name):
    assert name in HELD_OUT
    messages = [user(f"My name is {name}.")]
    for question in ("Where does the cat live?", "What is my name?"):
        messages.append({"role": "assistant", "content": answer(client, messages)})
        messages.append(user(question))
    assert answer(client, messages) == f"Your name is {name}."


@pytest.mark.parametrize("words", ["Zorvik 41 Lisbon", "Felowin", "Brumgar Skandor 7"])
def test_words_are_repeated(client, words):
    assert answer(client, [user(f"Repeat after me: {words}")]) == words


def test_each_chat_keeps_its_own_name(client):
    """Nothing leaks from one chat to another that runs in the same batch or shares a prefix in the cache."""
    for name in ("Ingrid", "Jorunda", "Ingrid"):
        messages = [user(f"My name is {name}."), {"role": "assistant", "content": f"Hello {name}!"}]
        assert answer(client, [*messages, user("What is my name?")]) == f"Your name is {name}."
