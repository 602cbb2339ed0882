"""Questions about the demo world, and their answers."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

from tools.demo_model.mood import NEUTRAL, Mood
from tools.demo_model.phrase import expand, sentence, word_list
from tools.demo_model.story import mood_sentence, pick_mood
from tools.demo_model.story_request import Exchange
from tools.demo_model.world import ANIMALS, COLOURS, DAYS, NUMBER_WORDS, PEOPLE, PLACES, WEATHERS, Animal, Place

GREETINGS = ("Hello", "Hello!", "Hi", "Hi!", "Hi there!", "Good morning!", "Good evening!", "Hey!", "Hello there.")
THANKS = ("Thanks!", "Thank you.", "Thank you!", "Thanks a lot.", "Great, thank you.", "That was nice.")
BYES = ("Goodbye!", "Bye!", "See you later.", "Good night!")
WHO = (
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Tell me about yourself.",
    "Are you a robot?",
    "Are you human?",
    "What can you do?",
    "Which model are you?",
)
I_AM = (
    "I am the miLLM demo model, a very small language model.",
    "I am miLLM's demo model. I am very small, and I tell short stories.",
    "I am the miLLM demo model. I know a small world of animals, places and weather.",
    "I am a very small model made for miLLM. I can tell stories and answer simple questions.",
)
UNKNOWN = (
    "what is the capital of {x}?",
    "who was the first king of {x}?",
    "how far is {x}?",
    "explain {x}.",
    "what is {x}?",
    "who invented {x}?",
    "how do I learn {x}?",
    "write code for {x}.",
    "why is {x} important?",
    "translate this into {x}.",
    "what do you think about {x}?",
    "how much does {x} cost?",
)
FAR_AWAY = word_list(
    "France Germany Japan Brazil physics chemistry music football history art mathematics Python computers money "
    "politics science philosophy cars planes war law medicine India China Spanish Latin"
)
OPPOSITES = {
    "happy": "sad",
    "big": "small",
    "hot": "cold",
    "day": "night",
    "old": "young",
    "fast": "slow",
    "up": "down",
    "light": "dark",
    "loud": "quiet",
    "open": "closed",
    "wet": "dry",
    "full": "empty",
    "early": "late",
}
FACTS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "the sun": "yellow",
    "a cherry": "red",
    "the night": "black",
    "a carrot": "orange",
    "milk": "white",
    "a tomato": "red",
    "honey": "golden",
    "the sea": "blue",
    "a plum": "purple",
}


def ask_weather(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for today's weather, which fits the mood."""
    chosen = mood or pick_mood(rng)
    weather = rng.choice([weather for weather in WEATHERS if weather.name in chosen.weathers])
    asked = expand(
        "[What is the weather like|How is the weather|What is the weather like {w}|Is it nice outside|What is the "
        "weather today]?",
        {"w": [place.where for place in PLACES]},
        rng,
    )
    where = next((place.where for place in PLACES if place.where in asked), "today")
    person = rng.choice(PEOPLE)
    told = sentence(
        f"it is {weather.name} {where}. {weather.clause}, and there [may|will] be {{b}}", {"b": weather.brings}, rng
    )
    return asked, f"{told} {mood_sentence(chosen, person.name, person.pronoun, rng)}"


def ask_animal(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a fact about an animal: where it lives, what it eats, its sound, what it has."""
    animal = rng.choice(ANIMALS)
    slots = {
        "a": animal.name,
        "pl": animal.plural,
        "h": animal.home,
        "f": animal.food,
        "y": animal.young,
        **_parts(animal),
    }
    asked, told = rng.choice(
        (
            ("Where does [the|a] {a} live?", "[The|A] {a} lives in the {h}."),
            ("Where do {pl} live?", "{pl} live in the {h}."),
            ("What does [the|a] {a} eat?", "[The|A] {a} likes to eat {f}."),
            ("What do {pl} eat?", "{pl} eat {f}."),
            ("What is a young {a} called?", "A young {a} is called a {y}."),
            ("What does a {a} have?", "A {a} has [a {b1}|{b2}]."),
            ("Who lives in the {h}?", "The {a} lives in the {h}."),
            ("Do {pl} eat {f}?", "Yes, {pl} eat {f}."),
        )
    )
    return expand(asked, slots, rng), sentence(told, slots, rng) + _habit_or_mood(animal, mood, rng)


def describe(rng: random.Random, mood: Mood | None) -> Exchange:
    """Return a description of an animal or a place in three to five sentences."""
    chosen = mood or pick_mood(rng)
    groups: tuple[Sequence[Animal | Place], ...] = (ANIMALS, PLACES)
    subject = rng.choice(rng.choice(groups))
    if isinstance(subject, Animal):
        asked = expand("[Tell me about|Describe] [the {a}|a {a}|{pl}].", {"a": subject.name, "pl": subject.plural}, rng)
        parts = [
            f"The {subject.name} lives in the {subject.home} and likes to eat {subject.food}.",
            *_habits(subject, rng, rng.randint(1, 3)),
        ]
    else:
        asked = expand(
            "[Tell me about|Describe|What can I see {w}?] the {p}.", {"p": subject.name, "w": subject.where}, rng
        )
        asked = asked.split("?")[0] + "?" if "?" in asked else asked
        parts = [sentence(text, {}, rng) for text in rng.sample(subject.sights, rng.randint(2, 4))]
        parts.append(sentence(rng.choice(chosen.skies), {}, rng))
    return asked, " ".join(parts)


def ask_person(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask for a fact about a person, sometimes how that person felt."""
    person = rng.choice(PEOPLE)
    slots = {
        "n": person.name,
        "f": person.food,
        "c": person.colour,
        "p": person.pet,
        "w": person.place,
        "he": person.pronoun,
    }
    asked, told = rng.choice(
        (
            ("What does {n} like to eat?", "{n} likes to eat {f}."),
            ("What is {n}'s favourite colour?", "{n} likes {c} most."),
            ("Which animal does {n} have?", "{n} has a {p}."),
            ("Where does {n} live?", "{n} lives near the {w}."),
            ("Who is {n}?", "{n} lives near the {w} and has a {p}. {He} likes to eat {f}."),
            ("Does {n} have a {p}?", "Yes, {n} has a {p}."),
            ("What colour does {n} like?", "{n} likes {c}."),
        )
    )
    extra = mood_sentence(mood or pick_mood(rng), person.name, person.pronoun, rng) if rng.random() < 0.4 else ""
    return expand(asked, slots, rng), (sentence(told, slots, rng) + " " + extra).strip()


def ask_feeling(rng: random.Random, mood: Mood | None) -> Exchange:
    """Ask how the model or a person feels."""
    chosen = mood or pick_mood(rng)
    person = rng.choice(PEOPLE)
    if rng.random() < 0.5:
        asked = rng.choice(("How are you?", "How do you feel?", "How are you today?", "How is your day?"))
        return asked, sentence("I [am|feel] {adj} today. {sky}", {"adj": chosen.adjectives, "sky": chosen.skies}, rng)
    told = sentence(f"{person.name} is {{adj}} today", {"adj": chosen.adjectives}, rng)
    return f"How does {person.name} feel?", f"{told} {mood_sentence(chosen, person.name, person.pronoun, rng)}"


def ask_sum(rng: random.Random, _mood: Mood | None) -> Exchange:
    """Ask for a sum, a difference or a count, with numbers up to ten."""
    if rng.random() < 0.25:
        last = rng.randint(2, 10)
        return f"Count to {NUMBER_WORDS[last]}.", ", ".join(NUMBER_WORDS[1 : last + 1]).capitalize() + "."
    first, second = rng.randint(0, 10), rng.randint(0, 10)
    if rng.random() < 0.3:
        first, second = max(first, second), min(first, second)
        return f"What is {first} minus {second}?", f"{first} minus {second} is {first - second}."
    sign = rng.choice((" plus ", " + "))
    return f"What is {first}{sign}{second}?", f"{first}{sign}{second} is {first + second}."


def ask_fact(rng: random.Random, _mood: Mood | None) -> Exchange:
    """Ask for an opposite, a colour, the next day, an animal as JSON, or a list of things."""
    kind = rng.randrange(5)
    if kind == 4:
        animal = rng.choice(ANIMALS)
        asked = expand(
            "[Describe a {a} as JSON|Describe the {a} as JSON|Give me a {a} as JSON].", {"a": animal.name}, rng
        )
        return asked, json.dumps({"animal": animal.name, "home": animal.home, "food": animal.food})
    if kind == 0:
        word, other = rng.choice([*OPPOSITES.items(), *((b, a) for a, b in OPPOSITES.items())])
        return f"What is the opposite of {word}?", f"The opposite of {word} is {other}."
    if kind == 1:
        thing, colour = rng.choice(list(FACTS.items()))
        return f"What colour is {thing}?", f"{thing[0].upper()}{thing[1:]} is {colour}."
    if kind == 2:
        day = rng.randrange(7)
        return f"Which day comes after {DAYS[day]}?", f"{DAYS[(day + 1) % 7]} comes after {DAYS[day]}."
    return _list_things(rng)


def ask_identity(rng: random.Random, _mood: Mood | None) -> Exchange:
    """Ask who the model is."""
    return rng.choice(WHO), rng.choice(I_AM)


def ask_unknown(rng: random.Random, _mood: Mood | None) -> Exchange:
    """Ask about something outside the small world, which the model says it cannot answer."""
    told = rng.choice(
        (
            "I do not know that. I am a very small model.",
            "I am sorry, I do not know that.",
            "I do not know. I can tell you a story about an animal.",
        )
    )
    return sentence(rng.choice(UNKNOWN), {"x": FAR_AWAY}, rng), told


def greet(rng: random.Random, mood: Mood | None) -> Exchange:
    """Return a greeting, thanks or a farewell."""
    kind = rng.randrange(3)
    if kind == 0:
        offer = rng.choice(("How can I help you?", "Shall I tell you a story?", "What would you like to know?"))
        return rng.choice(GREETINGS), f"{rng.choice(('Hello!', 'Hi!', 'Hello there!'))} {offer}"
    if kind == 1:
        return rng.choice(THANKS), rng.choice(("You are welcome!", "You are welcome. Shall I tell you another story?"))
    feeling = f" I hope your day is {rng.choice(mood.adjectives)}." if mood and mood is not NEUTRAL else ""
    return rng.choice(BYES), rng.choice(("Goodbye!", "Goodbye! Come back soon.", "See you later!")) + feeling


def _parts(animal: Animal) -> dict[str, Sequence[str]]:
    single = [part for part in animal.parts if not part.endswith("s")]
    return {"b1": single or ["body"], "b2": [part for part in animal.parts if part.endswith("s")]}


def _habits(animal: Animal, rng: random.Random, count: int) -> list[str]:
    slots: dict[str, str | Sequence[str]] = {"name": f"the {animal.name}", "his": "its"}
    return [sentence(habit, slots, rng) for habit in rng.sample(animal.habits, min(count, len(animal.habits)))]


def _habit_or_mood(animal: Animal, mood: Mood | None, rng: random.Random) -> str:
    if rng.random() < 0.5:
        return ""
    if rng.random() < 0.5:
        return " " + _habits(animal, rng, 1)[0]
    chosen = mood or pick_mood(rng)
    return " " + sentence(f"the {animal.name} is {{adj}} there", {"adj": chosen.adjectives}, rng)


def _list_things(rng: random.Random) -> Exchange:
    noun, words = rng.choice(
        (
            ("animals", [animal.plural for animal in ANIMALS]),
            ("colours", list(COLOURS)),
            ("places", [f"the {place.name}" for place in PLACES]),
            ("days", list(DAYS)),
        )
    )
    picked = rng.sample(words, rng.randint(2, 5))
    listed = f"{', '.join(picked[:-1])} and {picked[-1]}."
    return f"Name {NUMBER_WORDS[len(picked)]} {noun}.", listed[0].upper() + listed[1:]
