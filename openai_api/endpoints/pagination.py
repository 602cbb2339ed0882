"""Pages of rows, newest first or last, between ids that the client knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet

from openai_api.http.errors import invalid, quote
from openai_api.schemas.base import ListQuery

M = TypeVar("M", bound=Model)


@dataclass(frozen=True, slots=True)
class Page(Generic[M]):
    rows: list[M]
    has_more: bool

    def body(self, render: Callable[[M], Any]) -> dict[str, Any]:
        data = [render(row) for row in self.rows]
        return {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": self.has_more,
        }


def page_of(rows: QuerySet[M], query: ListQuery, *, id_field: str = "public_id") -> Page[M]:
    """``rows`` are all that the client may see; raises ApiError 400 for a cursor that is none of them."""
    ascending = query.order == "asc"
    chosen = rows
    for param, cursor, goes_up in (("after", query.after, ascending), ("before", query.before, not ascending)):
        if cursor is not None:
            place = _place(rows, cursor, param, id_field)
            chosen = chosen.filter(pk__gt=place) if goes_up else chosen.filter(pk__lt=place)
    if query.before is not None and query.after is None:  # the page next to the cursor
        found = list(chosen.order_by("-pk" if ascending else "pk")[: query.size + 1])
        return Page(found[: query.size][::-1], len(found) > query.size)
    found = list(chosen.order_by("pk" if ascending else "-pk")[: query.size + 1])
    return Page(found[: query.size], len(found) > query.size)


def _place(rows: QuerySet[M], cursor: str, param: str, id_field: str) -> Any:
    place = rows.filter(**{id_field: cursor}).values_list("pk", flat=True).first()
    if place is None:
        raise invalid(f"“{quote(cursor)}” is no object of this list.", param=param)
    return place
