"""Cursor pages, newest first or last: of rows, and of the items of a response or conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet

from core.errors import quote
from core.pagination import ByKey, rows_between
from openai_api.http.errors import invalid
from openai_api.responses.schemas.bodies import Item, ItemListBody
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
    """Return one page of ``rows``, all that the client may see. Raises MillmError 400 for an unknown cursor."""
    found, has_more = rows_between(
        rows,
        ByKey(),
        size=query.size,
        is_ascending=query.order == "asc",
        after=_position(rows, query.after, "after", id_field),
        before=_position(rows, query.before, "before", id_field),
    )
    return Page(found, has_more)


def _position(rows: QuerySet[M], cursor: str | None, param: str, id_field: str) -> int | None:
    if cursor is None:
        return None
    position: int | None = rows.filter(**{id_field: cursor}).values_list("pk", flat=True).first()
    if position is None:
        raise invalid(f"“{quote(cursor)}” is no object of this list.", param=param)
    return position


def page_of_items(items: Sequence[Item], query: ListQuery) -> ItemListBody:
    """Return one page of ``items``, all of them, oldest first. Raises MillmError 400 for an unknown cursor."""
    ordered = list(items) if query.order == "asc" else list(reversed(items))
    start = _place(ordered, query.after, "after") + 1 if query.after is not None else 0
    end = _place(ordered, query.before, "before") if query.before is not None else len(ordered)
    data = ordered[start:end]
    shown = data[: query.size] if query.before is None or query.after is not None else data[-query.size :]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(shown) < len(data),
    }


def _place(items: Sequence[Item], item_id: str, param: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise invalid(f"{param}: there is no item “{quote(item_id)}” in this list.", param=param)
