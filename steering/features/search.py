"""Search features by the words of their labels, in the syntax of web searches, or by index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from operator import and_, or_
from typing import Any

from django.contrib.postgres.search import (
    SearchQuery,
    SearchQueryCombinable,
    SearchRank,
    SearchVector,
)
from django.db import models
from django.db.models import Case, F, Q, Value, When

_TERM = re.compile(r'(-?)(?:"([^"]*)"?|([^\s"]+))')
_WORD = re.compile(r"\w+")
_MAX_TERMS = 10
_MAX_WORDS = 10  # of a term
_MAX_CHARS = 500
_MAX_INDEX = 2**31 - 1
MAX_RANKED = 10_000  # more matches come from one or two letters; ranking them is slow and useless
_BY_LENGTH = 1  # divides ranks by 1 + log of the text's length

IN_ORDER = ("sae_id", "index")  # as the unique index has them; by the SAE's name, all features would have to be sorted

# Index each text twice: unchanged for prefixes of words, and stemmed, so that "kittens" finds "kitten".
LABEL_WORDS = (
    SearchVector("label", config="simple", weight="A")
    + SearchVector("label", config="english", weight="A")
    + SearchVector("description", config="simple", weight="C")
    + SearchVector("description", config="english", weight="C")
)

Query = SearchQueryCombinable


class FeatureQuerySet(models.QuerySet[Any]):
    def search(self, text: str, *, max_ranked: int = MAX_RANKED) -> FeatureQuerySet:
        """Return labelled features that match ``text``, the best first. A number also matches features of that index.

        ``rain sea`` requires both words, as a word, a prefix or another form of it; ``"sad rain"`` requires a phrase;
        ``rain or sea`` one of both; ``-rain`` excludes a word. An empty text matches all features, unordered. More than
        ``max_ranked`` matches are ordered by index. Uses the index ``feature_label_words``.
        """
        query, number = parse_query(text), _number(text)
        if query is None:
            return self.none() if text.strip() else self
        matches = Q(words=query) & ~Q(label="")
        if number is not None:
            matches |= Q(index=number)
        found: FeatureQuerySet = self.alias(words=LABEL_WORDS).filter(matches)
        by_number = [] if number is None else [Case(When(index=number, then=Value(0)), default=Value(1))]
        if found.order_by()[max_ranked:].exists():
            return found.order_by(*by_number, *IN_ORDER)
        rank = SearchRank(F("words"), query, normalization=_BY_LENGTH)
        ranked: FeatureQuerySet = found.alias(rank=rank).order_by(*by_number, "-rank", *IN_ORDER)
        return ranked


def parse_query(text: str) -> Query | None:
    """Return the query of a text, or None if it has no words."""
    alternatives = [reduce(and_, terms) for terms in _alternatives(text[:_MAX_CHARS]) if terms]
    return reduce(or_, alternatives) if alternatives else None


def _alternatives(text: str) -> Iterator[list[Query]]:
    """Yield the terms between "or". At the start and the end, "or" is an ordinary word."""
    terms: list[Query] = []
    found = _TERM.findall(text)[:_MAX_TERMS]
    for place, (minus, phrase, word) in enumerate(found):
        if word.lower() == "or" and not minus and terms and place < len(found) - 1:
            yield terms
            terms = []
            continue
        words = _WORD.findall(phrase or word)[:_MAX_WORDS]
        if words:
            terms.append(_phrase(words, is_not=bool(minus)) if phrase else _words(words, is_not=bool(minus)))
    yield terms


def _phrase(words: list[str], *, is_not: bool) -> Query:
    return SearchQuery(" ".join(words), config="simple", search_type="phrase", invert=is_not)


def _words(words: list[str], *, is_not: bool) -> Query:
    """Return a query for all words (or, inverted, against any of them), each as a prefix or in another form."""
    queries: list[Query] = []
    for word in words:
        beginning = SearchQuery(f"'{word}':*", config="simple", search_type="raw", invert=is_not)
        form = SearchQuery(word, config="english", search_type="plain", invert=is_not)
        queries.append(beginning & form if is_not else beginning | form)
    return reduce(or_ if is_not else and_, queries)


def _number(text: str) -> int | None:
    digits = text.strip().lstrip("#")
    return int(digits) if digits.isdecimal() and len(digits) < 11 and int(digits) <= _MAX_INDEX else None
