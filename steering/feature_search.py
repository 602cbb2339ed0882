"""Finds features by words of their label, or by index."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from django.contrib.postgres.search import SearchQuery, SearchVector
from django.db import models

if TYPE_CHECKING:
    from steering.models import Feature  # noqa: F401 - the query set's model, in its annotation

_WORD = re.compile(r"\w+")
_MAX_WORDS = 10
_MAX_INDEX = 2**31 - 1


class FeatureQuerySet(models.QuerySet["Feature"]):
    def search(self, text: str) -> FeatureQuerySet:
        """Features whose label has, for each word of ``text``, a word that begins with it; or whose index it is.

        Needs no extension of PostgreSQL, and uses the index ``feature_label_words``.
        """
        words = _WORD.findall(text)[:_MAX_WORDS]
        if not words:
            return self.none() if text.strip() else self
        query = SearchQuery(" & ".join(f"'{word}':*" for word in words), config="simple", search_type="raw")
        matches = models.Q(words=query)
        number = text.strip().lstrip("#")
        if number.isdecimal() and int(number) <= _MAX_INDEX:
            matches |= models.Q(index=int(number))
        return self.annotate(words=SearchVector("label", config="simple")).filter(matches)
