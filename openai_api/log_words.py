"""The words of a logged request, which its index holds and a search asks for."""

from __future__ import annotations

from django.contrib.postgres.search import SearchQuery, SearchVectorField
from django.db.models import Func

FUNCTION = "millm_log_words"  # migration 0006 creates it and says what it does
MAX_SEARCH = 200


class LogWords(Func):
    """Words of a prompt and a completion: of long ones those near the beginning and the end."""

    function = FUNCTION
    output_field = SearchVectorField()


def search_query(text: str) -> SearchQuery:
    """Words that must all be there, “phrases”, `or` and `-without`, as in web searches. Any text is a query."""
    return SearchQuery(text.lower(), config="simple", search_type="websearch")


def has_words(text: str) -> bool:
    return any(character.isalnum() for character in text)
