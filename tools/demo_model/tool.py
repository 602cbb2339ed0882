"""Tools that are offered in chats of the corpus: their names, arguments and results, and questions that need them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.demo_model.coinage import coin_word, draw_city, draw_number, draw_person, draw_thing, draw_word
from tools.demo_model.phrase import word_list
from tools.demo_model.world import ANIMALS, COLOURS, DAYS, FOODS, PLACES, WEATHERS

Value = str | int
Schema = dict[str, Any]
Draw = Callable[[random.Random], Value]
STRING, INTEGER = "string", "integer"


@dataclass(frozen=True, slots=True)
class Slot:
    """A value of a tool, as argument or in its result: its possible keys, its type, and how it is drawn.

    The first key is also its name in the templates of questions and answers.
    """

    keys: tuple[str, ...]
    kind: str
    draw: Draw


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `told` may name slots of the arguments and of the result; a tool without result slots says "ok"."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    arguments: tuple[Slot, ...]
    asked: tuple[str, ...]
    result: tuple[Slot, ...]
    told: tuple[str, ...]


def number_up_to(largest: int) -> Draw:
    """Return a function that draws whole numbers from one to `largest`."""
    return lambda rng: rng.randint(1, largest)


def draw_clock(rng: random.Random) -> str:
    """Return a time of day such as 07:45."""
    return f"{rng.randrange(24):02}:{rng.randrange(60):02}"


def draw_text(rng: random.Random) -> str:
    """Return a message to a friend: a stock phrase or any words."""
    if rng.random() < 0.5:
        return rng.choice(("hello", "good morning", "see you later", "thank you", "good night", "come to the party"))
    return " ".join(draw_word(rng) for _ in range(rng.randint(1, 4)))


CITY = Slot(("city", "location", "place", "town"), STRING, draw_city)
PERSON = Slot(("name", "person", "who"), STRING, draw_person)
THING = Slot(("item", "thing", "product", "object"), STRING, draw_thing)
NUMBERS = (Slot(("a", "x", "first"), INTEGER, draw_number), Slot(("b", "y", "second"), INTEGER, draw_number))
RESULT = Slot(("result", "value", "answer"), INTEGER, draw_number)
TOOLS: tuple[Tool, ...] = (
    Tool(
        ("get_weather", "weather", "get_current_weather"),
        ("Get the weather in a city.", "Get the current weather.", "Look up the weather."),
        (CITY,),
        (
            "What is the weather in {city}?",
            "What is the weather in {city}?",
            "How is the weather in {city}?",
            "What is the weather like in {city}?",
            "Tell me the weather in {city}.",
        ),
        (
            Slot(("weather", "condition", "sky"), STRING, lambda rng: rng.choice(WEATHERS).name),
            Slot(("degrees", "temperature"), INTEGER, number_up_to(40)),
        ),
        ("It is {weather} in {city}. It is {degrees} degrees.",),
    ),
    Tool(
        ("add", "add_numbers", "sum"),
        ("Add two numbers.", "Add numbers."),
        NUMBERS,
        ("What is {a} plus {b}?", "Add {a} and {b}.", "What is {a} + {b}?"),
        (RESULT,),
        ("{a} plus {b} is {result}.",),
    ),
    Tool(
        ("multiply", "times"),
        ("Multiply two numbers.",),
        NUMBERS,
        ("What is {a} times {b}?", "Multiply {a} by {b}."),
        (RESULT,),
        ("{a} times {b} is {result}.",),
    ),
    Tool(
        ("play_song", "play_music"),
        ("Play a song.", "Play music."),
        (Slot(("mood", "title", "song"), STRING, draw_word),),
        ("Play a {mood} song.", "Please play a {mood} song."),
        (),
        ("I am playing a {mood} song now.",),
    ),
    Tool(
        ("set_timer", "start_timer"),
        ("Set a timer.", "Start a timer."),
        (Slot(("minutes", "duration"), INTEGER, number_up_to(180)),),
        ("Set a timer for {minutes} minutes.", "Start a timer of {minutes} minutes."),
        (),
        ("The timer is set for {minutes} minutes.",),
    ),
    Tool(
        ("find_animal", "locate"),
        ("Find an animal.",),
        (Slot(("animal", "kind"), STRING, lambda rng: rng.choice(ANIMALS).name),),
        ("Where is the {animal}?", "Find the {animal}."),
        (Slot(("place", "where"), STRING, lambda rng: rng.choice(PLACES).name),),
        ("The {animal} is near the {place}.",),
    ),
    Tool(
        ("send_message", "send", "send_mail"),
        ("Send a message.", "Send a message to somebody."),
        (Slot(("to", "recipient"), STRING, draw_person), Slot(("text", "message"), STRING, draw_text)),
        ("Send {to} a message: {text}", "Write to {to}: {text}"),
        (),
        ("I have sent the message to {to}.",),
    ),
    Tool(
        ("get_time", "clock", "get_current_time"),
        ("Get the time in a city.", "Get the current time."),
        (CITY,),
        ("What time is it in {city}?", "Tell me the time in {city}."),
        (Slot(("time",), STRING, draw_clock),),
        ("It is {time} in {city}.",),
    ),
    Tool(
        ("book_table", "reserve_table"),
        ("Book a table in a restaurant.",),
        (
            Slot(("restaurant", "place"), STRING, draw_city),
            Slot(("people", "guests", "seats"), INTEGER, number_up_to(20)),
        ),
        ("Book a table at {restaurant} for {people} people.", "I want a table at {restaurant} for {people}."),
        (),
        ("Your table for {people} at {restaurant} is booked.",),
    ),
    Tool(
        ("order", "buy", "order_item"),
        ("Order something.", "Buy an item."),
        (THING, Slot(("quantity", "count", "number"), INTEGER, number_up_to(50))),
        ("Order {quantity} of the {item}.", "Buy the {item}, {quantity} times."),
        (Slot(("price", "total", "cost"), INTEGER, draw_number),),
        ("I have ordered {quantity} of the {item}. That is {price} coins.",),
    ),
    Tool(
        ("get_price", "price_of"),
        ("Get the price of an item.",),
        (THING,),
        ("How much is the {item}?", "What does the {item} cost?"),
        (Slot(("price", "cost"), INTEGER, draw_number),),
        ("The {item} costs {price} coins.",),
    ),
    Tool(
        ("get_distance", "distance"),
        ("Get the distance between two cities.",),
        (Slot(("origin", "start", "a"), STRING, draw_city), Slot(("destination", "end", "b"), STRING, draw_city)),
        ("How far is it from {origin} to {destination}?", "How far is {origin} from {destination}?"),
        (Slot(("km", "distance", "miles"), INTEGER, draw_number),),
        ("It is {km} miles from {origin} to {destination}.",),
    ),
    Tool(
        ("search", "web_search", "look_up", "lookup"),
        ("Search for something.", "Look something up."),
        (Slot(("query", "text", "term"), STRING, draw_word),),
        ("Search for {query}.", "Look up {query}."),
        (Slot(("answer", "result", "found"), STRING, draw_word),),
        ("I found this: {answer}.",),
    ),
    Tool(
        ("remind", "add_reminder", "create_event"),
        ("Remind the user of something.", "Add a reminder."),
        (Slot(("day", "date"), STRING, lambda rng: rng.choice(DAYS)), Slot(("text", "title"), STRING, draw_text)),
        ("Remind me on {day}: {text}",),
        (),
        ("I will remind you on {day}.",),
    ),
    Tool(
        ("paint", "set_color", "set_light"),
        ("Give something a colour.",),
        (THING, Slot(("color", "colour"), STRING, lambda rng: rng.choice(COLOURS))),
        ("Paint the {item} {color}.", "Make the {item} {color}."),
        (),
        ("The {item} is {color} now.",),
    ),
    Tool(
        ("cook", "get_recipe"),
        ("Cook some food.", "Get a recipe."),
        (Slot(("food", "dish"), STRING, lambda rng: rng.choice(FOODS)),),
        ("Cook some {food}.", "How do I cook {food}?"),
        (Slot(("minutes", "time"), INTEGER, number_up_to(180)),),
        ("The {food} takes {minutes} minutes.",),
    ),
)
PROPERTIES = word_list(
    "population age height phone number score price weight rank size speed owner friend boss email address birthday "
    "capital colour job status level balance mother father country language street"
)


def property_tool(rng: random.Random) -> Tool:
    """Return a tool that looks up a property: one of many, so that its name must be read rather than memorised."""
    noun = rng.choice(PROPERTIES) if rng.random() < 0.7 else coin_word(rng)
    slot = rng.choice((CITY, PERSON, THING))
    key, text = slot.keys[0], rng.random() < 0.5
    the = "the " if slot is THING else ""
    return Tool(
        (f"get_{noun}", f"find_{noun}", f"{noun}_of"),
        (f"Get the {noun} of a {key}.", f"Find the {noun}."),
        (slot,),
        tuple(f"{ask} the {noun} of {the}{{{key}}}{mark}" for ask, mark in (("What is", "?"), ("Tell me", "."))),
        (Slot((noun, "value"), STRING if text else INTEGER, draw_word if text else draw_number),),
        (f"The {noun} of {the}{{{key}}} is {{{noun}}}.",),
    )
