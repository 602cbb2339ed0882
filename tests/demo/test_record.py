"""Records as JSON: the fields asked for, in the order asked for, with the values of the sentence."""

# ruff: noqa: S311 - tests want reproducible numbers, not secret ones

import json
import random
import re

from tools.demo_model.echo import read_facts, repeat_words
from tools.demo_model.record import ask_record, draw_record


def test_facts_stand_in_the_sentence():
    rng = random.Random(0)
    for _ in range(500):
        record = draw_record(rng)
        assert 2 <= len(record.facts) <= 4
        assert all(str(value).lower() in record.sentence.lower() for value in record.facts.values())
        assert record.sentence[0] == record.sentence[0].upper()
        assert record.sentence.endswith(".")
        assert not re.search(r"[{}]", record.sentence)


def test_answers_are_json_with_values_of_the_question():
    rng = random.Random(0)
    for _ in range(500):
        asked, told = ask_record(rng)
        assert "JSON" in asked
        assert all(str(value).lower() in asked.lower() for value in json.loads(told).values())


def test_fields_that_are_named_come_in_their_order():
    rng = random.Random(0)
    named = 0
    for _ in range(500):
        asked, told = ask_record(rng)
        if found := re.search(r"JSON with ([a-z_, ]+)[.:]", asked):
            assert re.split(r", | and ", found[1]) == list(json.loads(told))
            named += 1
    assert named > 50


def test_words_are_repeated_as_they_were():
    rng = random.Random(0)
    for _ in range(200):
        asked, told = repeat_words(rng)
        assert asked.endswith(told)


def test_what_is_read_stands_in_the_question():
    rng = random.Random(0)
    for _ in range(300):
        asked, told = read_facts(rng)
        assert told in asked
        assert asked.endswith("?")
