"""A notation of tool calls, and its shape for grammars of required calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from inference.text.dialects.events import AnswerEvent, ToolCallWriter
from inference.text.dialects.tagged_call import Tags
from inference.text.dialects.text_buffer import Parser, TextBuffer

ArgumentsForm = Literal["json", "python", "gemma", "tagged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallShape:
    """``opening before NAME between ARGUMENTS after separator before NAME ... closing``.

    The first text begins with ``mark``, which distinguishes calls from content; without a mark, content cannot begin
    with the first character of a call. ``quote`` surrounds strings in Gemma's notation, ``tags`` each argument in
    tagged notations. ``content_opening`` precedes content. A call that ``ends_answer`` is the only one.
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


IdForm = Literal["call", "short"]  # short: nine letters and digits, as Mistral's templates require


@dataclass(frozen=True, slots=True)
class CallSpan:
    """The texts that start and end calls, without parsing them. Without ``ends`` the rest of the answer is calls.

    ``openers`` start calls only at the beginning of an answer.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A notation. ``marks``: the texts that identify calls; they may be special tokens of the tokenizer.

    A template uses the format if it contains all texts of one of ``signs``.
    """

    name: str
    read: Callable[[TextBuffer, ToolCallWriter], Parser[AnswerEvent, None]]
    shape: CallShape
    marks: tuple[str, ...]
    signs: tuple[tuple[str, ...], ...]
    span: CallSpan
    ids: IdForm = "call"

    def is_taught_by(self, template: str) -> bool:
        return any(all(sign in template for sign in signs) for signs in self.signs)
