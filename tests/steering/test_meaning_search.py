"""Features found by the meaning of their labels: exact, joined with the words, and never of others' models."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.models import LanguageModel
from steering.features.ranked_search import FeatureSearch, search_features
from steering.features.semantic_search import (
    LabelsNotEmbeddedError,
    QueryEmbedding,
    delete_stale_embeddings,
    fuse_scores,
)
from steering.models import Feature, LabelEmbedding

WIDTH = 8
VECTORS = np.random.default_rng(3).normal(size=(3, WIDTH))
VECTORS /= np.linalg.norm(VECTORS, axis=1, keepdims=True)


@pytest.fixture
def embedder(db) -> LanguageModel:
    return LanguageModel.objects.create(name="vectors", source="/vectors", kind=LanguageModel.Kind.EMBEDDING)


@pytest.fixture
def embedded(sae, embedder):
    for index, vector in enumerate(VECTORS):
        feature = sae.features.get(index=index)
        LabelEmbedding.objects.create(feature=feature, model=embedder, text=feature.label_text, vector=vector.tolist())
    return sae


def find(vector, text="", *, limit=10, offset=0, model="vectors", rows=None):
    rows = Feature.objects.all() if rows is None else rows
    return [
        found.feature.index
        for found in search_features(
            rows, FeatureSearch(text, limit, offset, meaning=QueryEmbedding(model, tuple(vector)))
        )
    ]


def test_order_is_that_of_the_cosine(embedded):
    query = np.random.default_rng(9).normal(size=WIDTH)
    query /= np.linalg.norm(query)
    assert find(query) == np.argsort(-(VECTORS @ query)).tolist()


def test_relevance_is_the_cosine_and_unknown_without_an_embedding(embedded):
    query = -VECTORS[0]
    embedded.features.filter(index=5).update(label="kittens on a roof")
    search = FeatureSearch("kittens", 10, meaning=QueryEmbedding("vectors", tuple(query)))
    found = {one.feature.index: one.relevance for one in search_features(Feature.objects.all(), search)}
    assert found.pop(5) is None
    expected = {index: max(0.0, float(cosine)) for index, cosine in enumerate(VECTORS @ query)}
    assert found == pytest.approx(expected, abs=1e-6)
    assert found[0] == 0


def test_words_count_too(embedded):
    """Feature 2 means the query, feature 1 has its word: both come before the one that is neither."""
    found = find(VECTORS[2], "kittens")
    assert set(found[:2]) == {1, 2}
    assert found[2] == 0


def test_pages_are_cut_from_one_order(embedded):
    whole = find(VECTORS[0], "sea")
    assert [find(VECTORS[0], "sea", limit=1, offset=n)[0] for n in range(3)] == whole


def test_rows_are_kept_to(embedded, other_sae):
    assert find(VECTORS[0], rows=Feature.objects.filter(index__gt=0)) == find(VECTORS[0])[1:]
    with pytest.raises(LabelsNotEmbeddedError):
        find(VECTORS[0], rows=other_sae.features.all())


def test_model_that_embedded_nothing(embedded):
    with pytest.raises(LabelsNotEmbeddedError, match="No labels have been embedded with other"):
        find(VECTORS[0], model="other")


def test_stale_ones_are_forgotten(embedded, embedder):
    Feature.objects.filter(sae=embedded, index=0).update(label="sunshine")
    Feature.objects.filter(sae=embedded, index=1).update(label="")
    assert delete_stale_embeddings(sae=embedded, model=embedder) == 2
    assert [row.feature.index for row in LabelEmbedding.objects.select_related("feature")] == [2]


class TestFuse:
    @given(st.lists(st.lists(st.integers(0, 30), unique=True, max_size=15), max_size=4))
    def test_holds_each_once_and_respects_agreement(self, rankings):
        fused = list(fuse_scores(rankings))
        assert sorted(fused) == sorted({pk for ranking in rankings for pk in ranking})
        for first in fused:
            for second in fused:
                if rankings and all(
                    first in r and (second not in r or r.index(first) < r.index(second)) for r in rankings
                ):
                    assert fused.index(first) <= fused.index(second)

    def test_in_both_beats_first_in_one(self):
        assert next(iter(fuse_scores([[1, 2], [3, 2]]))) == 2
