"""Profiles: how features and strengths are chosen, what steering adds, and how its effect is measured."""

import pytest
import torch

from steering.evaluation.text_measures import perplexity
from tools.demo_model.concept import CONCEPTS, NEUTRAL_PROMPT, labelled_stories, word_share
from tools.demo_model.effect import Bench, Effect, Samples, SamplingPlan, compare
from tools.demo_model.profile import (
    FEATURE_COUNTS,
    MAX_PERPLEXITY_RATIO,
    PUSHES,
    Dictionary,
    Edit,
    ProfileDesigner,
    mean_activations,
    score,
    strongest,
)
from tools.demo_model.residual import read_residuals
from tools.demo_model.sae import TopKSae

PLAN = SamplingPlan(count=3, tokens=6, seed=1)


def effect(share, perplexity=1.0):
    return Effect(share=share, base_share=0.01, perplexity=perplexity, base_perplexity=1.0)


@pytest.fixture
def bench(tiny_model, tiny_tokenizer):
    return Bench(tiny_model, tiny_tokenizer, layer=1)


@pytest.fixture
def dictionary():
    torch.manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(8, 32), dim=1)
    sae = TopKSae(rows.T.contiguous(), torch.zeros(8), rows, torch.zeros(32), k=2)
    return Dictionary(sae, torch.arange(1.0, 9.0), mean_resid_norm=10.0)


def test_word_share_counts_whole_words():
    assert word_share(["Happy cat.", "unhappy dog"], ["happy"]) == pytest.approx(0.25)
    assert word_share([], ["happy"]) == 0


def test_effect_ratios():
    assert effect(0.05, 1.5).ratio == pytest.approx(5)
    assert effect(0.05, 1.5).perplexity_ratio == pytest.approx(1.5)


def test_labelled_stories_carry_what_they_are_about():
    stories = labelled_stories(0, 200)
    assert stories == labelled_stories(0, 200)
    for concept in CONCEPTS:
        marked = word_share([story.text for story in stories if concept.label in story.labels], concept.words)
        others = word_share([story.text for story in stories if concept.label not in story.labels], concept.words)
        assert marked > 3 * others, concept.name


def test_delta_is_the_sum_of_the_edits(dictionary):
    edits = (Edit(0, 0.5), Edit(3, 2.0))
    expected = 0.5 * 1.0 * dictionary.sae.W_dec[0] + 2.0 * 4.0 * dictionary.sae.W_dec[3]
    assert torch.allclose(dictionary.delta(edits), expected)


def test_scaled_edits_have_the_push_asked_for(dictionary):
    edits = dictionary.scaled({1: 1.0, 2: 3.0}, 0.5)
    assert dictionary.push(edits) == pytest.approx(0.5, abs=0.01)
    assert edits[1].strength * 3 == pytest.approx(3 * edits[0].strength * 2, rel=0.02)


def test_fluent_text_scores_by_its_words_and_strange_text_below_zero():
    assert score(effect(0.3)) == 0.3
    assert score(effect(0.9, perplexity=MAX_PERPLEXITY_RATIO + 1)) < 0 < score(effect(0.01))
    assert score(effect(0.9, perplexity=50)) < score(effect(0.9, perplexity=5))


def test_the_strongest_features_are_weighted_by_their_contrast():
    contrast = torch.tensor([1.0, -4.0, 0.5, 2.0, 0.0])
    assert strongest(contrast, 2) == {3: 2.0, 0: 1.0}
    assert strongest(contrast, 99) == {3: 2.0, 0: 1.0, 2: 0.5}


class PushOnly(ProfileDesigner):
    """A designer whose effects are read off the edits: the share is the push, strange above `limit`."""

    def __init__(self, dictionary, limit):
        self.dictionary, self.limit = dictionary, limit
        self.plan = self.trial_plan = PLAN

    def measure(self, edits, _concept, _plan):
        push = self.dictionary.push(edits)
        return effect(push, perplexity=1.0 if push <= self.limit else 9.0)


def design(dictionary, limit):
    context = {"joyful": torch.arange(8.0), "all": torch.ones(8)}
    return PushOnly(dictionary, limit).design(CONCEPTS[0], context, lambda _line: None)


def test_design_takes_the_strongest_fluent_push(dictionary):
    profile = design(dictionary, limit=0.48)
    assert profile.push == pytest.approx(0.475, abs=0.02)
    assert {edit.feature for edit in profile.edits} <= set(range(2, 8))
    assert len(profile.edits) in FEATURE_COUNTS


def test_design_falls_back_to_the_weakest_push(dictionary):
    assert design(dictionary, limit=0.1).push == pytest.approx(PUSHES[0], abs=0.02)


def test_samples_are_seeded(bench):
    assert bench.sample(PLAN).ids == bench.sample(PLAN).ids
    assert bench.sample(PLAN).ids != bench.sample(SamplingPlan(count=3, tokens=6, seed=2)).ids


def test_a_zero_delta_changes_nothing(bench):
    assert bench.sample(PLAN, torch.zeros(32)).ids == bench.sample(PLAN).ids


def test_a_large_delta_changes_the_samples(bench):
    greedy = SamplingPlan(count=1, tokens=6, temperature=0)
    assert bench.sample(greedy, 50 * torch.arange(32.0)).ids != bench.sample(greedy).ids


def test_steering_moves_ordinary_tokens_only(bench):
    ids = torch.tensor([[1, 10, 11, 3, 12]])
    plain = read_residuals(bench.model, 1, ids)
    with bench.steered(ids, torch.full((32,), 2.0)):
        steered = read_residuals(bench.model, 1, ids)
    moved = (steered - plain).abs().amax(-1)[0]
    assert moved.tolist() == pytest.approx([0, 2, 2, 0, 2], abs=1e-4)
    assert torch.equal(read_residuals(bench.model, 1, ids), plain)


def test_the_generation_phase_leaves_the_prompt_alone(bench):
    delta = 50 * torch.ones(32)
    plain, later = bench.sample(PLAN), bench.sample(PLAN, delta, "generation")
    assert [ids[:1] for ids in later.ids] == [ids[:1] for ids in plain.ids]


def test_a_sample_ends_before_its_end_marker(bench):
    assert bench._until_end([5, 6, 3, 7]) == [5, 6]
    assert bench._until_end([5, 6]) == [5, 6]


def test_comparison_measures_perplexity_without_steering(bench):
    base = bench.baseline(PLAN)
    result = compare(bench, base, base.samples, ("the",))
    assert result.perplexity_ratio == pytest.approx(1)
    assert result.perplexity > 1


def test_the_perplexity_is_that_of_all_samples_together(bench):
    """Every token counts the same, as in a sweep's report: a short sample weighs less than a long one."""
    prompt = bench.prompt_ids(NEUTRAL_PROMPT)
    ids = [[5, 6, 7, 8, 9, 10], [11], []]
    logprobs = []
    for answer in ids:
        with torch.no_grad():
            logits = bench.model(input_ids=torch.tensor([prompt + answer])).logits[0].double().log_softmax(-1)
        logprobs += [logits[len(prompt) - 1 + place, token].item() for place, token in enumerate(answer)]
    assert bench.perplexity(Samples(["a", "b", ""], ids)) == pytest.approx(perplexity(logprobs), rel=1e-4)


def test_mean_activations_cover_labels_and_all(bench, dictionary):
    stories = labelled_stories(0, 4)
    means = mean_activations(bench, dictionary.sae, stories)
    assert set(means) == {"all"} | {label for story in stories for label in story.labels}
    assert all(mean.shape == (8,) for mean in means.values())
