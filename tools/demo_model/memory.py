"""Chats in which the user mentions something and asks for it some turns later."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tools.demo_model.coinage import coin_word, draw_city, draw_number, draw_person
from tools.demo_model.conversation import SYSTEM_PLAIN, Conversation, Message, turns, without_mark
from tools.demo_model.echo import read_facts, repeat_words
from tools.demo_model.question import ask_animal, ask_fact, ask_identity, ask_person, ask_sum, greet
from tools.demo_model.record import ask_record
from tools.demo_model.story import StoryPlan, write_story
from tools.demo_model.story_request import ASK_STORY, Exchange
from tools.demo_model.world import ANIMALS, COLOURS, FOODS


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about the user: sentences that state it, note it, ask for it and repeat it (`{v}` is the value)."""

    told: tuple[str, ...]
    noted: tuple[str, ...]
    asked: tuple[str, ...]
    answer: str
    draw: Callable[[random.Random], str | int]


FACTS: tuple[Fact, ...] = (
    Fact(
        ("My name is {v}.", "Hello, my name is {v}.", "Hi, I am {v}.", "I am called {v}.", "Please call me {v}."),
        ("Hello {v}! How can I help you?", "Nice to meet you, {v}.", "Hello {v}!"),
        ("What is my name?", "Do you remember my name?", "Do you know my name?", "Who am I?", "What am I called?"),
        "Your name is {v}.",
        draw_person,
    ),
    Fact(
        ("I live in {v}.", "I come from {v}.", "My home is in {v}."),
        ("{v} is a nice place.", "I would like to see {v}.", "I will remember that."),
        ("Where do I live?", "Where is my home?", "In which city do I live?"),
        "You live in {v}.",
        draw_city,
    ),
    Fact(
        ("My favourite number is {v}.", "My lucky number is {v}.", "I like the number {v}."),
        ("{v} is a good number.", "I will remember {v}."),
        ("What is my favourite number?", "What is my lucky number?", "Which number do I like?"),
        "Your number is {v}.",
        draw_number,
    ),
    Fact(
        ("My favourite colour is {v}.", "I like {v} most of all colours."),
        ("{v} is a nice colour.", "I will remember that."),
        ("What is my favourite colour?", "Which colour do I like?"),
        "Your favourite colour is {v}.",
        lambda rng: rng.choice(COLOURS),
    ),
    Fact(
        ("My favourite food is {v}.", "I like to eat {v}."),
        ("I like {v} too.", "I will remember that."),
        ("What is my favourite food?", "What do I like to eat?"),
        "You like to eat {v}.",
        lambda rng: rng.choice(FOODS),
    ),
    Fact(
        ("My {animal} is called {v}.", "I have a {animal} named {v}."),
        ("{v} is a good name for a {animal}.", "I like {v}."),
        ("What is my {animal} called?", "What is the name of my {animal}?"),
        "Your {animal} is called {v}.",
        draw_person,
    ),
    Fact(
        ("The secret word is {v}.", "Remember this word: {v}.", "The password is {v}."),
        ("I will remember it.", "I will remember {v}."),
        ("What is the secret word?", "Which word did I tell you?", "What is the password?"),
        "The word is {v}.",
        coin_word,
    ),
)
BETWEEN: tuple[Callable[[random.Random], Exchange], ...] = (
    lambda rng: ask_animal(rng, None),
    lambda rng: ask_fact(rng, None),
    lambda rng: ask_person(rng, None),
    lambda rng: ask_sum(rng, None),
    lambda rng: ask_identity(rng, None),
    lambda rng: greet(rng, None),
    lambda rng: (rng.choice(ASK_STORY), write_story(StoryPlan(length=rng.randint(1, 4)), rng)),
    repeat_words,
)


def write_memory_conversation(rng: random.Random) -> Conversation:
    """Return a chat with one to three facts that the user mentions and asks for, with up to three exchanges between."""
    messages: list[Message] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PLAIN)})
    told, asked = [], []
    for fact in rng.sample(FACTS, rng.choice((1, 1, 2, 3))):
        values = {"v": fact.draw(rng), "animal": rng.choice(ANIMALS).name}
        told.append((rng.choice(fact.told).format(**values), capital(rng.choice(fact.noted).format(**values))))
        asked.append((rng.choice(fact.asked).format(**values), fact.answer.format(**values)))
    rng.shuffle(asked)
    between = [rng.choice(BETWEEN)(rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    for question, answer in (*told, *between, *asked):
        messages += turns(without_mark(question, rng), answer)
    return Conversation(messages)


def write_reading_conversation(rng: random.Random) -> Conversation:
    """Return questions that contain their answers: words to repeat, facts to read, records to write as JSON."""
    messages: list[Message] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PLAIN)})
    for _ in range(rng.choice((1, 1, 2))):
        asked, told = rng.choices((repeat_words, read_facts, ask_record), weights=(2, 2, 4))[0](rng)
        messages += turns(without_mark(asked, rng), told)
    return Conversation(messages)


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[0].upper() + text[1:]
