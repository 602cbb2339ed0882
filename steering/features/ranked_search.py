"""Search features by words, by meaning or by both, and sort the results by relevance or by how well they steer.

Searches by meaning also find features that write what the query means, whatever their labels say. Sorted by how well
they steer, these come first, by how much their output tokens match, times the relevance of their labels plus how well
they steer at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from django.db.models import F

from steering.errors import MeaningUnavailableError
from steering.features.search import IN_ORDER, FeatureQuerySet
from steering.features.semantic_search import DEPTH, NearLabels, QueryEmbedding, fuse_scores, nearest
from steering.features.token_meaning import output_matches, similarities
from steering.models import SAE, Feature

Sort = Literal["relevance", "steers_well"]
STEERING_DEPTH = 50
"""With `steers_well`, this many of the most relevant results by meaning are sorted: all features mean something."""
MIN_SIMILARITY = 0.2
MIN_OUTPUT = 0.02
"""A feature whose output tokens match the query by less, in nats, does not write what it means."""
_UNRELATED = 0.1  # the weight of output tokens that match, of a feature whose label has nothing to do with the query
_MAX_SAES = 16


@dataclass(frozen=True, slots=True)
class FeatureSearch:
    """A search. ``meaning`` is the query embedded by a registered model; ``by_tokens`` compares token embeddings."""

    text: str
    limit: int
    offset: int = 0
    sort: Sort = "relevance"
    meaning: QueryEmbedding | None = None
    by_tokens: bool = False


@dataclass(frozen=True, slots=True)
class FoundFeature:
    """A result. ``relevance`` is from 0 to 1, None if results are not ranked.

    By words it is the rank relative to the best match of the whole search. By meaning it is the cosine similarity of
    query and label (0 if negative); None for a match by words whose label has no embedding. The order then also counts
    words, so it may differ from that of ``relevance``.
    ``steers_well`` is None for a feature whose effect was not measured.
    """

    feature: Feature
    relevance: float | None
    steers_well: float | None


def search_features(rows: FeatureQuerySet, search: FeatureSearch) -> list[FoundFeature]:
    """Return one page of the features that match, the best first.

    Raise LabelsNotEmbeddedError or MeaningUnavailableError if they cannot be searched by meaning.
    """
    if search.meaning is None and not search.by_tokens:
        return _by_words(rows, search)
    found = match_meaning(rows, search)
    order = _by_steering(found) if search.sort == "steers_well" else list(found.scores)
    return _found(rows, {pk: found.relevance(pk) for pk in order[search.offset : search.offset + search.limit]})


@dataclass(frozen=True, slots=True)
class MeaningMatches:
    """The matches by words and by meaning: fused scores by primary key, the best first, cosines of labels, and how much
    the output tokens of features match, where they do.
    """

    scores: dict[int, float]
    cosines: Mapping[int, float]
    outputs: Mapping[int, float]

    def relevance(self, pk: int) -> float | None:
        """Return the cosine similarity with the query, from 0 to 1; None if the label has no embedding."""
        cosine = self.cosines.get(pk)
        return None if cosine is None else min(max(cosine, 0.0), 1.0)


def match_meaning(rows: FeatureQuerySet, search: FeatureSearch) -> MeaningMatches:
    """Return all matches by words, by the meaning of labels, and by the meaning of output tokens."""
    by_words = [] if not search.text.strip() else list(rows.search(search.text).values_list("pk", flat=True)[:DEPTH])
    meaning, saes = search.meaning, _saes(rows)
    near = nearest_tokens(rows, saes, search.text) if meaning is None else nearest(rows, meaning, by_words)
    outputs = _outputs(rows, saes, search.text)
    return MeaningMatches(fuse_scores([by_words, near.order, list(outputs)]), near.cosines, outputs)


def _by_steering(found: MeaningMatches) -> list[int]:
    """Sort the most relevant matches by how well they steer toward the query, then by how well they steer at all."""
    steering = _steers_well(list(found.scores)[:STEERING_DEPTH])

    def order(pk: int) -> tuple[float, bool, float, float]:
        steers_well = steering[pk] or 0.0
        weight = _UNRELATED + (found.relevance(pk) or 0.0) + steers_well
        return -found.outputs.get(pk, 0.0) * weight, steering[pk] is None, -steers_well, -found.scores[pk]

    return sorted(steering, key=order)


def _outputs(rows: FeatureQuerySet, saes: Sequence[SAE], text: str) -> dict[int, float]:
    """Return how much the output tokens of features match, the best first."""
    found: dict[int, float] = {}
    for sae in saes:
        with suppress(MeaningUnavailableError):  # labels embedded by a registered model are searched all the same
            found |= {pk: match for pk, match in output_matches(sae, text).items() if match >= MIN_OUTPUT}
    allowed = set(rows.order_by().filter(pk__in=found).values_list("pk", flat=True))
    order = sorted((pk for pk in found if pk in allowed), key=lambda pk: (-found[pk], pk))[:DEPTH]
    return {pk: found[pk] for pk in order}


def _saes(rows: FeatureQuerySet) -> Sequence[SAE]:
    found = SAE.objects.filter(pk__in=rows.order_by().values("sae_id").distinct()).select_related("model")
    return list(found[:_MAX_SAES])


def nearest_tokens(rows: FeatureQuerySet, saes: Sequence[SAE], text: str) -> NearLabels:
    """Return the features with the most similar labels by token embeddings. Raise MeaningUnavailableError."""
    found = {pk: value for sae in saes for pk, value in similarities(sae, text).items()}
    near = sorted((pk for pk in found if found[pk] >= MIN_SIMILARITY), key=lambda pk: (-found[pk], pk))[:DEPTH]
    allowed = set(rows.order_by().filter(pk__in=near).values_list("pk", flat=True))
    return NearLabels([pk for pk in near if pk in allowed], found)


def _by_words(rows: FeatureQuerySet, search: FeatureSearch) -> list[FoundFeature]:
    found = rows.search(search.text)
    is_ranked = "rank" in found.query.annotations
    if is_ranked:
        found = found.annotate(relevance=F("rank"))
    best = (found[:1].values_list("relevance", flat=True).first() or 0.0) if is_ranked else 0.0
    if search.sort == "steers_well":
        found = found.order_by(F("effect__steers_well").desc(nulls_last=True), *IN_ORDER)
    page = found.annotate(steers_well=F("effect__steers_well"))[search.offset : search.offset + search.limit]
    return [FoundFeature(row, _relative(row.relevance, best) if is_ranked else None, row.steers_well) for row in page]


def _relative(rank: float, best: float) -> float:
    """Return a rank relative to the best one. Postgres gives some matches of prefixes the rank 0."""
    return rank / best if best > 0 else 1.0


def _steers_well(pks: Sequence[int]) -> dict[int, float | None]:
    rows = Feature.objects.filter(pk__in=pks).values_list("pk", "effect__steers_well")
    known = dict(rows)
    return {pk: known[pk] for pk in pks if pk in known}


def _found(rows: FeatureQuerySet, relevance: Mapping[int, float | None]) -> list[FoundFeature]:
    known = {row.pk: row for row in rows.filter(pk__in=relevance).annotate(steers_well=F("effect__steers_well"))}
    return [FoundFeature(known[pk], value, known[pk].steers_well) for pk, value in relevance.items() if pk in known]
