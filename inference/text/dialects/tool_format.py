"""A notation of tool calls, as a model's chat template teaches it, and its shape for grammars of demanded calls."""

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


IdForm = Literal["call", "short"]  # short: nine letters and digits, which Mistral's templates insist on


@dataclass(frozen=True, slots=True)
class CallSpan:
    """Between which texts calls stand, told without reading them. Without ``ends`` all the rest is calls.

    ``openers`` begin calls only at the very beginning of an answer.
    """

    starts: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    openers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """``marks`` are the texts that calls are recognised by; a tokenizer may have them as special tokens.

    A template teaches the format if it holds all texts of one of ``signs``.
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
