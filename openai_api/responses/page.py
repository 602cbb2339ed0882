"""Pages of lists: cursor parameters of a request, and the body of one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.errors import quote
from openai_api.http.errors import invalid
from openai_api.responses.schemas.bodies import Item, ItemListBody

DEFAULT_LIMIT = 20
MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Page:
    limit: int = DEFAULT_LIMIT
    is_ascending: bool = False
    after: str | None = None
    before: str | None = None


def read_page(query: Mapping[str, str]) -> Page:
    """Parse `limit`, `order`, `after` and `before` of the query string. Raises MillmError 400."""
    order = query.get("order", "desc")
    if order not in {"asc", "desc"}:
        raise invalid(f"order must be asc or desc, not “{quote(order)}”.", param="order")
    return Page(
        limit=read_number(query.get("limit", str(DEFAULT_LIMIT)), "limit", least=1, most=MAX_LIMIT),
        is_ascending=order == "asc",
        after=query.get("after") or None,
        before=query.get("before") or None,
    )


def read_number(text: str, name: str, *, least: int, most: int) -> int:
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= 10 else least - 1
    if not least <= number <= most:
        raise invalid(f"{name} must be a number from {least} to {most}, not “{quote(text)}”.", param=name)
    return number


def read_flag(text: str, name: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise invalid(f"{name} must be true or false, not “{quote(text)}”.", param=name)
    return text.lower() == "true"


def list_body(items: Sequence[Item], page: Page) -> ItemListBody:
    """Return one page of ``items``, all of them, oldest first. Raises MillmError 400 for an unknown cursor."""
    ordered = list(items) if page.is_ascending else list(reversed(items))
    start = _place(ordered, page.after, "after") + 1 if page.after is not None else 0
    end = _place(ordered, page.before, "before") if page.before is not None else len(ordered)
    data = ordered[start:end]
    shown = data[: page.limit] if page.before is None or page.after is not None else data[-page.limit :]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else "",
        "last_id": shown[-1]["id"] if shown else "",
        "has_more": len(shown) < len(data),
    }


def _place(items: Sequence[Item], item_id: str, name: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise invalid(f"{name}: there is no item “{quote(item_id)}” in this list.", param=name)
