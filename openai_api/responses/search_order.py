"""The searches of a background response, from its request to its job: as JSON in the row of what is ordered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openai_api.responses.file_search import FileSearch
from openai_api.responses.schemas.request import ResponseRequest
from openai_api.responses.schemas.tools import FileSearchTool
from openai_api.responses.searching import Searching


def search_order(wanted: ResponseRequest, searching: Searching) -> dict[str, Any]:
    """Nothing where there is no such tool."""
    search = wanted.file_search
    if search is None:
        return {}
    place, tool = search
    return {
        "search": {
            "tool": tool.model_dump(mode="json", exclude_none=True),
            "place": place,
            "shows_results": searching.shows_results,
            "sources": searching.sources,
            "max_searches": wanted.max_tool_calls,
        }
    }


def ordered_search(order: Mapping[str, Any]) -> tuple[FileSearch | None, Searching, int | None]:
    """The search, what is known of it, and how many there may be."""
    given = order.get("search")
    if given is None:
        return None, Searching(is_on=False), None
    searching = Searching(shows_results=given["shows_results"], sources=list(given["sources"]))
    return FileSearch(FileSearchTool.model_validate(given["tool"]), given["place"]), searching, given["max_searches"]
