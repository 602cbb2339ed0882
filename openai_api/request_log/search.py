"""The conditions of a search of the request log, and the matching rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import reduce
from operator import or_

from django.db.models import Exists, OuterRef, Q, QuerySet

from core.pagination import Cursor, KeysetPage
from openai_api.models import RequestLog, RequestScore
from openai_api.request_id import request_id_of
from openai_api.request_log.models import METADATA, LogWords, search_query
from openai_api.request_log.summary import CLIENT_DISCONNECTED

OTHERS = "-"  # prefix of an endpoint: requests to any other
NONE = "none"  # instead of a profile or a key: requests without one
CLIENT_LEFT = Q(error_code=CLIENT_DISCONNECTED)
OUTCOMES = {
    "ok": ("succeeded", Q(status__lt=400, error_code="")),
    "failed": ("failed in the stream", Q(status__lt=400) & ~Q(error_code="") & ~CLIENT_LEFT),
    "left": ("client disconnected", CLIENT_LEFT),
    "refused": ("refused (4xx)", Q(status__gte=400, status__lt=500) & ~CLIENT_LEFT),
    "error": ("server error (5xx)", Q(status__gte=500)),
}
LAST = {
    "hour": ("last hour", timedelta(hours=1)),
    "day": ("last 24 hours", timedelta(days=1)),
    "week": ("last 7 days", timedelta(days=7)),
    "month": ("last 30 days", timedelta(days=30)),
}
NOT_CONSOLE = ~Q(source=RequestLog.Source.CONSOLE)
SOURCES = {
    "all": ("all", Q()),
    **{source.value: (f"{source.label} only", Q(source=source)) for source in RequestLog.Source},
}
SCORES = {
    "any": ("scored", Q(value__gte=0)),
    "good": ("good (0.5 or more)", Q(value__gte=0.5)),
    "bad": ("bad (below 0.5)", Q(value__lt=0.5)),
}
NOT_SCORED = "none"
TEXTS = ("prompt", "completion", "parameters", "error_message")


@dataclass(frozen=True, slots=True)
class LogSearch:
    """Conditions, combined with AND; "" and None are unset. ``profile`` is a name, name@version or `none`; an
    ``endpoint`` with a minus means all others. Without ``source``, requests that console pages made for the current
    user are left out, unless one is selected by its id or by a saved list.

    ``keys`` are primary keys; an empty tuple means requests without a key. ``key_prefix`` selects by the prefix of the
    secret, refused or not, and ``keys`` adds rows older than that column. ``score`` selects requests that at least one
    person scored so, or that nobody scored, by the name ``score_name``; "" is that of answers as a whole.
    ``saved_list`` is the name of a list that people saved requests to, ``metadata`` a name and its value in the
    request's `metadata`. ``metadata`` and ``text`` require the permission to see texts, which the caller checks.
    """

    id: str = ""
    since: datetime | None = None
    until: datetime | None = None
    keys: tuple[int, ...] | None = None
    key_prefix: str = ""
    user: str = ""
    model: str = ""
    profile: str = ""
    endpoint: str = ""
    source: str = ""
    outcome: str = ""
    status: int | None = None
    code: str = ""
    stream: bool | None = None
    slower_ms: float | None = None
    score: str = ""
    score_name: str = ""
    saved_list: str = ""
    metadata: tuple[str, str] | None = None
    text: str = ""

    def rows(self, *, by_time: bool = False) -> QuerySet[RequestLog]:
        """Return the rows, unordered; pages order them.

        With ``by_time``, metadata are not looked up in their index: where many of the newest requests have them,
        reading requests by time is faster, and Postgres has no statistics that tell.
        """
        found = RequestLog.objects.filter(*self._conditions(by_time=by_time)).order_by()
        if self.text:
            found = found.alias(words=LogWords("prompt", "completion")).filter(words=search_query(self.text))
        return found

    def _conditions(self, *, by_time: bool) -> Iterable[Q]:
        yield from self._origin()
        for name in ("user", "model", "status", "stream"):
            value = getattr(self, name)
            if value not in ("", None):
                yield Q(**{name: value})
        if self.endpoint:
            others = self.endpoint.startswith(OTHERS)
            yield ~Q(endpoint=self.endpoint[1:]) if others else Q(endpoint=self.endpoint)
        if self.id:
            names = {self.id, request_id_of(self.id)}  # clients may choose any request id
            yield reduce(or_, (Q(pk__startswith=name) for name in names))
        if self.code:  # the second half matches the condition of the error index
            yield Q(error_code=self.code) & ~Q(error_code="")
        if self.outcome:
            yield OUTCOMES[self.outcome][1]
        if self.profile:
            yield profile_condition(self.profile)
        if self.metadata:
            yield _metadata_condition(*self.metadata, by_time=by_time)
        yield from self._of_people()
        if self.keys is not None:
            yield self._key_condition(self.keys)
        yield from self._times()

    def _of_people(self) -> Iterable[Q]:
        """Yield what people noted about requests."""
        if self.saved_list:
            yield Q(saveditems__saved_list__name=self.saved_list)
        if self.score:
            yield self._score_condition(RequestScore.objects.filter(name=self.score_name).order_by())

    def _origin(self) -> Iterable[Q]:
        if self.source:
            yield SOURCES[self.source][1]
        elif not (self.id or self.saved_list):
            yield NOT_CONSOLE

    def _key_condition(self, keys: tuple[int, ...]) -> Q:
        if self.key_prefix:
            return Q(key_prefix=self.key_prefix) | Q(key_prefix="", api_key__in=keys)
        return Q(api_key__in=keys) if keys else Q(api_key=None, key_prefix="")

    def _score_condition(self, scores: QuerySet[RequestScore]) -> Q:
        if self.score == NOT_SCORED:
            return ~Q(Exists(scores.filter(request=OuterRef("pk"))))
        return Q(pk__in=scores.filter(SCORES[self.score][1]).values("request"))

    def _times(self) -> Iterable[Q]:
        if self.since is not None:
            yield Q(created_at__gte=self.since)
        if self.until is not None:
            yield Q(created_at__lt=self.until)
        if self.slower_ms is not None:
            yield Q(total_ms__gte=self.slower_ms)


def _metadata_condition(name: str, value: str, *, by_time: bool) -> Q:
    if by_time:
        return Q(parameters__contains={METADATA: {name: value}})
    return Q(parameters__has_key=METADATA) & Q(parameters__metadata__contains={name: value})  # as the index has them


def profile_condition(profile: str) -> Q:
    if profile == NONE:
        return Q(profile="")
    return Q(profile=profile) if "@" in profile else Q(profile__startswith=f"{profile}@")


def lean(rows: QuerySet[RequestLog]) -> QuerySet[RequestLog]:
    """Return the rows without columns that only the detail page shows: a list never fetches texts."""
    return rows.select_related("api_key").defer(*TEXTS, "token_ms")


def estimated_rows(rows: QuerySet[RequestLog]) -> int:
    """Return the planner's estimate; no row is read."""
    plan = json.loads(rows.order_by().explain(format="json"))
    return int(plan[0]["Plan"]["Plan Rows"])


def size_text(rows: QuerySet[RequestLog], page: KeysetPage[RequestLog, Cursor]) -> str:
    """Return the number of rows, exact if all are on the page, otherwise marked as an estimate."""
    if page.older is None and page.newer is None:
        count = len(page.rows)
        return f"{count} request{'' if count == 1 else 's'}"
    return f"about {_rounded(max(estimated_rows(rows), len(page.rows) + 1)):,} requests (estimate)"


def _rounded(number: int) -> int:
    """Round to two digits, since it is an estimate."""
    places = max(0, len(str(number)) - 2)
    return round(number, -places)
