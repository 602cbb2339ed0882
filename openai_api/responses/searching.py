"""What a response needs to know of its searches of files: whether there are any, what is shown, what can be cited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from openai_api.responses.schemas.bodies import Item


@dataclass(slots=True)
class Searching:
    """``sources`` are the results that the model has seen, in the order of their numbers; each search adds its own."""

    is_on: bool = True
    shows_results: bool = False
    sources: list[dict[str, Any]] = field(default_factory=list)

    def note(self, items: Iterable[Item]) -> None:
        """Results of earlier turns can be cited too."""
        for item in items:
            if item["type"] == "file_search_call":
                self.sources.extend(item.get("results") or ())
