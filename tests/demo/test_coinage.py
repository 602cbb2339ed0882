"""Values to copy: many, seldom twice the same, and never one that tests hold back."""

# ruff: noqa: S311 - tests want reproducible numbers, not secret ones

import random
import re

import pytest

from tools.demo_model.coinage import (
    CITIES,
    FIRST_NAMES,
    HELD_OUT,
    THINGS,
    coin_name,
    coin_word,
    draw_city,
    draw_number,
    draw_person,
    draw_thing,
    draw_word,
)


def test_made_up_words_seldom_come_twice():
    rng = random.Random(0)
    assert len({coin_word(rng) for _ in range(2000)}) > 1900


@pytest.mark.parametrize("coin", [coin_word, coin_name])
def test_made_up_words_are_letters(coin):
    rng = random.Random(0)
    for _ in range(500):
        assert re.fullmatch(r"[A-Za-z][a-z]{2,}", coin(rng))


@pytest.mark.parametrize("draw", [draw_person, draw_city])
def test_names_are_made_up_as_often_as_not(draw):
    rng = random.Random(0)
    known = sum(draw(rng) in {*FIRST_NAMES, *CITIES} for _ in range(2000)) / 2000
    assert 0.4 < known < 0.6


def test_held_out_values_are_unknown_to_the_lists():
    assert not HELD_OUT & {*FIRST_NAMES, *CITIES, *(thing.capitalize() for thing in THINGS)}


def test_numbers_have_one_to_five_digits():
    rng = random.Random(0)
    assert {len(str(draw_number(rng))) for _ in range(2000)} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("draw", [draw_thing, draw_word])
def test_equal_seeds_draw_equal_values(draw):
    first, second = random.Random(5), random.Random(5)
    assert [draw(first) for _ in range(50)] == [draw(second) for _ in range(50)]
