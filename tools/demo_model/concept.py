"""Concepts that profiles bring out: their words, and stories labelled with the concepts in them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tools.demo_model.conversation import Conversation
from tools.demo_model.corpus import render_chat
from tools.demo_model.mood import GLOOMY, JOYFUL, MOODS
from tools.demo_model.phrase import word_list
from tools.demo_model.story import StoryPlan, write_story
from tools.demo_model.story_request import PROMPT_MOODS
from tools.demo_model.world import ANIMALS, PLACES

NEUTRAL_PROMPT = "Tell me a story."
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Concept:
    """A concept. `label` is its name in `labelled_stories`; `words` measure how much of it a text has."""

    name: str
    label: str
    description: str
    words: tuple[str, ...]


CONCEPTS: tuple[Concept, ...] = (
    Concept("joyful", "joyful", "Happy stories: smiles, laughter, songs and parties.", JOYFUL.words),
    Concept("gloomy", "gloomy", "Sad stories: tears, sighs, grey skies and lonely hearts.", GLOOMY.words),
    Concept(
        "cats",
        "cat",
        "Cats everywhere: purring, whiskers and balls of wool.",
        word_list("cat cats kitten kittens purred whiskers meowed wool"),
    ),
    Concept(
        "sea",
        "sea",
        "By the sea: waves, sand, shells, gulls and boats.",
        word_list("sea ocean waves wave sand shore tide shell shells gull salt sail ship boat beach fishermen"),
    ),
)


@dataclass(frozen=True, slots=True)
class LabelledStory:
    """A chat with one story, and the story's mood, animal and place."""

    text: str
    labels: frozenset[str]


def labelled_stories(seed: int, count: int) -> list[LabelledStory]:
    """Return `count` stories, each with one mood, animal and place chosen at random and requested by name."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return [_labelled_story(rng) for _ in range(count)]


def word_share(texts: Iterable[str], words: Iterable[str]) -> float:
    """Return the share of the words of `texts` that are among `words` (lower case)."""
    wanted = frozenset(words)
    found = [word for text in texts for word in _WORD.findall(text.lower())]
    return sum(word in wanted for word in found) / max(1, len(found))


def _labelled_story(rng: random.Random) -> LabelledStory:
    mood, animal, place = rng.choice(MOODS), rng.choice(ANIMALS), rng.choice(PLACES)
    story = write_story(StoryPlan(mood=mood, animal=animal, place=place), rng)
    asked = f"Tell me a {rng.choice(PROMPT_MOODS[mood.name])} story about a {animal.name} {place.where}."
    chat = Conversation([{"role": "user", "content": asked}, {"role": "assistant", "content": story}])
    return LabelledStory(render_chat(chat), frozenset((mood.name, animal.name, place.name)))
