"""Requests to repeat something, and questions that contain their answer."""

from __future__ import annotations

import random

from tools.demo_model.coinage import coin_name, draw_city, draw_number, draw_person, draw_thing, draw_word
from tools.demo_model.story_request import Exchange

REPEAT = ("Repeat after me: {x}", "Repeat: {x}", "Say this: {x}", "Please repeat: {x}", "Say {x}", "Write {x}")
# A fact, questions about it, and the answer; `{a}` and `{b}` are drawn anew each time.
READINGS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("{person} lives in {city}.", ("Where does {person} live?",), "{person} lives in {city}."),
    ("{person} lives in {city}.", ("Who lives in {city}?",), "{person} lives in {city}."),
    ("{person} is {number} years old.", ("How old is {person}?",), "{person} is {number} years old."),
    ("{person} has a {thing}.", ("What does {person} have?", "What has {person} got?"), "{person} has a {thing}."),
    ("The {thing} costs {number} coins.", ("How much is the {thing}?",), "The {thing} costs {number} coins."),
    ("The {thing} is in {city}.", ("Where is the {thing}?",), "The {thing} is in {city}."),
    ("The {thing} belongs to {person}.", ("Whose {thing} is it?",), "The {thing} belongs to {person}."),
    ("{person} met {name} in {city}.", ("Who met {name}?", "Where did they meet?"), "{person} met {name} in {city}."),
)


def repeat_words(rng: random.Random) -> Exchange:
    """Return one to twelve words and their repetition."""
    words = " ".join(draw_word(rng) for _ in range(rng.randint(1, 12)))
    return rng.choice(REPEAT).format(x=words), words


def write_drill(rng: random.Random) -> str:
    """Return a few made-up words, line after line in the same order, which the model can only copy."""
    line = " ".join(draw_word(rng) for _ in range(rng.randint(2, 16)))
    return "\n".join([line] * rng.randint(2, 5))


def read_facts(rng: random.Random) -> Exchange:
    """Return one to three facts and a question about one of them."""
    told = []
    for fact, questions, answer in rng.sample(READINGS, rng.randint(1, 3)):
        values = {
            "person": draw_person(rng),
            "name": coin_name(rng),
            "city": draw_city(rng),
            "thing": draw_thing(rng),
            "number": draw_number(rng),
        }
        told.append([text.format(**values) for text in (fact, rng.choice(questions), answer)])
    _, question, answer = rng.choice(told)
    return f"{' '.join(fact for fact, _, _ in told)} {question}", answer
