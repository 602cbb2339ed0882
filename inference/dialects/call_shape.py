"""How a notation of calls is written, for the grammar of calls that a request demands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from inference.dialects.tagged_call import Tags

ArgumentsForm = Literal["json", "python", "gemma", "tagged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """``opening before NAME between ARGUMENTS after separator before NAME ... closing``.

    The first text begins with ``mark``, which tells calls from content; without a mark content cannot begin with the
    first character of a call. ``quote`` stands around strings where the arguments are Gemma's, ``tags`` around each
    argument where they are tagged. ``content_opening`` stands before content where the notation frames that too, and a
    call that ``ends_answer`` is the only one.
    """

    before: str
    between: str
    after: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    mark: str = ""
    arguments: ArgumentsForm = "json"
    quote: str = ""
    tags: Tags | None = None
    content_opening: str = ""
    ends_answer: bool = False

    @property
    def first(self) -> str:
        return self.opening + self.before
