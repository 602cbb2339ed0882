"""Chats with tools: the assistant calls one, reads what it returned, and answers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from steering.demo.conversation import SYSTEM_PLAIN, Conversation, Message, exchange
from steering.demo.world import ANIMALS, PEOPLE, PLACES, WEATHERS

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One use of a tool: the question, the arguments, what the tool returns, and the answer made of it."""

    asked: str
    arguments: dict[str, Any]
    result: dict[str, Any]
    told: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool by its possible names, what it says of itself, its parameters, and how a use of it goes."""

    names: tuple[str, ...]
    description: str
    parameters: tuple[tuple[str, str], ...]
    use: Callable[[random.Random], ToolUse]

    def schema(self, name: str) -> Schema:
        """The tool in the OpenAI form."""
        properties = {key: {"type": kind} for key, kind in self.parameters}
        return {
            "type": "function",
            "function": {
                "name": name,
                "description": self.description,
                "parameters": {"type": "object", "properties": properties, "required": list(properties)},
            },
        }


CITIES = ("Paris", "London", "Rome", "Berlin", "Oslo", "Madrid", "Vienna", "Tokyo", "Cairo", "Lima")


def use_weather(rng: random.Random) -> ToolUse:
    """Ask for the weather in a city."""
    city, weather, degrees = rng.choice(CITIES), rng.choice(WEATHERS).name, rng.randint(1, 30)
    asked = rng.choice(
        (f"What is the weather in {city}?", f"How is the weather in {city}?", f"What is the weather like in {city}?")
    )
    return ToolUse(
        asked,
        {"city": city},
        {"weather": weather, "degrees": degrees},
        f"It is {weather} in {city}. It is {degrees} degrees.",
    )


def use_sum(rng: random.Random) -> ToolUse:
    """Ask for a sum of two numbers."""
    first, second = rng.randint(1, 99), rng.randint(1, 99)
    return ToolUse(
        f"What is {first} plus {second}?",
        {"a": first, "b": second},
        {"result": first + second},
        f"{first} plus {second} is {first + second}.",
    )


def use_song(rng: random.Random) -> ToolUse:
    """Ask for a song of a mood."""
    mood = rng.choice(("happy", "sad", "calm", "scary", "quiet"))
    return ToolUse(
        rng.choice((f"Play a {mood} song.", f"Please play a {mood} song.")),
        {"mood": mood},
        {"status": "ok"},
        f"I am playing a {mood} song now.",
    )


def use_timer(rng: random.Random) -> ToolUse:
    """Ask for a timer."""
    minutes = rng.randint(1, 60)
    return ToolUse(
        f"Set a timer for {minutes} minutes.",
        {"minutes": minutes},
        {"status": "ok"},
        f"The timer is set for {minutes} minutes.",
    )


def use_finder(rng: random.Random) -> ToolUse:
    """Ask where an animal is."""
    animal, place = rng.choice(ANIMALS).name, rng.choice(PLACES)
    return ToolUse(
        rng.choice((f"Where is the {animal}?", f"Find the {animal}.")),
        {"animal": animal},
        {"place": place.name},
        f"The {animal} is {place.where}.",
    )


def use_message(rng: random.Random) -> ToolUse:
    """Ask to send a message."""
    name, text = (
        rng.choice(PEOPLE).name,
        rng.choice(("hello", "good morning", "see you later", "thank you", "good night")),
    )
    return ToolUse(
        f"Send {name} a message: {text}",
        {"to": name, "text": text},
        {"status": "sent"},
        f"I have sent the message to {name}.",
    )


TOOLS: tuple[Tool, ...] = (
    Tool(
        ("get_weather", "weather", "get_current_weather"),
        "Get the weather in a city.",
        (("city", "string"),),
        use_weather,
    ),
    Tool(("add", "add_numbers", "calculator"), "Add two numbers.", (("a", "integer"), ("b", "integer")), use_sum),
    Tool(("play_song", "play_music"), "Play a song.", (("mood", "string"),), use_song),
    Tool(("set_timer", "start_timer"), "Set a timer.", (("minutes", "integer"),), use_timer),
    Tool(("find_animal", "locate"), "Find an animal.", (("animal", "string"),), use_finder),
    Tool(("send_message", "send"), "Send a message.", (("to", "string"), ("text", "string")), use_message),
)


def write_tool_conversation(rng: random.Random) -> Conversation:
    """A chat in which one to three tools are offered; most questions need one of them, some need none."""
    offered = rng.sample(TOOLS, rng.randint(1, 3))
    named = [(tool, rng.choice(tool.names)) for tool in offered]
    messages: list[Message] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEM_PLAIN)})
    for _ in range(rng.choice((1, 1, 2))):
        messages += exchange(rng, None) if rng.random() < 0.2 else _tool_turns(*rng.choice(named), rng)
    return Conversation(messages, [tool.schema(name) for tool, name in named])


def _tool_turns(tool: Tool, name: str, rng: random.Random) -> list[Message]:
    use = tool.use(rng)
    call = {"type": "function", "function": {"name": name, "arguments": use.arguments}}
    return [
        {"role": "user", "content": use.asked},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": json.dumps(use.result)},
        {"role": "assistant", "content": use.told},
    ]
