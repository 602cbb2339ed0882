"""Facts to write as JSON: the values are copied from the sentence, under the requested keys."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.demo_model.coinage import coin_name, draw_city, draw_number, draw_person, draw_thing
from tools.demo_model.story_request import Exchange
from tools.demo_model.world import ANIMALS, COLOURS, DAYS, FOODS

Value = str | int


@dataclass(frozen=True, slots=True)
class Field:
    """One fact: its possible keys, the clause that states it (`{v}`), and how a value is drawn."""

    keys: tuple[str, ...]
    clause: str
    draw: Callable[[random.Random], Value]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of record: its name comes first in the sentence, followed by some of the fields."""

    head: Field
    fields: tuple[Field, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """A sentence, and its facts by key, in the order of the sentence."""

    sentence: str
    facts: dict[str, Value]


def draw_age(rng: random.Random) -> int:
    """Return an age in years."""
    return rng.randint(1, 99)


def draw_title(rng: random.Random) -> str:
    """Return one or two made-up capitalised words."""
    return " ".join(coin_name(rng) for _ in range(rng.choice((1, 1, 2))))


JOBS = ("baker", "teacher", "farmer", "doctor", "sailor", "painter", "cook", "singer", "driver", "pilot")
CITY_KEYS = ("city", "place", "town", "home")
KINDS: tuple[Kind, ...] = (
    Kind(
        Field(("name", "person", "name", "first_name"), "{v}", draw_person),
        (
            Field(("age", "years"), "is {v} years old", draw_age),
            Field(CITY_KEYS, "lives in {v}", draw_city),
            Field(("job", "work"), "works as a {v}", lambda rng: rng.choice(JOBS)),
            Field(("pet", "animal"), "has a {v}", lambda rng: rng.choice(ANIMALS).name),
            Field(("food", "likes"), "likes {v}", lambda rng: rng.choice(FOODS)),
            Field(("friend", "friend_name"), "knows {v}", draw_person),
        ),
    ),
    Kind(
        Field(("item", "product", "thing"), "the {v}", draw_thing),
        (
            Field(("price", "cost"), "costs {v} coins", draw_number),
            Field(("color", "colour"), "is {v}", lambda rng: rng.choice(COLOURS)),
            Field(("weight",), "weighs {v} pounds", draw_number),
            Field(("owner",), "belongs to {v}", draw_person),
            Field(CITY_KEYS, "comes from {v}", draw_city),
        ),
    ),
    Kind(
        Field(("event", "title"), "the {v} party", draw_title),
        (
            Field(("city", "place", "location"), "is in {v}", draw_city),
            Field(("day", "date"), "is on {v}", lambda rng: rng.choice(DAYS)),
            Field(("guests", "people"), "has {v} guests", draw_number),
            Field(("host",), "is given by {v}", draw_person),
        ),
    ),
)


def draw_record(rng: random.Random) -> Record:
    """Return a record with a name and one to three facts."""
    kind = rng.choice(KINDS)
    fields = rng.sample(kind.fields, rng.randint(1, 3))
    values = [field.draw(rng) for field in (kind.head, *fields)]
    head, *clauses = [field.clause.format(v=value) for field, value in zip((kind.head, *fields), values, strict=True)]
    sentence = f"{head} {', '.join(clauses[:-1])}{' and ' if len(clauses) > 1 else ''}{clauses[-1]}."
    keys = [rng.choice(field.keys) for field in (kind.head, *fields)]
    return Record(sentence[0].upper() + sentence[1:], dict(zip(keys, values, strict=True)))


def ask_record(rng: random.Random) -> Exchange:
    """Ask to write a sentence as JSON: all of it, or the named fields in their order."""
    record = draw_record(rng)
    if rng.random() < 0.4:
        keys = rng.sample(list(record.facts), len(record.facts)) if rng.random() < 0.3 else list(record.facts)
        wanted = rng.choice(("Give me this as JSON", "Write this as JSON", "Answer as JSON", "As JSON", "JSON"))
    else:
        keys = rng.sample(list(record.facts), rng.randint(1, len(record.facts)))
        listed = " and ".join(filter(None, (", ".join(keys[:-1]), keys[-1])))
        wanted = rng.choice(("Give me {k} as JSON", "Write {k} as JSON", "Answer as JSON with {k}", "JSON with {k}"))
        wanted = wanted.format(k=listed)
    asked = rng.choice((f"{record.sentence} {wanted}.", f"{wanted}: {record.sentence}"))
    return asked, json.dumps({key: record.facts[key] for key in keys})
