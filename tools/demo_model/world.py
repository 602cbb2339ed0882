"""The small world that the demo model knows: animals, places, people, foods, colours and weather."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_model.phrase import word_list


@dataclass(frozen=True, slots=True)
class Animal:
    """One kind of animal: where it lives, what it eats, and sentences only it can do (`{name}` is the animal)."""

    name: str
    plural: str
    young: str
    home: str
    food: str
    sound: str
    parts: tuple[str, ...]
    habits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """One place: its preposition ("at" or "in"), what lies there, and sentences about it."""

    name: str
    preposition: str
    things: tuple[str, ...]
    sights: tuple[str, ...]

    @property
    def where(self) -> str:
        """The place as a phrase, as in "at the sea"."""
        return f"{self.preposition} the {self.name}"


@dataclass(frozen=True, slots=True)
class Person:
    """One person the model knows facts about."""

    name: str
    kind: str
    pronoun: str
    food: str
    colour: str
    pet: str
    place: str


@dataclass(frozen=True, slots=True)
class Weather:
    """One weather: its adjective, a clause about it, and the things it brings."""

    name: str
    clause: str
    brings: tuple[str, ...]


def _animal(line: str, parts: str, *habits: str) -> Animal:
    name, plural, young, home, food, sound = line.split()
    return Animal(name, plural, young, home, food, sound, tuple(parts.split()), habits)


ANIMALS: tuple[Animal, ...] = (
    _animal(
        "cat cats kitten house fish meowed",
        "whiskers paws tail",
        "{name} purred and washed {his} whiskers",
        "{name} purred like a kitten",
        "{name} played with a ball of wool",
        "{name} licked {his} soft paws",
        "{name} meowed at the door",
        "{name} chased a mouse across the floor",
    ),
    _animal(
        "dog dogs puppy house bones barked",
        "ears nose tail",
        "{name} wagged {his} tail",
        "{name} barked like a puppy",
        "{name} ran after a stick",
        "{name} dug a hole for a bone",
    ),
    _animal(
        "fox foxes cub forest berries yelped",
        "ears nose tail",
        "{name} crept through the leaves",
        "{name} sniffed the air with {his} pointed nose",
        "{name} curled up in {his} red tail",
    ),
    _animal(
        "bear bears cub cave honey growled",
        "paws nose ears",
        "{name} scratched {his} back on a tree",
        "{name} dipped a big paw into the honey",
        "{name} growled and rolled in the grass",
    ),
    _animal(
        "rabbit rabbits bunny meadow carrots squeaked",
        "ears paws tail",
        "{name} hopped over a log",
        "{name} wiggled {his} long ears",
        "{name} nibbled a leaf of clover",
    ),
    _animal(
        "owl owls chick forest mice hooted",
        "wings eyes feathers",
        "{name} hooted from a branch",
        "{name} blinked {his} round eyes",
        "{name} spread {his} quiet wings",
    ),
    _animal(
        "fish fish minnow river worms bubbled",
        "fins scales tail",
        "{name} blew a row of bubbles",
        "{name} flicked {his} silver fins",
        "{name} swam between the stones",
    ),
    _animal(
        "duck ducks duckling pond bread quacked",
        "wings beak feathers",
        "{name} quacked and shook {his} feathers",
        "{name} paddled in a circle",
        "{name} dipped {his} beak into the water",
    ),
    _animal(
        "horse horses foal farm hay neighed",
        "mane legs tail",
        "{name} shook {his} long mane",
        "{name} galloped along the fence",
        "{name} neighed and ate some hay",
    ),
    _animal(
        "cow cows calf farm grass mooed",
        "horns legs tail",
        "{name} mooed at the gate",
        "{name} chewed the grass",
        "{name} rang the bell around {his} neck",
    ),
    _animal(
        "frog frogs tadpole pond flies croaked",
        "legs eyes mouth",
        "{name} jumped from leaf to leaf",
        "{name} croaked on a stone",
        "{name} caught a fly with {his} long tongue",
    ),
    _animal(
        "mouse mice pup barn cheese squeaked",
        "ears whiskers tail",
        "{name} hid under the straw",
        "{name} carried a crumb of cheese",
        "{name} squeaked and ran along the wall",
    ),
    _animal(
        "bird birds chick garden seeds chirped",
        "wings beak feathers",
        "{name} chirped on a branch",
        "{name} built a nest of twigs",
        "{name} flew in a wide circle",
    ),
    _animal(
        "goat goats kid mountain leaves bleated",
        "horns beard legs",
        "{name} climbed a steep rock",
        "{name} bleated at the clouds",
        "{name} pushed a stone with {his} horns",
    ),
)

PLACES: tuple[Place, ...] = (
    Place(
        "sea",
        "at",
        ("shell", "boat", "net", "bucket"),
        (
            "the waves rolled onto the sand",
            "a gull flew over the waves",
            "the tide washed shells onto the shore",
            "the salt water splashed against the rocks",
            "a ship with a white sail crossed the sea",
            "the fishermen pulled a boat up the beach",
            "the sand on the shore was full of shells",
            "the ocean was deep and wide",
        ),
    ),
    Place(
        "forest",
        "in",
        ("acorn", "mushroom", "feather", "branch"),
        (
            "the tall trees stood close together",
            "the leaves moved in the wind",
            "moss grew on the old trees",
            "a path ran between the pines",
            "mushrooms grew under the oak",
        ),
    ),
    Place(
        "garden",
        "in",
        ("flower", "spade", "basket", "seed"),
        (
            "roses grew along the wall",
            "the bees flew from flower to flower",
            "the apple tree was full of apples",
            "a small gate led to the flowers",
        ),
    ),
    Place(
        "market",
        "at",
        ("coin", "basket", "hat", "bell"),
        (
            "the sellers called out their prices",
            "the tables were full of fruit",
            "a man sold hats and bells",
            "many people walked from table to table",
        ),
    ),
    Place(
        "mountain",
        "on",
        ("stone", "rope", "lantern", "stick"),
        (
            "snow lay on the high rocks",
            "the path went up and up",
            "the valley looked very small from there",
            "an eagle flew over the peak",
        ),
    ),
    Place(
        "river",
        "at",
        ("pebble", "paddle", "bottle", "reed"),
        (
            "the water ran over the stones",
            "an old bridge crossed the river",
            "reeds grew along the bank",
            "a little raft floated by",
        ),
    ),
    Place(
        "village",
        "in",
        ("letter", "key", "drum", "cake"),
        (
            "smoke came from the chimneys",
            "the church bell rang",
            "the baker opened his shop",
            "the houses stood around a well",
        ),
    ),
    Place(
        "farm",
        "on",
        ("bucket", "egg", "blanket", "wheel"),
        (
            "the hens ran around the yard",
            "the hay was piled in the barn",
            "a cart stood by the fence",
            "the farmer carried a bucket",
        ),
    ),
    Place(
        "castle",
        "in",
        ("crown", "candle", "mirror", "book"),
        (
            "a flag hung from the tower",
            "the king sat on his throne",
            "the long hall was full of candles",
            "two guards stood at the gate",
        ),
    ),
    Place(
        "school",
        "at",
        ("pencil", "book", "map", "chair"),
        (
            "the teacher wrote on the board",
            "the children read their books",
            "the clock hung above the door",
            "the desks stood in rows",
        ),
    ),
    Place(
        "desert",
        "in",
        ("jar", "carpet", "compass", "gem"),
        (
            "the dunes went on and on",
            "a camel walked past",
            "there was no tree for many miles",
            "a lizard sat on a hot rock",
        ),
    ),
    Place(
        "town",
        "in",
        ("umbrella", "ticket", "lamp", "violin"),
        (
            "a tram drove down the street",
            "the shop windows were full of lamps",
            "people crossed the square",
            "the fountain stood in the middle of the square",
        ),
    ),
)

FOODS = word_list(
    "soup bread cheese apples pears cake honey pancakes noodles rice berries plums carrots porridge "
    "cookies tomatoes eggs pie potatoes cherries"
)
COLOURS = word_list("red blue green yellow white black brown orange purple pink golden silver")
HOMES = (
    "a small house",
    "a wooden hut",
    "an old mill",
    "a stone cottage",
    "a tall tower",
    "a cosy den",
    "a narrow street",
    "a round tent",
)
FIND_VERBS = ("found", "saw", "picked up", "noticed", "discovered")
NUMBER_WORDS = word_list("zero one two three four five six seven eight nine ten eleven twelve")
DAYS = word_list("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

_PEOPLE = """
Mia girl pancakes red cat village|Tom boy soup blue dog farm|Anna girl apples green rabbit garden
Ben boy bread yellow duck river|Lily girl cherries pink horse farm|Max boy noodles black frog town
Nora girl honey purple bird forest|Sam boy pie orange mouse school|Ella girl rice white fish sea
Leo boy cheese brown goat mountain|Ruby girl berries golden owl castle|Jack boy potatoes silver fox forest
Zoe girl cake blue cow market|Oscar man eggs green bear mountain|Clara woman porridge red cat sea
Hugo man tomatoes yellow dog town|Rosa woman plums pink duck market|Finn boy cookies white fish river
Ida woman carrots purple rabbit village|Paul man pears brown horse desert
"""


def _people() -> tuple[Person, ...]:
    rows = [entry.split() for line in _PEOPLE.split("\n") for entry in line.split("|") if entry]
    return tuple(
        Person(n, kind, "she" if kind in ("girl", "woman") else "he", food, colour, pet, place)
        for n, kind, food, colour, pet, place in rows
    )


PEOPLE = _people()
ANIMAL_NAMES_HE = word_list("Pip Bruno Rusty Otto Milo Felix Toby Basil Gus Teddy Barnaby Monty Rufus Ziggy")
ANIMAL_NAMES_SHE = word_list("Luna Daisy Poppy Hazel Bella Willow Ivy Nell Tilly Coco Maple Olive Juno Fern")

WEATHERS: tuple[Weather, ...] = (
    Weather("sunny", "the sun was shining", ("warm air", "blue sky", "light")),
    Weather("rainy", "rain fell from the sky", ("puddles", "wet streets", "drops")),
    Weather("windy", "a strong wind was blowing", ("flying leaves", "kites", "cool air")),
    Weather("snowy", "snow was falling", ("white roofs", "ice", "snowflakes")),
    Weather("foggy", "fog lay over the land", ("mist", "pale light", "damp air")),
    Weather("cloudy", "clouds covered the sky", ("shade", "cool air", "pale light")),
    Weather("stormy", "thunder rolled in the distance", ("lightning", "thunder", "heavy rain")),
    Weather("warm", "the air was warm", ("soft air", "open windows", "long evenings")),
)


def animal_named(name: str) -> Animal:
    """Return the animal called `name` (singular). Raise KeyError if there is none."""
    return _ANIMAL_BY_NAME[name]


def place_named(name: str) -> Place:
    """Return the place called `name`. Raise KeyError if there is none."""
    return _PLACE_BY_NAME[name]


_ANIMAL_BY_NAME = {animal.name: animal for animal in ANIMALS}
_PLACE_BY_NAME = {place.name: place for place in PLACES}
CATEGORIES: dict[str, frozenset[str]] = {
    "animal": frozenset(w for a in ANIMALS for w in (a.name, a.plural, a.young)),
    "place": frozenset(p.name for p in PLACES),
    "food": frozenset(FOODS) | frozenset(a.food for a in ANIMALS),
    "colour": frozenset(COLOURS),
    "weather": frozenset(w.name for w in WEATHERS)
    | frozenset(word_list("sun rain wind snow fog clouds thunder storm sky")),
    "name": frozenset(p.name.lower() for p in PEOPLE)
    | frozenset(n.lower() for n in ANIMAL_NAMES_HE + ANIMAL_NAMES_SHE),
}
