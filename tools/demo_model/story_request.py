"""Requests for stories, and the stories that answer them."""

from __future__ import annotations

import random

from tools.demo_model.coinage import draw_person
from tools.demo_model.mood import MOODS, Mood
from tools.demo_model.phrase import expand
from tools.demo_model.story import StoryPlan, pick_animal, pick_place, write_diary, write_story
from tools.demo_model.world import NUMBER_WORDS, PEOPLE

Exchange = tuple[str, str]

PROMPT_MOODS = {
    "joyful": ("happy", "joyful", "cheerful", "funny"),
    "gloomy": ("sad", "gloomy", "lonely"),
    "scared": ("scary", "spooky"),
    "calm": ("calm", "quiet", "peaceful"),
    "neutral": ("short", "simple", "little"),
}
ASK_STORY = (
    "Tell me a story.",
    "Write a story.",
    "Tell me a short story.",
    "Can you tell me a story?",
    "I want to hear a story.",
    "Please tell me a story.",
    "Write a short story.",
    "Tell me another story.",
    "Make up a story.",
    "Tell a story.",
    "Could you tell me a story?",
    "Write me a story.",
    "Write a few sentences.",
    "Write something.",
    "A story, please.",
)


def tell_story(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a story without a topic."""
    return rng.choice(ASK_STORY), write_story(StoryPlan(mood=mood), rng)


def tell_story_of_mood(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a story in a given mood."""
    chosen = mood or rng.choice(MOODS)
    asked = expand("[Tell me|Write|Please tell me] a [{m}|{m}|{m} short] story.", {"m": PROMPT_MOODS[chosen.name]}, rng)
    return asked, write_story(StoryPlan(mood=chosen), rng)


def tell_story_of_topic(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a story about an animal, a place, or both; one in three also names a mood."""
    animal, place = pick_animal(rng), pick_place(rng)
    about = rng.choice(("a {a}", "a {a}", "the {p}", "a {a} {w}", "a {a} and the {p}"))
    wanted = (mood or rng.choice(MOODS)) if rng.random() < 0.35 else None
    kinds = PROMPT_MOODS[wanted.name] if wanted else ("", "", "short")
    slots = {"a": animal.name, "p": place.name, "w": place.where, "m": rng.choice(kinds)}
    asked = expand("[Write|Tell me|Please write|Tell me|Write|Can you write] a {m} story about " + about, slots, rng)
    asked = asked.replace("  ", " ") + ("?" if asked.startswith("Can") else ".")
    plan = StoryPlan(wanted or mood, animal if "{a}" in about else None, None if about == "a {a}" else place)
    return asked, write_story(plan, rng)


def tell_story_of_person(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a story about a person of the world, or about a new name."""
    name = rng.choice(PEOPLE).name if rng.random() < 0.6 else draw_person(rng)
    return expand("[Tell me a story|Write a story|Write a short story] about {n}.", {"n": name}, rng), write_story(
        StoryPlan(mood=mood, name=name), rng
    )


def tell_story_of_length(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a story of one to five sentences."""
    length = rng.randint(1, 5)
    asked = expand(
        "[Tell me|Write] a story [in|with] {n} sentence{s}.",
        {"n": NUMBER_WORDS[length], "s": "" if length == 1 else "s"},
        rng,
    )
    return asked, write_story(StoryPlan(mood=mood, length=length), rng)


def continue_story(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask to continue a story whose first sentences the user gives."""
    first, second, *rest = write_story(StoryPlan(mood=mood, length=rng.randint(5, 9)), rng).split(". ")
    lead = rng.choice(("Continue: ", "Continue this story: ", "What happens next? ", ""))
    return f"{lead}{first}. {second}.", ". ".join(rest)


def write_letter(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a diary entry."""
    return rng.choice(("Write a diary entry.", "What did you do today?", "Write in your diary.")), write_diary(
        StoryPlan(mood), rng
    )
