"""Short stories: a hero, a friend, a place and one mood that colours every sentence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from tools.demo_model.arc import ARCS
from tools.demo_model.mood import MOODS, Mood
from tools.demo_model.phrase import sentence
from tools.demo_model.world import (
    ANIMAL_NAMES_HE,
    ANIMAL_NAMES_SHE,
    ANIMALS,
    COLOURS,
    FIND_VERBS,
    FOODS,
    HOMES,
    PEOPLE,
    PLACES,
    Animal,
    Place,
)

OPENINGS = (
    "once upon a time there was a {adj} {hero} named {name}",
    "{name} was a {adj} {hero}",
    "there once was a {look} {hero} called {name}. {He} was very {adj}",
    "one day, a {adj} {hero} named {name} woke up early",
    "once there lived a {adj} {hero} {land_where}. {His} name was {name}",
    "long ago, a {hero} named {name} lived in {home}",
    "in a {land} far away lived a {adj} {hero} named {name}",
    "{name}, a {look} {hero}, was {adj} [this morning|today|that day]",
    "this is the story of {name}, a {adj} {hero}",
)
SETTINGS = (
    "it was [early|late|noon|morning|evening], and {sky}",
    "{sky}",
    "{he} lived in {home} with {friend}",
    "{he} lived in {home} {land_where}",
    "{his} friend {friend} was a {adj2} {kind2}",
    "everyone called {him} {adj} {name}",
)
EVENTS = (
    "{where}, {he} {found} a {colour} {thing}",
    "{name} {act}",
    "{he} {act} and {act}",
    "{name} met a {adj} {kind2} named {friend}",
    "{friend} {adv} showed {him} a {thing}",
    '"I feel so {adj}," said {name}',
    '"why are you {adj}?" asked {friend}',
    "{sky}",
    "[then|after that|soon], {he} {act}",
    "{he} {adv} opened the {thing}",
    "{name} {adv} ate the {food}",
    "then {friend} {act}",
    "{he} felt {feeling} in {his} heart",
    '"look, a {thing}!" said {friend}',
    "{name} and {friend} {act}",
    "suddenly, {he} saw a {thing}",
    "{he} {act}, and {friend} {act} too",
)
WORKS = ("boat", "swing", "kite", "cart", "hut", "bridge", "ladder", "clock", "chair", "table")
DIARY = (
    "dear diary, today I was {where}",
    "I saw a {colour} {thing} {where}",
    "I felt {adj} all day",
    "{sky}",
    "{place_sight}",
    "my friend {friend} {act}",
    "I {adv} ate some {food}",
    "I think about {friend} and feel {feeling}",
)


@dataclass(frozen=True, slots=True)
class StoryPlan:
    """The topic of a story; None leaves the choice to chance. `length` is a number of sentences."""

    mood: Mood | None = None
    animal: Animal | None = None
    place: Place | None = None
    name: str | None = None
    length: int | None = None


@dataclass(slots=True)
class Scene:
    """The choices made for one story: its slots for templates, and the animal among its heroes."""

    mood: Mood
    place: Place
    animal: Animal | None
    slots: dict[str, str | Sequence[str]] = field(default_factory=dict)


def pick_mood(rng: random.Random) -> Mood:
    """Return a mood, drawn by weight."""
    return rng.choices(MOODS, weights=[mood.weight for mood in MOODS])[0]


def pick_animal(rng: random.Random) -> Animal:
    """Return an animal; cats are three times as frequent as others."""
    return rng.choices(ANIMALS, weights=[3 if animal.name == "cat" else 1 for animal in ANIMALS])[0]


def pick_place(rng: random.Random) -> Place:
    """Return a place; the sea is three times as frequent as others."""
    return rng.choices(PLACES, weights=[3 if place.name == "sea" else 1 for place in PLACES])[0]


def write_story(plan: StoryPlan, rng: random.Random) -> str:
    """Return a story of 3 to 12 sentences in one mood."""
    scene = build_scene(plan, rng)
    length = plan.length or rng.choice((3, 4, 5, 5, 6, 6, 7, 8, 9, 10, 12))
    if length == 1:
        return _say(("once there was a {adj} {hero} named {name} who {act} {where}",), scene, rng)
    parts = [_say(OPENINGS, scene, rng)]
    if length > 3:
        parts.append(_say(SETTINGS, scene, rng))
    tail = [_say(scene.mood.results, scene, rng)] if length > 4 else []
    tail.append(_say(scene.mood.endings, scene, rng))
    return " ".join(parts + _middle(scene, length - len(parts) - len(tail), rng) + tail)


def write_diary(plan: StoryPlan, rng: random.Random) -> str:
    """Return a diary entry of 3 to 6 sentences in the first person."""
    scene = build_scene(plan, rng)
    parts = [_say(DIARY[:1], scene, rng)]
    _append_distinct(parts, rng.randint(2, 5), lambda: _say(DIARY[1:], scene, rng))
    return " ".join(parts)


def mood_sentence(mood: Mood, name: str, pronoun: str, rng: random.Random) -> str:
    """Return one sentence of `mood` about `name`."""
    scene = build_scene(StoryPlan(mood=mood, name=name), rng)
    scene.slots.update(_pronouns(pronoun))
    return _say(mood.sentences, scene, rng)


def build_scene(plan: StoryPlan, rng: random.Random) -> Scene:
    """Choose everything that the plan leaves open."""
    mood, place = plan.mood or pick_mood(rng), plan.place or pick_place(rng)
    animal = plan.animal or (pick_animal(rng) if plan.name is None and rng.random() < 0.7 else None)
    scene = Scene(mood, place, animal)
    scene.slots.update(_mood_slots(mood), **_place_slots(place), **_hero_slots(animal, plan.name, rng))
    scene.slots.update(_friend_slots(str(scene.slots["name"]), rng))
    scene.slots["adj"] = rng.choice(mood.adjectives)
    land = rng.choice([other for other in PLACES if other != place])
    scene.slots.update(
        land=land.name,
        land_where=land.where,
        work=rng.choice(WORKS),
        look=rng.choice(COLOURS if animal else mood.adjectives),
    )
    scene.slots.update(
        thing=rng.choice(place.things),
        food=rng.choice(FOODS),
        colour=rng.choice(COLOURS),
        home=rng.choice(HOMES),
        found=FIND_VERBS,
    )
    return scene


def _mood_slots(mood: Mood) -> dict[str, Sequence[str]]:
    return {"adj2": mood.adjectives, "adv": mood.adverbs, "act": mood.acts, "feeling": mood.feelings, "sky": mood.skies}


def _place_slots(place: Place) -> dict[str, str | Sequence[str]]:
    return {"place": place.name, "where": place.where, "place_sight": place.sights}


def _hero_slots(animal: Animal | None, name: str | None, rng: random.Random) -> dict[str, str]:
    if animal is not None:
        pronoun = rng.choice(("he", "she"))
        names = ANIMAL_NAMES_HE if pronoun == "he" else ANIMAL_NAMES_SHE
        return {
            "hero": rng.choice((animal.name, animal.name, animal.young)),
            "name": name or rng.choice(names),
            **_pronouns(pronoun),
        }
    known = [person for person in PEOPLE if person.name == name]
    person = known[0] if known else rng.choice(PEOPLE)
    return {"hero": person.kind, "name": name or person.name, **_pronouns(person.pronoun)}


def _friend_slots(hero_name: str, rng: random.Random) -> dict[str, str]:
    if rng.random() < 0.5:
        person = rng.choice([person for person in PEOPLE if person.name != hero_name])
        return {"friend": person.name, "kind2": person.kind}
    names = [name for name in ANIMAL_NAMES_HE + ANIMAL_NAMES_SHE if name != hero_name]
    return {"friend": rng.choice(names), "kind2": rng.choice(ANIMALS).name}


def _pronouns(pronoun: str) -> dict[str, str]:
    return {"he": "he", "his": "his", "him": "him"} if pronoun == "he" else {"he": "she", "his": "her", "him": "her"}


def _middle(scene: Scene, count: int, rng: random.Random) -> list[str]:
    """Return `count` sentences: the beats of one arc in order, with mood, animal and place in between."""
    if count <= 0:
        return []
    arc = rng.choice(ARCS)
    beats = arc.beats[:count] if count < 5 else arc.beats
    spots = sorted(rng.sample(range(1, count), len(beats) - 1)) if count > 1 else []
    parts: list[str] = []
    for position in range(count):
        if position == 0 or position in spots:
            parts.append(_say(beats[0 if position == 0 else spots.index(position) + 1], scene, rng))
        else:
            _append_distinct(parts, 1, lambda: _event(scene, rng))
    return parts


def _event(scene: Scene, rng: random.Random) -> str:
    draw = rng.random()
    if draw < 0.36:
        return _say(scene.mood.sentences, _by_kind(scene, rng), rng)
    if scene.animal is not None and draw < 0.6:
        return _say(scene.animal.habits, _by_kind(scene, rng), rng)
    if draw > 0.82:
        return _say(scene.place.sights, scene, rng)
    return _say(EVENTS, scene, rng)


def _by_kind(scene: Scene, rng: random.Random) -> Scene:
    """Return the scene; in one of three cases its hero is called "the cat" instead of by name."""
    if rng.random() < 0.67:
        return scene
    return replace(scene, slots={**scene.slots, "name": f"the {scene.slots['hero']}"})


def _say(templates: Sequence[str], scene: Scene, rng: random.Random) -> str:
    return sentence(rng.choice(templates), scene.slots, rng)


def _append_distinct(parts: list[str], count: int, write: Callable[[], str]) -> None:
    """Append `count` new sentences (accepting a duplicate after five tries)."""
    for _ in range(count):
        candidates = (write() for _ in range(5))
        parts.append(next((text for text in candidates if text not in parts), write()))
