"""Searches by words and by meaning, sorted by relevance or by how well features steer; on the demo's embeddings."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import pytest
from django.urls import reverse
from django.utils import timezone
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.snapshots import forget_snapshots
from steering.demo.install import ARTIFACTS, install_demo
from steering.effects.recipe import EffectResult
from steering.effects.store import store_effects, store_output_tokens
from steering.errors import MeaningUnavailableError
from steering.features.ranked_search import FeatureSearch, search_features
from steering.features.token_meaning import LabelMeanings, open_embeddings, output_matches, similarities
from steering.models import SAE, Feature


@pytest.fixture
def demo(db) -> Iterator[SAE]:
    forget_snapshots()
    install_demo()
    yield SAE.objects.select_related("model").get(name="demo-sae")
    forget_snapshots()


def find(sae, text, **fields):
    return search_features(sae.features.all(), FeatureSearch(text, fields.pop("limit", 10), **fields))


class TestTokens:
    def test_a_text_is_the_mean_of_its_tokens(self, demo):
        embeddings = open_embeddings(demo)
        weights = AutoModelForCausalLM.from_pretrained(ARTIFACTS / "model").get_input_embeddings().weight
        matrix = weights.detach().float().numpy()
        ids = AutoTokenizer.from_pretrained(ARTIFACTS / "model")(" the sad rain", add_special_tokens=False).input_ids
        rows = matrix[ids] - matrix.mean(0)
        expected = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(0)
        np.testing.assert_allclose(embeddings.embed(["the sad rain"])[0], expected, atol=1e-5)
        assert not embeddings.embed([""]).any()

    def test_near_labels_are_those_with_the_words_or_their_like(self, demo):
        found = similarities(demo, "rain")
        best = Feature.objects.get(pk=max(found, key=lambda pk: found[pk]))
        assert "rain" in f"{best.label} {best.top_tokens}"
        assert max(found.values()) <= 1.0001
        demo.features.update(label="", top_tokens=[])
        forget_snapshots()
        assert similarities(demo, "rain") == {}

    def test_related_words_are_top_tokens_of_features_with_similar_labels(self, demo):
        others = ("cat", "dog", "sun", "tree", "house", "king", "song", "bread", "red", "walk")
        rows = [(n, "rain", [" Rain", " wet", " the", "s"]) for n in range(4)]
        rows += [(n, f"the {others[n % 10]}", [f" {others[n % 10]}", " the", "s"]) for n in range(4, 400)]
        related = LabelMeanings.build(open_embeddings(demo), rows).related_words("rain")
        assert set(related) >= {"rain", "wet"}
        assert not set(related) & {"the", "s"}, "neither words that are everywhere, nor pieces of words"
        assert all(0 < weight <= 0.5 for weight in related.values())

    def test_model_without_files(self, sae):
        with pytest.raises(MeaningUnavailableError) as refused:
            find(sae, "rain", by_tokens=True)
        assert (refused.value.status, refused.value.param) == (409, "meaning")


class TestOutput:
    @pytest.fixture
    def writer(self, demo) -> Feature:
        """A feature that writes of rain, and whose label says something else."""
        others = demo.features.exclude(label__icontains="rain").order_by("index")
        tokens = {row.index: [(" the", 0.3), (" and", 0.2)] for row in others[:30]}
        row = others[7]
        tokens[row.index] = [(" the", 0.3), (" rain", 0.2)]
        store_output_tokens(sae=demo, found=tokens)
        forget_snapshots()
        found: Feature = row
        return found

    def test_a_feature_that_writes_what_the_query_means_is_found(self, demo, writer):
        assert writer not in [one.feature for one in find(demo, "rain", limit=50)]
        assert writer in [one.feature for one in find(demo, "rain", limit=50, by_tokens=True)]
        best = find(demo, "rain", by_tokens=True, sort="steers_well")
        assert best[0].feature == writer
        matches = output_matches(demo, "rain")
        assert max(matches, key=lambda pk: matches[pk]) == writer.pk
        assert matches[writer.pk] == pytest.approx(0.2 * math.log(30), rel=1e-4), "of that token only, by its rarity"

    def test_a_piece_of_a_word_means_nothing(self, demo, writer):
        """ "rain" without a blank continues a word, such as "terrain"; at the beginning of an answer it is "Rain"."""
        other = demo.features.exclude(pk=writer.pk).exclude(label__icontains="rain").order_by("index").last()
        store_output_tokens(sae=demo, found={other.index: [(" the", 0.3), ("rain", 0.9)]})
        forget_snapshots()
        assert other.pk not in output_matches(demo, "rain")
        store_output_tokens(sae=demo, found={other.index: [(" the", 0.3), ("Rain", 0.9)]})
        forget_snapshots()
        assert output_matches(demo, "rain")[other.pk] > output_matches(demo, "rain")[writer.pk]

    def test_filters_hold(self, demo, writer):
        rows = demo.features.exclude(pk=writer.pk)
        found = search_features(rows, FeatureSearch("rain", 50, sort="steers_well", by_tokens=True))
        assert writer not in [one.feature for one in found]


class TestOrder:
    @pytest.fixture
    def measured(self, demo):
        rows = list(Feature.objects.search("rain").filter(sae=demo)[:3])
        scores = (0.1, 0.3, 0.2)
        results = [
            EffectResult(
                row.index, 2.0, 0.3, 0.4, is_capped=False, output_score=score, base_output_score=0.0, fluency=1.0
            )
            for row, score in zip(rows, scores, strict=True)
        ]
        store_effects(sae=demo, results=results, recipe="r", measured_at=timezone.now())
        return demo, [row.index for row in rows]

    def test_relevance(self, demo):
        found = find(demo, "rain")
        assert found[0].relevance == 1
        values = [one.relevance for one in found]
        assert values == sorted(values, reverse=True)
        assert find(demo, "rain", offset=1)[0].relevance == values[1], "not that of the page"
        assert [one.relevance for one in find(demo, "")[:2]] == [None, None]

    @pytest.mark.parametrize("by_tokens", [False, True])
    def test_sorted_by_how_well_they_steer(self, measured, by_tokens):
        sae, (low, high, middle) = measured
        found = find(sae, "rain", sort="steers_well", by_tokens=by_tokens)
        assert [one.feature.index for one in found[:3]] == [high, middle, low]
        assert [one.steers_well for one in found[:3]] == [pytest.approx(0.3), pytest.approx(0.2), pytest.approx(0.1)]
        assert found[3].steers_well is None

    def test_meaning_adds_to_words(self, demo):
        words, both = find(demo, "rain", limit=50), find(demo, "rain", limit=50, by_tokens=True)
        cosines = similarities(demo, "rain")
        assert [one.relevance for one in both] == pytest.approx([max(0, cosines[one.feature.pk]) for one in both])
        assert len({one.relevance for one in both}) > len(both) // 2
        assert len(both) > len(words) or len(words) == 50
        pages = [find(demo, "rain", limit=1, offset=n, by_tokens=True)[0].feature.pk for n in range(3)]
        assert pages == [one.feature.pk for one in both[:3]]

    def test_page_shows_relevance_and_how_well_they_steer(self, admin, measured):
        url = reverse("admin:steering_feature_changelist")
        html = admin.get(url, {"q": "rain"}).content.decode()
        best = find(measured[0], "rain", by_tokens=True)[0]
        shown = re.findall(r'"field-relevance_text">([\d.]+|–)<', html)
        assert float(shown[0]) == pytest.approx(best.relevance, abs=0.006)
        first = re.search(r'"field-index"><a [^>]*>(\d+)<', html)
        assert first is not None
        assert int(first[1]) == best.feature.index
        assert '<meter min="0" max="0.5" value="0.300" title="0.300"></meter>' in html
        assert "relevance_text" not in admin.get(url).content.decode()
        assert "3 features" in admin.get(url, {"steers": "well"}).content.decode()
        assert admin.get(url, {"q": '"rain" -sad', "match": "words", "o": "4"}).status_code == 200
        assert admin.get(url, {"q": "rain", "steers": "unknown", "o": "-4.1"}).status_code == 200
