"""Cursor pages, newest first or last: of rows, and of the items of a response or conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.db.models import Model, QuerySet

from core.errors import quote
from core.pagination import ByKey, Order, rows_between
from openai_api.http.errors import invalid
from openai_api.responses.schemas.bodies import Item, ItemListBody
from openai_api.schemas.base import ListQuery

M = TypeVar("M", bound=Model)
Listed = TypeVar("Listed", bound=Mapping[str, Any])
BY_KEY = ByKey()


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


def page_of(rows: QuerySet[M], query: ListQuery, *, id_field: str = "public_id", order: Order[Any] = BY_KEY) -> Page[M]:
    """Return one page of ``rows``, all that the client may see. Raises MillmError 400 for an unknown cursor."""
    found, has_more = rows_between(
        rows,
        order,
        size=query.size,
        is_ascending=query.order == "asc",
        after=_position(rows, order, query.after, "after", id_field),
        before=_position(rows, order, query.before, "before", id_field),
    )
    return Page(found, has_more)


def _position(rows: QuerySet[M], order: Order[Any], cursor: str | None, param: str, id_field: str) -> Any:
    """Return the place of the row whose id is ``cursor``; None without a cursor."""
    if cursor is None:
        return None
    row = rows.filter(**{id_field: cursor}).first()
    if row is None:
        raise invalid(f"`{param}` must be the id of an object in this list, got `{quote(cursor)}`.", param=param)
    return order.position_of(row)


def page_of_items(items: Sequence[Item], query: ListQuery) -> ItemListBody:
    """Return one page of a response's or conversation's items, given oldest first. Raises MillmError 400."""
    shown, has_more = items_between(items, query)
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": has_more,
    }


def items_between(items: Sequence[Listed], query: ListQuery, *, noun: str = "item") -> tuple[list[Listed], bool]:
    """Return one page of ``items``, given oldest first, and whether there are more. Raises MillmError 400."""
    ordered = list(items) if query.order == "asc" else list(reversed(items))
    start = _place(ordered, query.after, "after", noun) + 1 if query.after is not None else 0
    end = _place(ordered, query.before, "before", noun) if query.before is not None else len(ordered)
    data = ordered[start:end]
    shown = data[: query.size] if query.before is None or query.after is not None else data[-query.size :]
    return shown, len(shown) < len(data)


def _place(items: Sequence[Mapping[str, Any]], item_id: str, param: str, noun: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise invalid(f"`{param}` must be the id of a {noun} in this list, got `{quote(item_id)}`.", param=param)
