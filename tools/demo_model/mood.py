"""The moods of the demo world: the words each one uses, and sentences that only it says."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo_model.phrase import word_list


@dataclass(frozen=True, slots=True)
class Mood:
    """One mood. `weight` is its share of stories; `words` are the lower-case words the effect is measured by."""

    name: str
    weight: float
    adjectives: tuple[str, ...]
    adverbs: tuple[str, ...]
    acts: tuple[str, ...]
    feelings: tuple[str, ...]
    skies: tuple[str, ...]
    weathers: tuple[str, ...]
    sentences: tuple[str, ...]
    results: tuple[str, ...]
    endings: tuple[str, ...]
    words: tuple[str, ...]


JOYFUL = Mood(
    "joyful",
    0.2,
    word_list("happy cheerful joyful merry glad delighted playful"),
    word_list("happily cheerfully joyfully merrily gladly"),
    ("smiled", "laughed", "giggled", "danced", "sang", "grinned", "clapped", "cheered"),
    ("joy", "delight", "laughter", "happiness"),
    ("the sun was bright and warm", "the sky was bright and blue", "a bright rainbow stood in the sky"),
    ("sunny", "warm"),
    (
        "{name} was so happy that {he} danced",
        "{he} laughed with joy",
        "what a wonderful day it was",
        "{friend} laughed and hugged {name}",
        "they sang a merry song together",
        "everyone smiled at {name}",
        "{his} heart was full of joy",
        "{name} giggled and clapped",
        "it was the best day ever",
        "{he} jumped for joy and sang",
        "they danced and had so much fun",
        "{friend} cheered for {name}",
        "{name} had never been so happy",
        "there was laughter everywhere",
        "{friend} told a funny joke, and {name} laughed",
        "the music played, and everyone danced",
        "{name} hugged {friend} and smiled",
        "{he} was glad to be {where}",
        '"this is wonderful!" said {name}',
        "{he} clapped {his} hands and cheered",
        "{friend} was delighted and grinned",
        "nothing could be more fun",
        "{name} felt light and cheerful",
    ),
    (
        "{friend} gave {him} the {thing} with a smile",
        "they shared the {food} and laughed",
        "{name} won the prize and cheered",
        "the {thing} was a wonderful gift",
        "all their friends came to the party",
        "{friend} and {name} had a party with {food}",
        "everyone sang a song for {name}",
        "the whole {place} was full of laughter",
        "{friend} hugged {name} and said thank you",
    ),
    (
        "they laughed and danced until the evening",
        "{name} went home with a happy heart",
        "{name} and {friend} were happy ever after",
        "{name} fell asleep with a smile",
        "it was a wonderful day, full of joy and fun",
        "from that day on, they smiled every day",
        "{name} smiled and said good night",
        "they had never laughed so much",
        "and so the day ended with a merry dance",
        "{he} dreamed of the party with joy",
    ),
    word_list(
        "happy cheerful joyful merry glad delighted playful happily cheerfully joyfully merrily gladly smile smiled "
        "smiles laugh laughed giggled danced dance sang sing grinned clapped cheered joy delight laughter happiness "
        "bright wonderful fun hugged best party rainbow"
    ),
)
GLOOMY = Mood(
    "gloomy",
    0.2,
    word_list("sad gloomy lonely unhappy miserable weary hopeless"),
    word_list("sadly gloomily bitterly wearily miserably"),
    ("cried", "wept", "sighed", "sobbed", "moaned", "mourned", "shed a tear", "hung {his} head"),
    ("sorrow", "grief", "sadness", "despair"),
    ("the sky was grey and bleak", "dark clouds hid the sun", "cold rain fell on the dead leaves"),
    ("rainy", "cloudy", "foggy"),
    (
        "{name} was so sad that {he} wept",
        "{he} cried with sorrow",
        "what a miserable day it was",
        "{friend} had gone away, and {name} was alone",
        "{name} sat alone in the dark",
        "nobody came to see {name}",
        "{his} heart was heavy with grief",
        "{name} sighed and wept",
        "it was the worst day ever",
        "tears ran down {his} face",
        "they cried and had no hope",
        "{friend} sighed and left {name} alone",
        "{name} had never been so lonely",
        "there was sadness everywhere",
        "{friend} told a sad tale, and {name} cried",
        "the house was empty, and nobody spoke",
        "{name} looked at the rain and sighed",
        "{he} was all alone {where}",
        '"there is no hope," said {name}',
        "{he} hid {his} face and sobbed",
        "{friend} was weary and wept",
        "nothing could help {him}",
        "{name} felt lost and lonely",
    ),
    (
        "{friend} took the {thing} away with a sigh",
        "the {food} was gone, and they were hungry",
        "{name} lost the {thing} and wept",
        "the {thing} was broken forever",
        "none of their friends came",
        "{friend} and {name} had no {food} left",
        "nobody sang a song for {name}",
        "the whole {place} was grey and dead",
        "{friend} turned away and cried",
    ),
    (
        "they wept and sighed until the evening",
        "{name} went home with a heavy heart",
        "{name} and {friend} never met again",
        "{name} fell asleep in tears",
        "it was a miserable day, full of sorrow and tears",
        "from that day on, {name} was alone",
        "{name} wept and said nothing",
        "they had never been so unhappy",
        "and so the day ended in the dark",
        "{he} thought of {friend} with grief",
    ),
    word_list(
        "sad gloomy lonely unhappy miserable weary hopeless sadly gloomily bitterly wearily miserably sigh sighed "
        "sighs cry cried wept weep sobbed moaned mourned tear tears sorrow grief sadness despair grey bleak dark dead "
        "alone worst heavy hope lost broken nobody hungry"
    ),
)
SCARED = Mood(
    "scared",
    0.12,
    word_list("scared frightened nervous afraid timid worried"),
    word_list("nervously fearfully anxiously timidly"),
    ("trembled", "shivered", "screamed", "hid", "froze", "gasped"),
    ("fear", "terror", "fright", "worry"),
    ("a storm was coming", "thunder rolled over the hills", "strange shadows moved in the mist"),
    ("stormy", "foggy", "windy"),
    (
        "{name} was so scared that {he} hid",
        "{he} trembled with fear",
        "a strange noise came from behind",
        "{friend} screamed and ran",
        "something moved in the shadows",
        "{name} did not dare to look back",
        "{his} knees were shaking",
        "a shadow fell over {name}",
        "{he} held {his} breath",
        "was it a ghost",
        "{name} gasped and froze",
        '"do not go in there!" said {friend}',
        "two eyes shone in the mist",
        "the floor creaked, and {name} shivered",
        "{he} was afraid of every noise",
        "{friend} was frightened and hid",
    ),
    (
        "the {thing} began to shake",
        "a monster stood behind the {thing}",
        "they ran as fast as they could",
        "the door closed with a bang",
        "the ghost was only a white sheet",
        "{friend} and {name} ran from the {place} in fear",
        "the {thing} fell down with a crash",
        "the strange noise came closer",
    ),
    (
        "they ran home and locked the door",
        "{name} hid under the blanket all night",
        "{name} never went there again",
        "{name} was safe at last, but still trembled",
        "they could not sleep for fear",
        "{he} still shivered in {his} bed",
        "and nobody knows what it was",
    ),
    word_list(
        "scared frightened nervous afraid timid worried nervously fearfully anxiously timidly trembled shivered "
        "screamed hid froze gasped fear terror fright worry strange shadow shadows ghost monster shaking"
    ),
)
CALM = Mood(
    "calm",
    0.13,
    word_list("calm peaceful quiet gentle patient sleepy"),
    word_list("calmly quietly gently peacefully"),
    ("rested", "listened", "breathed slowly", "dreamed", "sat still", "nodded"),
    ("peace", "rest", "calm", "silence"),
    ("the air was still", "the evening was mild", "a soft breeze moved the grass"),
    ("warm", "cloudy", "sunny"),
    (
        "{name} sat down and rested",
        "{he} listened to the quiet evening",
        "it was a peaceful day",
        "{friend} poured a cup of tea",
        "they watched the clouds drift by",
        "nothing was in a hurry",
        "{his} breath was slow",
        "{name} closed {his} eyes",
        "a soft light lay on the path",
        "time passed slowly",
        "{friend} and {name} sat under a tree",
        "{he} was patient and gentle",
        '"how quiet it is," said {name}',
        "{name} breathed slowly and rested",
        "the evening was still",
        "{friend} nodded and dreamed",
    ),
    (
        "they sat by the {thing} in silence",
        "they ate the {food} slowly",
        "{name} put the {thing} on a shelf",
        "they rested in the shade",
        "the stars came out one by one",
        "{friend} gave {name} a soft blanket",
        "they left the {thing} where it was",
        "{name} listened to {friend} in peace",
    ),
    (
        "they sat in peace until the stars came out",
        "{name} went home and slept well",
        "{name} listened to the night and dreamed",
        "it was a quiet end to a quiet day",
        "soon {name} was asleep",
        "they said a gentle good night",
        "then there was peace",
    ),
    word_list(
        "calm peaceful quiet gentle patient sleepy calmly quietly gently peacefully rested listened breathed dreamed "
        "nodded peace rest silence still soft slowly"
    ),
)
NEUTRAL = Mood(
    "neutral",
    0.35,
    word_list("small young old busy clever curious tall careful"),
    word_list("quickly carefully politely promptly"),
    ("waited", "looked around", "walked on", "turned left", "stopped", "asked a question"),
    ("work", "thought", "practice", "care"),
    ("it was an ordinary day", "there were some clouds", "a light wind was blowing"),
    ("sunny", "rainy", "windy", "snowy", "cloudy", "warm"),
    (
        "{name} looked at the {thing}",
        "{he} asked {friend} for directions",
        "there was a lot to do",
        "{friend} showed {name} the way",
        "they talked about the {place}",
        "{name} counted to ten",
        "{he} put the {thing} into a bag",
        "{name} read the sign twice",
        "they walked for an hour",
        "{friend} told {him} about the {thing}",
        "{name} made a plan",
        "they worked until noon",
        "{name} took the road to the left",
        '"what time is it?" asked {friend}',
        "{he} opened the bag and took out the {thing}",
        "{friend} carried some wood",
        '"the {place} is not far," said {friend}',
        "{name} asked a question, and {friend} answered",
        "the {thing} was {colour} and round",
        "{he} washed {his} face",
        "{name} knew a short way",
        "there were two roads",
    ),
    (
        "they carried the {thing} home",
        "{name} traded the {thing} for some {food}",
        "{name} wrote it down",
        "{friend} fixed the {thing}",
        "they cooked some {food}",
        "{friend} kept the {thing}",
        "{name} gave the {thing} back to {friend}",
        "they wrapped the {thing} in paper",
        "{name} sold the {thing} for two coins",
        "{friend} wrote a note about the {thing}",
    ),
    (
        "{name} went home and had supper",
        "the next day, {name} told everyone about it",
        "{name} put the {thing} on the table",
        "that was the end of the trip",
        "after that, {name} knew the way",
        "{name} and {friend} went home",
        "they came back before supper",
        "the next week, they went to the {land}",
        "{name} told {friend} about it later",
        "then it was time to go home",
        "{friend} said goodbye and left",
    ),
    (),
)
MOODS: tuple[Mood, ...] = (JOYFUL, GLOOMY, SCARED, CALM, NEUTRAL)


def mood_named(name: str) -> Mood:
    """Return the mood called `name`. Raise KeyError if there is none."""
    return {mood.name: mood for mood in MOODS}[name]
