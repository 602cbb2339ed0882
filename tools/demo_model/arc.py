"""Story arcs: the beats that carry a story from a wish to its end, before a mood decides how it ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arc:
    """A named course of events; each beat is one sentence, given as alternatives."""

    name: str
    beats: tuple[tuple[str, ...], ...]


ARCS: tuple[Arc, ...] = (
    Arc(
        "search",
        (
            ("one morning, {name} could not find {his} {thing}", "{name} had lost {his} {colour} {thing}"),
            (
                "so {he} went to the {place} to look for it",
                "{he} asked {friend} about the {thing}",
                "{he} looked for the {thing} {where}",
            ),
            (
                "at last, {he} saw the {thing} behind a stone",
                "then {friend} found the {thing}",
                "the {thing} was {where} after all",
            ),
        ),
    ),
    Arc(
        "journey",
        (
            (
                "one day, {name} and {friend} went to the {place}",
                "{name} had never been to the {place}",
                "{name} packed a bag and left for the {place}",
            ),
            ("the way to the {place} was long", "{friend} carried the {food} in a basket", "they walked side by side"),
            ("when they came to the {place}, {place_sight}", "at the end of the way was the {place}"),
        ),
    ),
    Arc(
        "meal",
        (
            ("{name} wanted to cook {food} for {friend}", "{name} was looking for some {food}"),
            (
                "{he} bought the {food} at the market",
                "{friend} brought a bowl and a spoon",
                "{he} lit the fire in the kitchen",
            ),
            ("soon {he} had cooked the {food}", "they sat down at the table with the {food}"),
        ),
    ),
    Arc(
        "meeting",
        (
            ("one day, {name} met {friend} the {kind2} {where}", "{where}, {name} saw a {kind2} for the first time"),
            ('"who are you?" asked {name}', '"hello, I am {friend}," said the {kind2}'),
            ('"come with me," said {friend}', "from then on, {friend} walked with {name}"),
        ),
    ),
    Arc(
        "gift",
        (
            (
                "{name} had to bring a {thing} to {friend}",
                "it was the birthday of {friend}, and {name} made a {colour} {thing}",
            ),
            ("{he} put the {thing} into a {colour} box", "{he} carried the {thing} all the way to the {place}"),
            ("{friend} opened the box and saw the {thing}", '"this {thing} is for you," said {name}'),
        ),
    ),
    Arc(
        "race",
        (
            ("there was a race {where}, and {name} wanted to run", "{friend} and {name} had a race to the {place}"),
            ("at first, {friend} was faster", "{name} ran over the hill", "half of the way was behind them"),
            ("then {name} came to the end of the race", "{friend} and {name} came to the {place} together"),
        ),
    ),
    Arc(
        "repair",
        (
            ("the {work} of {friend} did not work", "{name} and {friend} wanted to build a {work}"),
            (
                "{he} needed a hammer and some wood",
                '"can you help me?" asked {friend}',
                "{name} looked at every part of the {work}",
            ),
            ("in the evening, the {work} was done", "after an hour, {name} put down the hammer"),
        ),
    ),
    Arc(
        "letter",
        (
            ("one day, a letter for {name} came from the {place}", "{name} wrote a letter to {friend}"),
            (
                "the letter was from {friend}",
                '"please come to the {place}," said the letter',
                "{he} read the letter two times",
            ),
            ("the next day, {name} went to the {place}", "then {friend} stood at the door with a {thing}"),
        ),
    ),
)
