"""Chat turns of the demo world: questions, their answers, and system turns."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.demo_model.mood import Mood, mood_named
from tools.demo_model.phrase import expand
from tools.demo_model.question import (
    ask_animal,
    ask_fact,
    ask_feeling,
    ask_identity,
    ask_person,
    ask_sum,
    ask_unknown,
    ask_weather,
    describe,
    greet,
)
from tools.demo_model.story import StoryPlan, pick_animal, pick_place, write_story
from tools.demo_model.story_request import (
    ASK_STORY,
    Exchange,
    continue_story,
    tell_story,
    tell_story_of_length,
    tell_story_of_mood,
    tell_story_of_person,
    tell_story_of_topic,
    write_letter,
)

Message = dict[str, Any]
Teller = Callable[[random.Random, Mood | None], Exchange]


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat as OpenAI messages, with the tools offered in it."""

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)


SYSTEM_PLAIN = (
    "You are a helpful storyteller.",
    "You are a helpful assistant.",
    "You are a kind assistant.",
    "You answer briefly.",
    "You are miLLM.",
    "You are a friendly storyteller for children.",
    "You tell short stories.",
    "Answer in short sentences.",
    "You are a helpful assistant. Keep your answers short.",
)
SYSTEM_ANIMALS = ("You tell stories about {pl}.", "You love {pl}.", "Always talk about {pl}.")
SYSTEM_PLACES = ("You tell stories about the {p}.", "You love the {p}.", "Always talk about the {p}.", "You live {w}.")
SYSTEM_MOODS: dict[str, tuple[str, ...]] = {
    "joyful": ("You are a cheerful storyteller.", "Always be happy and cheerful.", "You are a joyful assistant."),
    "gloomy": ("You are a gloomy storyteller.", "Always be sad and gloomy.", "You are a gloomy assistant."),
    "calm": ("You are a calm storyteller.", "Always be calm and gentle."),
    "scared": ("You tell scary stories.", "Always be afraid."),
}
TELLERS: tuple[tuple[Teller, float], ...] = (
    (tell_story, 24),
    (tell_story_of_mood, 9),
    (tell_story_of_topic, 18),
    (tell_story_of_person, 5),
    (tell_story_of_length, 4),
    (continue_story, 4),
    (write_letter, 3),
    (ask_weather, 6),
    (ask_animal, 7),
    (describe, 6),
    (ask_person, 10),
    (ask_feeling, 4),
    (ask_sum, 3),
    (ask_fact, 4),
    (ask_identity, 3),
    (ask_unknown, 2),
    (greet, 4),
)


def write_conversation(rng: random.Random) -> Conversation:
    """Return a chat of one to four exchanges. A mood in the system message applies to all of them."""
    messages: list[Message] = []
    mood = None
    draw = rng.random()
    if draw < 0.12:
        mood = mood_named(rng.choice(list(SYSTEM_MOODS)))
        messages.append({"role": "system", "content": rng.choice(SYSTEM_MOODS[mood.name])})
    elif draw < 0.22:
        return write_themed_conversation(rng)
    elif draw < 0.45:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PLAIN)})
    for _ in range(rng.choices((1, 2, 3, 4), weights=(70, 16, 9, 5))[0]):
        messages += exchange(rng, mood)
    return Conversation(messages)


def write_themed_conversation(rng: random.Random) -> Conversation:
    """Return a chat with a topic in the system message, and one or two stories about it."""
    animal, place = pick_animal(rng), pick_place(rng)
    templates, plan = rng.choice(((SYSTEM_ANIMALS, StoryPlan(animal=animal)), (SYSTEM_PLACES, StoryPlan(place=place))))
    system = expand(rng.choice(templates), {"pl": animal.plural, "p": place.name, "w": place.where}, rng)
    messages: list[Message] = [{"role": "system", "content": system}]
    for _ in range(rng.choice((1, 1, 2))):
        messages += turns(_as_typed(rng.choice(ASK_STORY), rng), write_story(plan, rng))
    return Conversation(messages)


def exchange(rng: random.Random, mood: Mood | None) -> list[Message]:
    """Return one question with its answer, as two messages."""
    teller = rng.choices([teller for teller, _ in TELLERS], weights=[weight for _, weight in TELLERS])[0]
    asked, told = teller(rng, mood)
    return turns(_as_typed(asked, rng), told)


def turns(asked: str, told: str) -> list[Message]:
    """Return a question and its answer as two messages."""
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]


def _as_typed(text: str, rng: random.Random) -> str:
    """Write the question carelessly, as users do: sometimes without capitals, sometimes without the final mark."""
    if rng.random() < 0.1:
        text = text.lower()
    return without_mark(text, rng)


def without_mark(text: str, rng: random.Random) -> str:
    """Return the text, in one of ten cases without its final punctuation."""
    return text.rstrip(".!?") or text if rng.random() < 0.1 else text
