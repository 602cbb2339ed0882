"""Features: tokens are counted by their words, and labels say what a feature fires on."""

import torch

from tools.demo_model.feature import count_activity, describe_features, make_label, words_of_tokens
from tools.demo_model.sae import TopKSae


def test_tokens_are_joined_to_words():
    assert words_of_tokens(["Once", "Ġup", "on", ".", "ĠMi", "a", "Ċ"]) == [
        "once", "upon", "upon", ".", "mia", "mia", "\\n",
    ]  # fmt: skip


def test_no_tokens_are_no_words():
    assert words_of_tokens([]) == []


def one_hot_sae():
    return TopKSae(torch.eye(3), torch.zeros(3), torch.eye(3), torch.zeros(3), k=1)


def test_activity_counts_by_word():
    x = torch.tensor([[2.0, 0, 0], [4.0, 0, 0], [0, 1.0, 0], [0, 3.0, 0]])
    activity = count_activity(one_hot_sae(), x, ["cat", "cat", "cat", "sea"])
    assert activity.max_activation.tolist() == [4, 3, 0]
    assert activity.density.tolist() == [0.5, 0.5, 0]
    assert activity.words == ("cat", "sea")
    assert activity.mass.tolist() == [[6, 0], [1, 3], [0, 0]]


def test_dead_features_are_left_out():
    activity = count_activity(one_hot_sae(), torch.tensor([[2.0, 0, 0]]), ["cat"])
    features = describe_features(activity, {})
    assert [feature.index for feature in features] == [0]
    assert features[0].top_tokens == ("cat",)


def test_a_label_names_one_word_that_stands_out():
    assert make_label([("bag", 0.9), ("the", 0.1)], None) == "bag"


def test_a_label_names_a_category():
    assert make_label([("smiled", 0.4), ("happy", 0.4), ("door", 0.2)], None).startswith("joyful words: smiled, happy")


def test_a_label_names_the_kind_of_story():
    assert make_label([("the", 0.3), ("door", 0.2)], "gloomy") == "gloomy stories: the, door"


def test_story_context_reaches_the_label():
    activity = count_activity(one_hot_sae(), torch.tensor([[2.0, 0, 0]]), ["door"])
    context = {"joyful": torch.tensor([0.9, 0, 0]), "gloomy": torch.tensor([0.1, 0, 0])}
    assert describe_features(activity, context)[0].label == "joyful stories: door"
