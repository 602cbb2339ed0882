"""Models of accesses to the request log, saved searches and scores, and the text search index."""

from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.search import SearchQuery, SearchVectorField
from django.db import models
from django.db.models import Func
from django.db.models.functions import Now


class SavedSearch(models.Model):
    """Conditions of a search of the request log, under a name. A shared one is for all who may see the log."""

    name = models.CharField(max_length=100)
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_searches")
    conditions = models.JSONField(help_text="The non-empty fields of the search form.")
    is_shared = models.BooleanField("shared", default=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        ordering = ("name", "pk")
        verbose_name_plural = "saved searches"
        constraints = (models.UniqueConstraint(fields=("owner", "name"), name="saved_search_once"),)

    def __str__(self) -> str:
        return self.name


class RequestScore(models.Model):
    """How good a person finds an answer, 0 to 1; one of each person and name for a request. Deleted with the request.

    ``name`` is what was judged, such as "helpful"; "" is the answer as a whole. ``username`` outlives the account.
    """

    request = models.ForeignKey("openai_api.RequestLog", on_delete=models.CASCADE, related_name="scores")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    username = models.CharField(max_length=150)
    name = models.CharField(max_length=60, blank=True, db_default="", default="")
    value = models.FloatField(help_text="0 is bad, 1 is good.")
    note = models.TextField(max_length=1000, blank=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ("name", "username", "pk")
        default_permissions = ("view", "add")
        verbose_name = "score"
        constraints = (
            models.UniqueConstraint(fields=("request", "user", "name"), name="request_scored_once"),
            models.CheckConstraint(condition=models.Q(value__gte=0, value__lte=1), name="score_is_a_share"),
        )
        indexes = (models.Index(fields=("name", "value", "request"), name="score_value"),)

    def __str__(self) -> str:
        return f"score of {self.request_id}"


class LogAccess(models.Model):
    """A user read, searched, exported or replayed logged texts. Names instead of keys: it outlives its objects.

    An access to excerpts of many requests has their ids in ``detail``, as ``requests``.
    """

    class Act(models.TextChoices):
        READ = "read", "read a request's text"
        LIST = "list", "listed texts"
        SEARCH = "search", "searched texts"
        EXPORT = "export", "exported"
        REPLAY = "replay", "replayed a request"
        PRUNE = "prune", "pruned"
        PLAY = "play", "opened a recording or a video"

    at = models.DateTimeField(db_default=Now(), db_index=True)
    act = models.CharField(max_length=10, choices=Act)
    username = models.CharField(max_length=150, help_text="Empty: a command on the server.", blank=True)
    request_id = models.CharField(max_length=64, blank=True, db_index=True)
    detail = models.JSONField(
        default=dict, blank=True, help_text="Conditions, format, and whether texts were included."
    )
    num_rows = models.PositiveBigIntegerField("rows", null=True, blank=True)
    is_complete = models.BooleanField("complete", default=True, help_text="Whether it completed.")

    class Meta:
        ordering = ("-at", "-pk")
        verbose_name = "access to the log"
        verbose_name_plural = "accesses to the log"

    def __str__(self) -> str:
        return f"{self.username or 'a command'} {self.get_act_display()}"


METADATA = "metadata"  # among the parameters: names and values that clients give their requests
FUNCTION = "millm_log_words"  # created and described in migration 0007
MAX_SEARCH = 200


class LogWords(Func):
    """The search vector of a prompt and a completion; of long texts the beginning and the end."""

    function = FUNCTION
    output_field = SearchVectorField()


def search_query(text: str) -> SearchQuery:
    """Parse a web search: words that must all occur, "phrases", `or` and `-without`. Any text is a valid query."""
    return SearchQuery(text.lower(), config="simple", search_type="websearch")


def has_words(text: str) -> bool:
    return any(character.isalnum() for character in text)
