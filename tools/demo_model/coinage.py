"""Values that cannot be known beforehand: made-up words, many names, numbers. The model can only copy them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tools.demo_model.phrase import word_list
from tools.demo_model.world import PEOPLE

ONSETS = (*word_list("b br c ch d dr f fl g gr h j k kl l m n p pl qu r s sh sk st t th tr v w x y z"), "", "")
VOWELS = word_list("a e i o u a e i o u ai ea ee ia io oa oo ou")
CODAS = word_list("b ck d g k l ll lt m n nd ng nt p r rk rn s sh ss st t th v x z") + ("",) * 8
FIRST_NAMES = tuple(person.name for person in PEOPLE) + word_list(
    "Adam Alice Amir Arthur Bruce Carla Carlos Chloe Daniel David Diana Edgar Elena Emma Eric Fatima Frank George "
    "Grace Hana Hans Helen Henry Igor Ines Jane John Karl Kate Kenji Laura Linda Lucas Maria Martin Mary Nadia Nina "
    "Omar Pablo Peter Priya Rachel Robert Sara Simon Sofia Steve Susan Thomas Uma Victor Walter Wendy Yara Yusuf"
)
CITIES = word_list(
    "Paris London Rome Berlin Oslo Madrid Vienna Tokyo Cairo Lima Athens Boston Chicago Dallas Delhi Denver Dublin "
    "Geneva Hamburg Hanoi Havana Helsinki Houston Istanbul Jakarta Karachi Kyoto Lagos Lyon Manila Mexico Miami Milan "
    "Moscow Munich Naples Osaka Porto Prague Riga Seattle Seoul Shanghai Sydney Tehran Toronto Venice Warsaw Zurich"
)
THINGS = word_list(
    "apple bag ball bell boat book bottle bread brush cake camera candle car chair clock coat coin cup desk door drum "
    "flute hammer hat kite knife ladder lamp map mirror pen phone piano pizza plate radio ring rope shoe spoon table "
    "tent ticket train vase violin watch wheel window"
)
# Values that the corpus never holds, so that copying them in a test is copying and not remembering.
HELD_OUT = frozenset(
    word_list(
        "Lisbon Nairobi Quito Reykjavik Bogota Tallinn Samarkand Zorvik Tralmok Quendar Belphora Mistova Harkwell "
        "Ingrid Dmitri Beatrice Leopold Ottoline Xanthe Brumgar Felowin Skandor Veltrip Jorunda Plimsey Wexalor"
    )
)
WHOLE_NUMBERS = ((9, 3), (99, 5), (999, 3), (9999, 2), (99999, 1))


def coin_word(rng: random.Random) -> str:
    """Return a made-up lower-case word of one to three syllables."""
    syllables = rng.choices((1, 2, 3), weights=(2, 5, 2))[0]
    word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(syllables))
    return coin_word(rng) if len(word) < 3 or word.capitalize() in HELD_OUT else word


def coin_name(rng: random.Random) -> str:
    """Return a made-up name, capitalised."""
    return coin_word(rng).capitalize()


def draw_person(rng: random.Random) -> str:
    """Return a first name; half of them are made up."""
    return _known_or_coined(FIRST_NAMES, rng)


def draw_city(rng: random.Random) -> str:
    """Return a city; half of them are made up, and one in twelve has two words."""
    if rng.random() < 1 / 12:
        return f"{rng.choice(('New', 'Port', 'Saint', 'Old', 'Fort'))} {coin_name(rng)}"
    return _known_or_coined(CITIES, rng)


def draw_thing(rng: random.Random) -> str:
    """Return a thing; one in three is made up."""
    return coin_word(rng) if rng.random() < 1 / 3 else rng.choice(THINGS)


def draw_number(rng: random.Random) -> int:
    """Return an integer of one to five digits, small ones more often."""
    largest = rng.choices([top for top, _ in WHOLE_NUMBERS], weights=[weight for _, weight in WHOLE_NUMBERS])[0]
    return rng.randint(1, largest)


def draw_word(rng: random.Random) -> str:
    """Return any of the above as text."""
    return str(rng.choice((coin_word, coin_name, draw_person, draw_city, draw_thing, draw_number))(rng))


def _known_or_coined(known: Sequence[str], rng: random.Random) -> str:
    return coin_name(rng) if rng.random() < 0.5 else rng.choice(known)
