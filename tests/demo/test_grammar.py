"""The grammar: templates expand fully, stories keep their mood, answers keep to the world's facts."""

# ruff: noqa: S311 - tests want reproducible numbers, not secret ones

import json
import random
import re

import pytest

from tools.demo_model.concept import word_share
from tools.demo_model.conversation import write_conversation
from tools.demo_model.mood import GLOOMY, JOYFUL, MOODS, mood_named
from tools.demo_model.phrase import expand, sentence, word_list
from tools.demo_model.question import ask_animal, ask_fact, ask_person, ask_sum, describe
from tools.demo_model.story import StoryPlan, write_diary, write_story
from tools.demo_model.story_request import tell_story_of_length
from tools.demo_model.world import ANIMALS, PEOPLE, PLACES, WEATHERS, animal_named, place_named


def stories(count: int, plan: StoryPlan | None = None, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [write_story(plan or StoryPlan(), rng) for _ in range(count)]


def test_expand_resolves_nested_choices_and_slots():
    rng = random.Random(0)
    texts = {expand("[a|[b|{x}]]", {"x": ("c", "d")}, rng) for _ in range(100)}
    assert texts == {"a", "b", "c", "d"}


def test_expand_resolves_slots_inside_slot_values():
    assert expand("{act}", {"act": "hung {his} head", "his": "her"}, random.Random(0)) == "hung her head"


def test_expand_rejects_an_unknown_slot():
    with pytest.raises(KeyError, match="nothing"):
        expand("{nothing}", {}, random.Random(0))


def test_expand_corrects_the_article():
    assert expand("a {x} and a {y}", {"x": "owl", "y": "cat"}, random.Random(0)) == "an owl and a cat"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("it rained. {he} left", "It rained. She left."),
        ('"who are you?" asked {he}', '"Who are you?" asked she.'),
        ("was it a ghost", "Was it a ghost?"),
        ("{He} ran", "She ran."),
    ],
)
def test_sentence_sets_capitals_and_the_last_mark(template, expected):
    assert sentence(template, {"he": "she"}, random.Random(0)) == expected


def test_word_list_splits_at_white_space():
    assert word_list(" one  two\nthree ") == ("one", "two", "three")


def test_stories_leave_no_template_signs():
    for text in stories(500):
        assert not re.search(r"[{}\[\]|]", text), text


def test_stories_end_in_a_full_stop_and_start_with_a_capital():
    for text in stories(200):
        assert text[0].isupper()
        assert text[-1] in '.!?"'


def test_stories_are_mostly_distinct():
    assert len(set(stories(500))) >= 495


def test_equal_seeds_write_equal_stories():
    assert stories(20, seed=3) == stories(20, seed=3)
    assert stories(20, seed=3) != stories(20, seed=4)


@pytest.mark.parametrize("mood", MOODS, ids=lambda mood: mood.name)
def test_a_story_keeps_its_mood(mood):
    texts = stories(200, StoryPlan(mood=mood))
    shares = {other.name: word_share(texts, other.words) for other in MOODS if other.words}
    own = shares.pop(mood.name, 0.0)
    assert all(share < 0.012 for share in shares.values()), shares
    assert own > 0.05 or not mood.words


@pytest.mark.parametrize("mood", [JOYFUL, GLOOMY], ids=lambda mood: mood.name)
def test_neutral_stories_leave_room_for_a_mood(mood):
    share = word_share(stories(2000), mood.words)
    assert 0.005 < share < 0.06


def test_mood_weights_add_up_to_one():
    assert sum(mood.weight for mood in MOODS) == pytest.approx(1)


def test_moods_share_no_words():
    seen: set[str] = set()
    for mood in MOODS:
        assert not seen & set(mood.words), mood.name
        assert len(set(mood.words)) == len(mood.words)
        seen |= set(mood.words)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 12])
def test_a_story_has_about_the_length_asked_for(length):
    for text in stories(50, StoryPlan(length=length)):
        sentences = len(re.findall(r"[.!?](?:\"|)(?= [A-Z\"]|$)", text))
        assert length <= sentences <= length + 3, text


def test_a_story_is_about_the_animal_and_the_place_asked_for():
    plan = StoryPlan(animal=animal_named("cat"), place=place_named("sea"), length=10)
    texts = stories(50, plan)
    assert all("cat" in text or "kitten" in text for text in texts)
    assert sum("sea" in text or "waves" in text or "shore" in text for text in texts) > 40


def test_a_diary_speaks_of_itself():
    text = write_diary(StoryPlan(), random.Random(0))
    assert text.startswith("Dear diary")


def test_length_is_asked_for_in_words():
    asked, told = tell_story_of_length(random.Random(1), None)
    assert re.search(r"(one|two|three|four|five) sentence", asked)
    assert told


def test_sums_are_right():
    rng = random.Random(0)
    for _ in range(300):
        asked, told = ask_sum(rng, None)
        numbers = [int(number) for number in re.findall(r"\d+", told)]
        if numbers:
            first, second, result = numbers
            assert result == (first - second if "minus" in asked else first + second)


def test_people_have_one_favourite_food():
    rng = random.Random(0)
    answers = {asked: told for asked, told in (ask_person(rng, None) for _ in range(4000)) if "like to eat" in asked}
    for person in PEOPLE:
        assert f"{person.name} likes to eat {person.food}." in answers[f"What does {person.name} like to eat?"]


def test_animals_live_where_the_world_says():
    rng = random.Random(0)
    answers = dict(ask_animal(rng, None) for _ in range(4000))
    for animal in ANIMALS:
        assert f"in the {animal.home}" in answers[f"Where does the {animal.name} live?"]


def test_questions_and_answers_leave_no_template_signs():
    rng = random.Random(0)
    for teller in (ask_animal, ask_person, describe):
        for _ in range(300):
            assert not re.search(r"[{}\[\]|]", " ".join(teller(rng, None)))


def test_answers_as_json_are_json():
    rng = random.Random(0)
    found = [told for asked, told in (ask_fact(rng, None) for _ in range(300)) if "JSON" in asked]
    assert found
    assert all(set(json.loads(told)) == {"animal", "home", "food"} for told in found)


def test_a_system_turn_sets_the_mood_of_the_whole_chat():
    rng = random.Random(0)
    texts = []
    while len(texts) < 60:
        chat = write_conversation(rng)
        if chat.messages[0]["content"] == "You are a gloomy storyteller.":
            texts += [message["content"] for message in chat.messages if message["role"] == "assistant"]
    assert word_share(texts, GLOOMY.words) > 5 * word_share(texts, JOYFUL.words)


def test_moods_know_their_weather():
    names = {weather.name for weather in WEATHERS}
    assert all(set(mood.weathers) <= names for mood in MOODS)


def test_names_that_do_not_exist_are_errors():
    with pytest.raises(KeyError):
        mood_named("bored")
    with pytest.raises(KeyError):
        animal_named("unicorn")
    with pytest.raises(KeyError):
        place_named("moon")


def test_people_live_in_places_and_have_animals_of_the_world():
    places, animals = {place.name for place in PLACES}, {animal.name for animal in ANIMALS}
    assert all(person.place in places and person.pet in animals for person in PEOPLE)
